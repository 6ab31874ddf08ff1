"""``iobench compare``: runs side by side, and whether they saw the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from iobench.report.compared_runs import Comparison

__all__ = ["compare"]


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN...",
            help="Run directories, or a folder of runs that took turns; two to eight runs.",
        ),
    ],
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of tables.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for an issue instead.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page that opens in a browser, with plots."),
    ] = None,
    group: Annotated[
        bool,
        typer.Option(
            "--group", help="Take runs of one configuration together: what differs between runs."
        ),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Compare also what would be refused or withheld."),
    ] = False,
) -> None:
    """Set runs side by side: what each stage and the loop take, as ratios with their intervals.

    Runs that took turns in one job are compared turn by turn. Whether samples are the same is
    known of runs made with --digests.
    """
    from iobench.errors import OptionError
    from iobench.report.compared_runs import compare_runs

    if json and markdown:
        raise OptionError("--json, --markdown: expected one of them")
    found = compare_runs(runs, anyway=anyway, group=group)
    _print(found, json=json, markdown=markdown)
    if html is not None:
        from iobench.report.compare_html import comparison_page

        _write(html, comparison_page(found))


def _print(found: Comparison, *, json: bool, markdown: bool) -> None:
    if json:
        import json as json_text

        from iobench.report.compare_json import comparison_to_json

        typer.echo(json_text.dumps(comparison_to_json(found), indent=1, allow_nan=False))
        return
    from iobench.report.compare_text import print_comparison
    from iobench.report.markdown_page import MarkdownPage
    from iobench.report.terminal_page import TerminalPage

    print_comparison(found, MarkdownPage() if markdown else TerminalPage())


def _write(path: Path, content: str) -> None:
    from iobench.report.units import nbytes
    from iobench.report.written import write_whole

    write_whole(path, content)
    size = nbytes(len(content.encode()))
    typer.echo(f"wrote {path} ({size}): open it in a browser", err=True)
