"""What Jupyter shows of a profile: the verdict, the stages with bars, and the waits, as HTML."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import IobenchError
from iobench.report import lines, script_lines, script_tables, tables
from iobench.report.fragment_page import FragmentPage
from iobench.report.job_report import make_job
from iobench.report.run_report import make_reports

if TYPE_CHECKING:
    from iobench.analysis.figures import Exposure
    from iobench.profiles.contents import Profile
    from iobench.report.tables import TextTable

__all__ = ["exposure_fragment", "profile_fragment"]

MOST_ROWS: Final = 24
"""Rows of a table in a notebook: scripts may have a stage for every label."""


def profile_fragment(profile: Profile) -> str:
    """Return what a run measured, as a fragment of HTML; or why that cannot be told.

    Of several training processes it is the one that waited longest, below a table of all.
    """
    page = FragmentPage()
    try:
        reports = make_reports([profile])
    except IobenchError as error:
        page.text(str(error), "yellow")
        return page.html
    report = max(reports, key=lambda each: each.exposure.whole.wait_ns)
    job = make_job(reports)
    if report.facts.is_script:
        page.title(script_lines.script_title(reports, job))
    else:
        page.title(lines.title_line(reports))
    stand_in = lines.stand_in_line(report.facts)
    if stand_in:
        page.text(stand_in, "bold yellow")
    if job is not None and job.ranks:
        page.table(_short(script_tables.rank_table(job)))
        page.section(f"rank {report.exposure.rank}, which waits longest")
    _headline(page, report.exposure)
    decoded = lines.decoded_line(report.exposure.whole, report.facts)
    if decoded:
        page.text(decoded)
    page.verdict(report)
    for table in script_tables.process_tables(report.processes)[:1]:
        page.table(_short(table))
    if report.exposure.whole.n_batches:
        page.table(_stages(report.exposure))
        page.table(tables.wait_table(report))
    page.text("All of it:")
    page.command(shlex.join(["iobench", "report", _as_typed(profile.path)]))
    return page.html


def exposure_fragment(exposure: Exposure) -> str:
    """Return who was waited for, as a fragment of HTML."""
    page = FragmentPage()
    _headline(page, exposure)
    if exposure.whole.n_batches:
        page.table(_stages(exposure))
        page.table(tables.waits_of(exposure))
    return page.html


def _as_typed(path: Path) -> str:
    """Return a path as it is named from here: notebooks are shown to others."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _headline(page: FragmentPage, exposure: Exposure) -> None:
    first, *rest = lines.headline(exposure)
    page.text(first, "bold")
    for line in rest:
        page.text(line)


def _stages(exposure: Exposure) -> TextTable:
    return _short(tables.stage_tables(exposure)[0])


def _short(table: TextTable) -> TextTable:
    """Return a table of at most `MOST_ROWS`, which says what is left out."""
    more = len(table.rows) - MOST_ROWS
    if more <= 0:
        return table
    return replace(
        table,
        title=f"{table.title}, {MOST_ROWS} of {len(table.rows)}",
        rows=table.rows[:MOST_ROWS],
        bars=table.bars[:MOST_ROWS],
    )
