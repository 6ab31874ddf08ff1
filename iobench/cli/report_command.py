"""``iobench report``: the report of a run, again, from its run directory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from iobench.cli.documents import (
    print_document,
    say_written,
    shown_as,
    write_document,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.document import Document


def report(
    *,
    run: Path,
    full: bool,
    json: bool,
    markdown: bool,
    renderer: str | None,
    html: Path | None,
    darshan: Sequence[Path],
    trace: Path | None,
    torch_trace: Sequence[Path],
    parquet: Path | None,
    mlflow: str | None,
    wandb: str | None,
) -> None:
    """Print what a run measured, and write or log what else is named."""
    from iobench.analysis.run import open_runs
    from iobench.report.report_document import report_document
    from iobench.runs.folders import holds_several

    _check_files(html=html, trace=trace, torch_trace=torch_trace, parquet=parquet)
    _check_servers(mlflow, wandb)
    spelled = shown_as(json=json, markdown=markdown, renderer=renderer or "")
    if holds_several(run) and not any(
        (html, darshan, trace, parquet, mlflow, wandb, markdown, renderer)
    ):
        _list_runs(run, json=json)
        return
    runs = open_runs(run, darshan)
    document = report_document(runs)
    if full or spelled:
        print_document(document, spelled)
    else:
        _print_screen(document, run, darshan)
    if html is not None:
        write_document(document, html)
    if trace is not None:
        from iobench.report.timeline.chrome_trace import write_trace

        write_trace(trace, runs, torch_trace)
        say_written(trace, "open it in ui.perfetto.dev or chrome://tracing")
    if parquet is not None:
        from iobench.report.timeline.arrow_table import write_parquet

        write_parquet(parquet, runs)
        say_written(parquet)
    if mlflow is not None or wandb is not None:
        from iobench.cli.screen import TerminalScreen
        from iobench.tracking.run_logging import log_run

        for place in log_run(run, mlflow=mlflow, wandb=wandb, opened=runs, document=document):
            TerminalScreen().note(f"iobench: logged to {place}")


def _check_files(
    *,
    html: Path | None,
    trace: Path | None,
    torch_trace: Sequence[Path],
    parquet: Path | None,
) -> None:
    """Refuse what could not be written before anything is read."""
    from iobench.errors import OptionError

    if trace is not None:
        from iobench.report.timeline.chrome_trace import check_trace_name

        check_trace_name(trace)
    elif torch_trace:
        raise OptionError("--torch-trace: needs --trace, into which it is merged; give both")
    if html is not None:
        from iobench.report.renderers.html_page import HtmlRenderer

        HtmlRenderer()
    if parquet is not None:
        from iobench.report.timeline.arrow_table import check_parquet

        check_parquet()


def _check_servers(mlflow: str | None, wandb: str | None) -> None:
    """Refuse options that name no server or project, before anything is done."""
    why = ""
    if mlflow is not None and not mlflow.strip():
        option, why = (
            "--mlflow",
            "is empty; expected the URI of a server, or env for MLFLOW_TRACKING_URI",
        )
    elif wandb is not None and "://" in wandb:
        option, why = (
            "--wandb",
            "is an address; expected PROJECT or ENTITY/PROJECT. The server is $WANDB_BASE_URL",
        )
    elif wandb is not None and not wandb.strip("/ "):
        option, why = "--wandb", "is empty; expected PROJECT or ENTITY/PROJECT"
    if why:
        raise click.BadParameter(why, param_hint=option)


def _list_runs(folder: Path, *, json: bool) -> None:
    """Print the runs in a folder, newest first, a line each."""
    from iobench.report.listed_runs import listed_document
    from iobench.runs.folders import find_runs

    print_document(listed_document(folder, find_runs(folder)), "json" if json else "")


def print_report(run: Path, *, json: bool, full: bool, file: TextIO | None = None) -> None:
    """Print the report of a run directory, by default to stdout."""
    from iobench.analysis.run import open_runs
    from iobench.report.report_document import report_document

    document = report_document(open_runs(run, ()))
    if full or json:
        print_document(document, "json" if json else "", file=file)
    else:
        _print_screen(document, run, file=file)


def _print_screen(
    document: Document, run: Path, logs: Sequence[Path] = (), file: TextIO | None = None
) -> None:
    """Print one screen of a report, and the command that prints all of it."""
    from iobench.masking import as_typed
    from iobench.report.one_screen import one_screen

    given = (word for log in logs for word in ("--darshan", str(log)))
    whole = shlex.join(["iobench", "report", str(as_typed(run)), *given, "--full"])
    write_text(one_screen(document, whole, file), sys.stdout if file is None else file)


def write_json(run: Path, path: Path) -> None:
    """Write the result of a run directory to a file."""
    from iobench.analysis.run import open_runs
    from iobench.report.renderers.json_text import JsonRenderer
    from iobench.report.report_document import report_document
    from iobench.report.written import write_whole

    document = report_document(open_runs(run, ()))
    write_whole(path, JsonRenderer().render(document) + "\n")
