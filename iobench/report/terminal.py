"""Reports drawn on a terminal with rich: readable without colour, in ASCII, and through a pipe."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from rich.box import Box
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from iobench.analysis import Verdict
from iobench.report import (
    lines,
    script_lines,
    script_tables,
    storage_lines,
    storage_tables,
    tables,
    units,
)
from iobench.report.job_report import make_job
from iobench.report.next_steps import next_steps
from iobench.report.sentences import long_waits_sentence, today_sentence, verdict_sentence

if TYPE_CHECKING:
    from iobench.analysis import JobExposure
    from iobench.report.run_report import RunReport
    from iobench.report.tables import TextTable

__all__ = ["print_reports"]

INDENT: Final = 2
NARROWEST: Final = 80
WIDEST: Final = 110
"""Between these the report follows the terminal: tables need the one, sentences the other."""
COLOURS: Final = {
    Verdict.HIDDEN: "bold green",
    Verdict.PARTLY_HIDDEN: "bold yellow",
    Verdict.IO_BOUND: "bold red",
}
# The space of "21.1 ms", "88 %", "< 0.1 %", not to be broken at; held by a character of no text.
QUANTITY: Final = re.compile(
    r"(?<=\d) (?=(?:[num]?s|[kMGTP]?B(?:/s)?|[KMGT]iB|%|samples/s)(?!\w))|(?<=[<>]) (?=\d)"
)
GLUE: Final = "\x1f"
# A line under the headings and one above the total; the other rows are only spaced.
RULED: Final = Box(
    "    \n    \n -- \n    \n -- \n    \n    \n    \n",
    ascii=True,
)


def print_reports(reports: Sequence[RunReport], *, file: TextIO | None = None) -> None:
    """Print what runs of the same samples measured, compared where they are several.

    Parameters
    ----------
    reports : sequence of RunReport
    file : text file, optional
        By default stdout.
    """
    page = _Page(file)
    job = make_job(reports)
    if job is not None:
        _job(page, reports, job)
        return
    _opening(page, reports)
    if len(reports) > 1:
        page.table(tables.comparison_table(reports))
        for report in reports:
            page.verdict(report, named=True)
        today = today_sentence(reports)
        if today:
            page.text(today, "bold")
        page.gap()
    for report in reports:
        if len(reports) > 1:
            page.heading(report.facts.label or report.run or "unnamed run")
        _run(page, report, judged=len(reports) == 1)
    _next(page, reports)


def _job(page: _Page, reports: Sequence[RunReport], job: JobExposure) -> None:
    """Print a job of several training processes: the comparison, then the rank that waits most."""
    page.text(script_lines.script_title(reports, job), "bold")
    page.gap()
    for line in script_lines.job_lines(job):
        page.text(line)
    for line in script_lines.missing_rank_lines(job):
        page.text(line, "bold yellow")
    page.gap()
    if job.ranks:
        page.table(script_tables.rank_table(job))
    if job.wall_ns:
        page.text(
            "Waiting by rank and time, from blank (not at all) to @ (all of it); a column is "
            f"{units.duration(job.bin_ns)}",
            "bold",
        )
        page.raw(script_tables.heat_lines(job))
    if not reports:
        return
    slowest = max(reports, key=lambda report: report.exposure.whole.wait_ns)
    page.heading(f"rank {slowest.exposure.rank}, which waits longest")
    page.text(script_lines.measured_compute_line(slowest))
    page.gap()
    _run(page, slowest, judged=True)
    _next(page, [slowest])


def _opening(page: _Page, reports: Sequence[RunReport]) -> None:
    if reports[0].facts.is_script:
        page.text(script_lines.script_title(reports), "bold")
        page.text(script_lines.measured_compute_line(reports[0]))
        page.gap()
        return
    page.text(lines.title_line(reports), "bold")
    for stand_in in dict.fromkeys(lines.stand_in_line(report.facts) for report in reports):
        if stand_in:
            page.text(stand_in, "bold yellow")
    for compute in dict.fromkeys(lines.compute_line(report.facts) for report in reports):
        page.text(compute)
    page.gap()


def _run(page: _Page, report: RunReport, *, judged: bool) -> None:
    exposure = report.exposure
    first, *rest = lines.headline(exposure)
    page.text(first, "bold")
    if judged:
        page.verdict(report)
    for line in rest:
        page.text(line)
    if report.facts.described_by:
        page.text(f"This pipeline: {report.facts.described_by}")
    if exposure.long_waits is not None:
        page.text(long_waits_sentence(exposure.long_waits), "yellow")
    page.gap()
    if len(exposure.loaders) > 1:
        page.table(script_tables.loader_table(exposure))
    if exposure.whole.n_batches:
        _tables(page, report)
    for table in script_tables.process_tables(report.processes):
        page.table(table)
    _storage(page, report)
    page.list(lines.setup_lines(report))
    page.list(lines.measurement_lines(report))


def _tables(page: _Page, report: RunReport) -> None:
    exposure = report.exposure
    if exposure.steady is not None:
        page.table(tables.stage_table(exposure.steady, "Stages in the steady state"))
    page.table(tables.stage_table(exposure.whole, "Stages over the whole run"))
    page.list(
        lines.fused_lines(exposure.whole, is_script=report.facts.is_script)
        + lines.estimated_lines(exposure.whole)
    )
    page.table(tables.wait_table(report))
    if report.facts.published_s is not None:
        source = report.facts.published_source or "an unknown source"
        real = ", with samples of the real size" if report.facts.tiny else ""
        page.list([f"Published: the exposed I/O of a step{real}, from {source}."])
    page.table(tables.phase_table(exposure))


def _storage(page: _Page, report: RunReport) -> None:
    """Print what storage did: how much of it is known, then bytes, stages and single reads."""
    figures, trace = report.storage, report.trace
    if figures is None or not figures.rows:
        if trace is not None:  # logs that are there, or were named, are not passed over in silence
            page.text("What storage did", "bold")
            page.list(storage_lines.untold_lines(trace, many=figures is None))
        return
    page.text("What storage did", "bold")
    placement = figures.placement
    if placement is not None and report.trace is not None:
        page.list(
            storage_lines.coverage_lines(placement, report.trace)
            + storage_lines.clock_lines(placement, report.who)
        )
    elif report.trace is not None:
        page.list([*report.trace.refused, *report.trace.notes])
    page.table(storage_tables.byte_table(figures))
    page.list(storage_lines.gap_lines(figures.rows))
    if figures.stages:
        page.table(storage_tables.storage_stage_table(figures.stages))
    costs = storage_lines.wait_line(figures)
    if costs is not None:
        page.text(costs, "bold")
    if figures.costliest:
        page.table(storage_tables.cost_table(figures.costliest))
    if figures.access is not None:
        page.table(storage_tables.size_table(figures.access))
        page.list(storage_lines.access_lines(figures.access, figures.sanity))


def _next(page: _Page, reports: Sequence[RunReport]) -> None:
    steps = next_steps(reports)
    if steps:
        page.text("Next", "bold")
    for step in steps:
        page.text(f"{step.reason}{':' if step.command else '.'}", indent=INDENT)
        if step.command:
            page.command(step.command)


class _Page:
    """A console whose lines are never broken inside a figure or a command."""

    def __init__(self, file: TextIO | None) -> None:
        console = Console(file=file, highlight=False, markup=False, emoji=False)
        width = min(max(console.width, NARROWEST), WIDEST)
        self._console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)

    def text(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Print a sentence, wrapped between its words and never inside a quantity."""
        kept = QUANTITY.sub(GLUE, text)
        for line in textwrap.wrap(
            kept,
            self._console.width - indent,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            plain = " " * indent + line.replace(GLUE, " ")
            self._console.print(self._safe(plain, style), soft_wrap=True)

    def heading(self, text: str) -> None:
        self.text(f"== {text} ==", "bold")

    def raw(self, texts: Sequence[str]) -> None:
        """Print lines as they are, spaces included, then a gap."""
        for text in texts:
            self._console.print(self._safe(" " * INDENT + text), soft_wrap=True)
        self.gap()

    def gap(self) -> None:
        self._console.print()

    def list(self, texts: Sequence[str]) -> None:
        """Print lines that belong together, then a gap; nothing at all for none."""
        for text in texts:
            self.text(text, indent=INDENT)
        if texts:
            self.gap()

    def command(self, text: str) -> None:
        """Print a line to copy, however long."""
        self._console.print(self._safe(f"    {text}", "cyan"), soft_wrap=True)

    def verdict(self, report: RunReport, *, named: bool = False) -> None:
        name = f"{report.facts.label}: " if named else ""
        colour = COLOURS.get(report.diagnosis.verdict, "bold")
        self.text(name + verdict_sentence(report.diagnosis), colour)

    def table(self, table: TextTable) -> None:
        """Draw a table, with its columns closer together where it would not fit otherwise."""
        self.text(table.title, "bold")
        drawn = self._drawn(table, gap=1)
        if self._console.measure(drawn).maximum + INDENT > self._console.width:
            drawn = self._drawn(table, gap=0)
        self._console.print(Padding(drawn, (0, 0, 0, INDENT), expand=False))
        self.gap()

    def _drawn(self, table: TextTable, *, gap: int) -> Table:
        columns = [
            Column(self._safe(heading, "dim"), justify="right", no_wrap=True)
            for heading in table.columns[1:]
        ]
        first = Column(self._safe(table.columns[0], "dim"), overflow="fold")
        drawn = Table(
            first, *columns, box=RULED, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False
        )
        for row in table.rows:
            drawn.add_row(*map(self._safe, row))
        if table.total:
            drawn.add_section()
            drawn.add_row(*map(self._safe, table.total))
        return drawn

    def _safe(self, text: str, style: str = "") -> Text:
        """Return text that the file's encoding can hold; names may hold anything."""
        encoding = self._console.encoding
        return Text(text.encode(encoding, "backslashreplace").decode(encoding), style)
