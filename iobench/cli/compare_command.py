"""``iobench compare``: runs side by side, and whether they saw the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from iobench.report.compared_runs import Comparison
    from iobench.report.page import Page
    from iobench.report.quarterly import Quarterly

__all__ = ["compare"]


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN...",
            help="Run directories, or a folder of runs that took turns; two to eight runs. With "
            "--quarterly folders that hold runs, however deep.",
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
    quarterly: Annotated[
        bool,
        typer.Option(
            "--quarterly",
            help="Print the table of MAELSTROM D2.3 instead: application, framework, format, and "
            "what was published; of several runs of one cell the newest.",
        ),
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print the rows of --quarterly for a spreadsheet.")
    ] = False,
) -> None:
    """Set runs side by side: what each stage and the loop take, as ratios with their intervals.

    Runs that took turns in one job are compared turn by turn. Whether samples are the same is
    known of runs made with --digests.
    """
    from iobench.errors import OptionError

    if json + markdown + csv > 1:
        raise OptionError("--json, --markdown, --csv: expected one of them")
    if quarterly and (group or anyway):
        raise OptionError("--quarterly: expected without --group and --anyway")
    if csv and not quarterly:
        raise OptionError("--csv: expected with --quarterly")
    if quarterly:
        from iobench.report.quarterly import make_quarterly

        table = make_quarterly(runs)
        _print_quarterly(table, json=json, csv=csv, page=_page(markdown=markdown))
        if html is not None:
            from iobench.report.compare_html import quarterly_page

            _write(html, quarterly_page(table))
        return
    from iobench.report.compared_runs import compare_runs

    found = compare_runs(runs, anyway=anyway, group=group)
    _print(found, json=json, page=_page(markdown=markdown))
    if html is not None:
        from iobench.report.compare_html import comparison_page

        _write(html, comparison_page(found))


def _page(*, markdown: bool) -> Page:
    from iobench.report.markdown_page import MarkdownPage
    from iobench.report.terminal_page import TerminalPage

    return MarkdownPage() if markdown else TerminalPage()


def _print(found: Comparison, *, json: bool, page: Page) -> None:
    if json:
        from iobench.report.compare_json import comparison_to_json

        _print_json(comparison_to_json(found))
        return
    from iobench.report.compare_text import print_comparison

    print_comparison(found, page)


def _print_quarterly(found: Quarterly, *, json: bool, csv: bool, page: Page) -> None:
    from iobench.report import quarterly_text

    if json:
        _print_json(quarterly_text.quarterly_to_json(found))
    elif csv:
        typer.echo(quarterly_text.quarterly_to_csv(found), nl=False)
    else:
        quarterly_text.print_quarterly(found, page)


def _print_json(document: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def _write(path: Path, content: str) -> None:
    from iobench.cli.written_files import say_written
    from iobench.report.written import write_whole

    write_whole(path, content)
    say_written(path, "open it in a browser")
