"""``iobench compare``: runs side by side, and whether they saw the same samples."""

from __future__ import annotations

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


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN...",
            help=(
                "Two to eight run directories, or a folder of runs that took turns. With "
                "--quarterly: folders with runs or suite results in them or below."
            ),
        ),
    ],
    json: Json = False,
    markdown: Markdown = False,
    renderer: Renderer = "",
    html: Html = None,
    group: Annotated[
        bool,
        typer.Option(
            "--group",
            help=(
                "Group runs of the same configuration, so that intervals cover differences "
                "between runs."
            ),
        ),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Also compare what would be refused or withheld."),
    ] = False,
    quarterly: Annotated[
        bool,
        typer.Option(
            "--quarterly",
            help=(
                "Print the table of MAELSTROM D2.3 instead (application, framework, format) "
                "with the published figures; the newest run of each cell."
            ),
        ),
    ] = False,
) -> None:
    """Set runs side by side: what each stage and the loop take, as ratios with their intervals.

    Runs that took turns in one job are compared turn by turn. Whether samples are the same is
    known of runs made with --digests.
    """
    from iobench.errors import OptionError

    told_as = shown_as(json=json, markdown=markdown, renderer=renderer)
    if quarterly and (group or anyway):
        raise OptionError(
            "--quarterly: cannot be combined with --group or --anyway; leave them out"
        )
    if quarterly:
        from iobench.subjects.quarterly.figures import SkippedRun, make_quarterly
        from iobench.subjects.quarterly.section import quarterly_document
        from iobench.suites.suite_folder import read_suites

        suites, unread = read_suites(each for each in runs if each.is_dir())
        skipped = (SkippedRun(each.file, each.why) for each in unread)
        document = quarterly_document(make_quarterly(runs, suites, skipped))
    else:
        from iobench.subjects.compare.figures import compare_runs
        from iobench.subjects.compare.section import comparison_document

        document = comparison_document(compare_runs(runs, anyway=anyway, group=group))
    print_document(document, told_as)
    if html is not None:
        write_document(document, html)
