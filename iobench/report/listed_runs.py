"""A folder of runs as a list: a row for each, and the command that reports one."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from iobench.report.document import Command, Document, Section, properties
from iobench.report.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.runs.folders import FoundRun

LONGEST: Final = 80


def listed_document(folder: Path, runs: Sequence[FoundRun]) -> Document:
    """Return the runs: name, when, and what was measured; then how one of them is reported."""
    rows = ((str(run.path.relative_to(folder)), _when(run) or UNKNOWN, _what(run)) for run in runs)
    result = (properties(rows), Command(_command(runs[0]), "One of them"))
    return Document(
        f"{len(runs)} runs in {folder}, newest first",
        (Section("runs", "", result),),
        figures=lambda: {"folder": str(folder), "listed": [_figures(run) for run in runs]},
    )


def _figures(run: FoundRun) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "made": _when(run) or None,
        "what": _what(run),
        "command": _command(run),
    }


def _when(run: FoundRun) -> str:
    if not run.made_ns:
        return ""
    created = datetime.fromtimestamp(run.made_ns / 1e9, tz=UTC).astimezone()
    return created.strftime("%Y-%m-%d %H:%M")


def _what(run: FoundRun) -> str:
    first = run.told[0]
    if first is None:
        return "run.json cannot be read"
    if first.is_script:
        command = " ".join(first.called(first.command or "a script").split())
        return command if len(command) <= LONGEST else f"{command[: LONGEST - 3]}..."
    labels = [(each and (each.own_label or each.format)) or "unknown" for each in run.told]
    known = first.called(f"{first.dataset or 'unknown'} as {', '.join(labels)}")
    frameworks = {each.framework for each in run.told if each}
    return known if len(frameworks) > 1 else f"{known} ({first.framework or 'unknown'})"


def _command(run: FoundRun) -> str:
    return shlex.join(["iobench", "report", str(run.path)])
