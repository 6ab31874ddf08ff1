"""``iobench report``: the report of a run, again, from its run directory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from iobench.analysis.run import open_runs
from iobench.cli.documents import (
    print_document,
    say_written,
    shown_as,
    write_document,
    write_text,
)
from iobench.errors import OptionError
from iobench.masking import as_typed
from iobench.report.document import Command, Document, Section, properties
from iobench.report.one_screen import one_screen
from iobench.report.renderers.json_text import json_text
from iobench.report.report_document import report_document
from iobench.report.units import UNKNOWN, moment
from iobench.report.wrapping import shortened
from iobench.runs.reading import find_runs, holds_several

if TYPE_CHECKING:
    from iobench.runs.reading import FoundRun

LONGEST: Final = 80


def report(
    *,
    run: Path,
    full: bool,
    json: bool,
    brief: bool,
    markdown: bool,
    renderer: str | None,
    html: Path | None,
    darshan: Sequence[Path],
    trace: Path | None,
    mlflow: str | None,
    wandb: str | None,
) -> None:
    """Print what a run measured, and write or log what else is named."""
    spelled = shown_as(json=json, markdown=markdown, renderer=renderer or "")
    if brief and not json:
        raise OptionError("--brief: expected --json beside it")
    if holds_several(run) and not any((html, darshan, trace, mlflow, wandb, markdown, renderer)):
        print_document(listed_document(run, find_runs(run)), "json" if json else "")
        return
    runs = open_runs(run, darshan)
    if brief:
        from iobench.cli.brief_report import brief_figures

        click.echo(json_text(brief_figures(run, runs)))
        return
    document = report_document(runs)
    if trace is not None:
        from iobench.report.timeline.chrome_trace import write_trace

        write_trace(trace, runs)
        say_written(trace, "open it in ui.perfetto.dev or chrome://tracing")
    if html is not None:
        write_document(document, html)
    if full or spelled:
        print_document(document, spelled)
    else:
        _print_screen(document, run, darshan)
    if mlflow is not None or wandb is not None:
        from iobench.cli.screen import TerminalScreen
        from iobench.tracking.run_logging import log_run

        for place in log_run(run, runs, document, mlflow, wandb):
            TerminalScreen().note(f"iobench: logged to {place}")


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


def print_report(run: Path, *, json: bool, file: TextIO | None = None) -> None:
    """Print the report of a run directory, by default to stdout."""
    document = report_document(open_runs(run, ()))
    if json:
        print_document(document, "json", file=file)
    else:
        _print_screen(document, run, file=file)


def _print_screen(
    document: Document, run: Path, logs: Sequence[Path] = (), file: TextIO | None = None
) -> None:
    """Print one screen of a report, and the command that prints all of it."""
    given = (word for log in logs for word in ("--darshan", str(log)))
    whole = shlex.join(["iobench", "report", str(as_typed(run)), *given, "--full"])
    write_text(one_screen(document, whole, file), sys.stdout if file is None else file)
