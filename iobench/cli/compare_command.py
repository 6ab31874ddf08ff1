"""``iobench compare``: runs side by side, and whether they saw the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.cli.documents import print_document, shown_as, write_document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def compare(
    *,
    runs: Sequence[Path],
    json: bool,
    markdown: bool,
    html: Path | None,
    quarterly: bool,
) -> None:
    """Print runs side by side, or the quarterly table of suites."""
    spelled = shown_as(json=json, markdown=markdown)
    if quarterly:
        from iobench.suites.results import SuiteFolder
        from iobench.suites.suite_table import quarterly_document, quarterly_of

        document = quarterly_document(quarterly_of(map(SuiteFolder, runs)))
    else:
        from iobench.findings.compare import compare_runs, comparison_document

        document = comparison_document(compare_runs(runs))
    print_document(document, spelled)
    if html is not None:
        write_document(document, html)
