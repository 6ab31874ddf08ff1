"""A folder of runs as a list: one line for each, and the command that reports one."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from iobench.profiles.folders import FoundRun

__all__ = ["listed_lines", "listed_to_json"]

LONGEST: Final = 80


def listed_lines(folder: Path, runs: Sequence[FoundRun]) -> Iterator[str]:
    """Yield the runs: name, when, and what was measured; then how one of them is reported."""
    yield plain(f"{len(runs)} runs in {folder}, newest first")
    names = [plain(str(run.path.relative_to(folder))) for run in runs]
    width = max(map(len, names))
    for name, run in zip(names, runs, strict=True):
        yield plain(f"  {name:{width}}  {_when(run) or 'unknown':16}  {_what(run)}")
    yield plain(f"One of them: {_command(runs[0])}")


def listed_to_json(folder: Path, runs: Sequence[FoundRun]) -> dict[str, Any]:
    """Return the same as values for JSON."""
    return {
        "folder": str(folder),
        "listed": [
            {
                "path": str(run.path),
                "made": _when(run) or None,
                "what": _what(run),
                "command": _command(run),
            }
            for run in runs
        ],
    }


def _when(run: FoundRun) -> str:
    if not run.made_ns:
        return ""
    made = datetime.fromtimestamp(run.made_ns / 1e9, tz=UTC).astimezone()
    return made.strftime("%Y-%m-%d %H:%M")


def _what(run: FoundRun) -> str:
    first = run.configs[0]
    if not first:
        return "run.json cannot be read"
    if first.get("kind") == "script":
        command = " ".join(str(first.get("command", "a script")).split())
        return command if len(command) <= LONGEST else f"{command[: LONGEST - 3]}..."
    labels = [str(each.get("label") or each.get("format", "unknown")) for each in run.configs]
    told = f"{first.get('dataset', 'unknown')} as {', '.join(labels)}"
    return told if first.get("label") else f"{told} ({first.get('framework', 'unknown')})"


def _command(run: FoundRun) -> str:
    return shlex.join(["iobench", "report", str(run.path)])
