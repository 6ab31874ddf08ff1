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
    """Print runs side by side, or the quarterly table of them."""
    spelled = shown_as(json=json, markdown=markdown)
    if quarterly:
        from iobench.findings.quarterly_table import SkippedRun, make_quarterly, quarterly_document
        from iobench.suites.results import read_suites

        suites, unread = read_suites(each for each in runs if each.is_dir())
        skipped = (SkippedRun(*each) for each in unread)
        document = quarterly_document(make_quarterly(runs, suites, skipped))
    else:
        from iobench.findings.compare import compare_runs, comparison_document

        document = comparison_document(compare_runs(runs))
    print_document(document, spelled)
    if html is not None:
        write_document(document, html)
