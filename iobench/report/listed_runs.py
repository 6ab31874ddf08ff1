"""A folder of runs as a list: a row for each, and the command that reports one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from iobench.report.document import Command, Document, Section, properties
from iobench.report.units import UNKNOWN, moment
from iobench.report.wrapping import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.runs.reading import FoundRun

LONGEST: Final = 80


def listed_document(folder: Path, runs: Sequence[FoundRun]) -> Document:
    """Return the runs: name, when, and what was measured; then how one of them is reported."""
    started = [moment(each.start_ns) if each.start_ns else None for each in runs]
    names, what = [str(each.path.relative_to(folder)) for each in runs], list(map(_what, runs))
    listed = [
        {"path": str(folder / name), "started": start, "what": text}
        for name, start, text in zip(names, started, what, strict=True)
    ]
    rows = zip(names, [each or UNKNOWN for each in started], what, strict=True)
    command = shlex.join(["iobench", "report", str(runs[0].path)])
    return Document(
        f"{len(runs)} runs in {folder}, newest first",
        (Section("runs", "", (properties(rows), Command(command, "One of them"))),),
        figures=lambda: {"folder": str(folder), "listed": listed},
    )


def _what(run: FoundRun) -> str:
    first = run.facts[0]
    if first is None:
        return "run.json cannot be read"
    if first.is_script:
        return shortened(first.called(first.command or "a script"), LONGEST)
    labels = [(each and (each.own_label or each.format)) or UNKNOWN for each in run.facts]
    return first.called(f"{first.dataset or UNKNOWN} as {', '.join(labels)}")
