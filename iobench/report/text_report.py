"""The report of profiles as text: for a terminal, or as Markdown for an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from iobench.report.run_report import RunReport, make_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.profiles.contents import Profile
    from iobench.report.page import Page
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["render_markdown", "render_terminal"]


def render_terminal(
    profiles: Sequence[Profile],
    *,
    traces: Mapping[Path, StorageTrace] | None = None,
    reports: Sequence[RunReport] | None = None,
    file: TextIO | None = None,
) -> None:
    """Print the report of profiles, compared where they are several.

    Parameters
    ----------
    profiles : sequence of Profile
        One, or one per format of the same samples.
    traces : mapping of Path to StorageTrace, optional
        What a tracer saw of them, by run directory.
    reports : sequence of RunReport, optional
        From `make_reports` of these profiles and traces, where that was done before.
    file : text file, optional
        By default stdout. Coloured if it is a terminal and ``NO_COLOR`` is not set.

    Raises
    ------
    ProfileError
        If a profile cannot be analysed.
    """
    from iobench.report.terminal_page import TerminalPage

    _write(profiles, traces, reports, TerminalPage(file))


def render_markdown(
    profiles: Sequence[Profile],
    *,
    traces: Mapping[Path, StorageTrace] | None = None,
    reports: Sequence[RunReport] | None = None,
    file: TextIO | None = None,
) -> None:
    """Print the report of profiles as GitHub's Markdown, for an issue.

    Parameters
    ----------
    profiles, traces, reports
        As for `render_terminal`.
    file : text file, optional
        By default stdout.

    Raises
    ------
    ProfileError
        If a profile cannot be analysed.
    """
    from iobench.report.markdown_page import MarkdownPage

    _write(profiles, traces, reports, MarkdownPage(file))


def _write(
    profiles: Sequence[Profile],
    traces: Mapping[Path, StorageTrace] | None,
    reports: Sequence[RunReport] | None,
    page: Page,
) -> None:
    from iobench.report.published_tables import print_published
    from iobench.report.terminal import print_reports

    print_reports(make_reports(profiles, traces) if reports is None else reports, page)
    print_published(profiles, page)
