"""``iobench history``: figures of suites over time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.documents import print_document, write_document

__all__ = ["history"]


class Periods(StrEnum):
    """What a column of the tables is."""

    QUARTER = "quarter"
    MONTH = "month"
    SUITE = "suite"


def history(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder of suites, as 'iobench suite --history DIR' makes it, or of their own.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Show and judge this figure, or those of a pattern ('stage_*'); repeatable. By "
            "default times of steps and waits, exposed share, energy, loss and stores.",
        ),
    ] = None,
    by: Annotated[
        Periods,
        typer.Option(help="What a column is; of several suites in it the newest stands for it."),
    ] = Periods.QUARTER,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for an issue instead.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with a chart of each figure."),
    ] = None,
) -> None:
    """Show each figure of suites over time, how far it spreads, and what changed beside it.

    A change is named with commit, packages, machine, kernel and file system that are not the same
    before and after it.
    """
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import IobenchError, OptionError
    from iobench.subjects.history.figures import make_history
    from iobench.subjects.history.section import history_document
    from iobench.suites.history_folder import TABLE, read_history, write_table

    if json and markdown:
        raise OptionError("--json, --markdown: expected one of them")
    found = read_history(folder)
    made = make_history(found.suites, found.skipped, metrics=metric or (), by=by.value)
    if found.is_history:
        try:
            write_table(found)
        except IobenchError as error:
            TerminalScreen().note(f"{folder / TABLE} is not of these results: {error}")
    document = history_document(made)
    print_document(document, "json" if json else "markdown" if markdown else "")
    if html is not None:
        write_document(document, html)
