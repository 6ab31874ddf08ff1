"""A folder of runs as a list: a row for each, and the command that reports one."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.report.document import Command, Document, Section, properties
from iobench.report.units import UNKNOWN
from iobench.report.wrapping import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.runs.folders import FoundRun

LONGEST: Final = 80


class ListedRun(msgspec.Struct, frozen=True):
    """A run of a folder, as JSON has it."""

    path: str
    started: str | None
    what: str
    command: str  # that reports it


def listed_document(folder: Path, runs: Sequence[FoundRun]) -> Document:
    """Return the runs: name, when, and what was measured; then how one of them is reported."""
    listed = [_listed(run) for run in runs]
    names = (str(run.path.relative_to(folder)) for run in runs)
    rows = [(n, e.started or UNKNOWN, e.what) for n, e in zip(names, listed, strict=True)]
    return Document(
        f"{len(runs)} runs in {folder}, newest first",
        (Section("runs", "", (properties(rows), Command(listed[0].command, "One of them"))),),
        figures=lambda: {"folder": str(folder), "listed": msgspec.to_builtins(listed)},
    )


def _listed(run: FoundRun) -> ListedRun:
    command = shlex.join(["iobench", "report", str(run.path)])
    started = None
    if run.start_ns:
        local = datetime.fromtimestamp(run.start_ns / 1e9, tz=UTC).astimezone()
        started = f"{local:%Y-%m-%d %H:%M}"
    return ListedRun(str(run.path), started, _what(run), command)


def _what(run: FoundRun) -> str:
    first = run.facts[0]
    if first is None:
        return "run.json cannot be read"
    if first.is_script:
        return shortened(first.called(first.command or "a script"), LONGEST)
    labels = [(each and (each.own_label or each.format)) or UNKNOWN for each in run.facts]
    frameworks = dict.fromkeys(each.framework or UNKNOWN for each in run.facts if each)
    what = first.called(f"{first.dataset or UNKNOWN} as {', '.join(labels)}")
    return f"{what} ({', '.join(frameworks)})"
