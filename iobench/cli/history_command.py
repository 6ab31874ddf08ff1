"""``iobench history``: figures of suites over time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.documents import (
    Html,
    Json,
    Markdown,
    Renderer,
    print_document,
    shown_as,
    write_document,
)


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
            help=(
                "A folder of suites, as made by 'iobench suite --history DIR', or of suite results."
            ),
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=(
                "Show and judge this figure, or those matching a pattern ('stage_*'); "
                "repeatable. [default: times of steps and waits, exposed share, energy, loss "
                "and stores]"
            ),
        ),
    ] = None,
    by: Annotated[
        Periods,
        typer.Option(help="What a column covers; the newest suite in it is shown."),
    ] = Periods.QUARTER,
    json: Json = False,
    markdown: Markdown = False,
    renderer: Renderer = "",
    html: Html = None,
) -> None:
    """Show each figure of suites over time, how far it spreads, and what changed beside it.

    A change is named with commit, packages, machine, kernel and file system that are not the same
    before and after it.
    """
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import IobenchError
    from iobench.subjects.history.figures import make_history
    from iobench.subjects.history.section import history_document
    from iobench.suites.history_folder import TABLE, read_history, write_table

    told_as = shown_as(json=json, markdown=markdown, renderer=renderer)
    found = read_history(folder)
    made = make_history(found.suites, found.skipped, metrics=metric or (), by=by.value)
    if found.is_history:
        try:
            write_table(found)
        except IobenchError as error:
            TerminalScreen().note(f"{folder / TABLE} is not of these results: {error}")
    document = history_document(made)
    print_document(document, told_as)
    if html is not None:
        write_document(document, html)
