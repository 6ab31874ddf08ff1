"""The sections that only scripts and jobs of several training processes have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import script_lines, units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bytes,
    Column,
    Count,
    Duration,
    HeatMap,
    Section,
    Share,
    Table,
    sentences,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.figures import Exposure, LoaderExposure
    from iobench.analysis.processes import ProcessWork
    from iobench.analysis.rank_figures import JobExposure, RankExposure
    from iobench.report.document import Cell
    from iobench.report.run_report import RunReport

__all__ = ["job_section", "loaders_section", "processes_section"]

MOST_RANKS: Final = 16
MOST_HEAT_RANKS: Final = 256
MOST_LOADERS: Final = 16


def job_section(job: JobExposure, reports: Sequence[RunReport]) -> Section:
    """Return what a job waited for, rank by rank."""
    return Section(
        "job",
        "All training processes",
        (
            *sentences(script_lines.job_lines(job, reports)),
            *sentences(script_lines.missing_rank_lines(job), "caution"),
            *_heat_map(job),
            *_rank_table(job),
        ),
    )


def _rank_table(job: JobExposure) -> tuple[Table, ...]:
    """Return the ranks that wait longest, and how many more there are."""
    shown = _slowest(job, MOST_RANKS)
    if not shown:
        return ()
    some = any(each.comm_ns is not None for each in job.ranks)
    rest = f", the {len(shown)} that wait longest of {len(job.ranks)}"
    comm = (Column("comm", "time"), Column("peer input wait", "time")) if some else ()
    return (
        Table(
            f"Ranks{rest if len(job.ranks) > len(shown) else ''}",
            (
                *(Column("rank"), Column("host"), Column("batches"), Column("wait", "time")),
                *(Column("exposed"), Column("last in steps"), Column("alone", "time"), *comm),
            ),
            tuple(
                (
                    str(each.rank),
                    each.host or units.UNKNOWN,
                    Count(each.n_batches),
                    Duration(each.wait_ns),
                    _share(each.wait_ns, each.wall_ns),
                    Count(each.n_last),
                    Duration(each.exposed_ns),
                    *((Duration(each.comm_ns), Duration(each.peer_input_wait_ns)) if some else ()),
                )
                for each in shown
            ),
        ),
    )


def _heat_map(job: JobExposure) -> tuple[HeatMap, ...]:
    """Return rank by time: how much of each bin was waited."""
    if not job.wall_ns or not job.bin_ns or not job.ranks:
        return ()
    place = {each.rank: index for index, each in enumerate(job.ranks)}
    shown = sorted(each.rank for each in _slowest(job, MOST_HEAT_RANKS))
    return (
        HeatMap(
            "Waiting by rank and time, from blank (not at all) to full (all of it); a column is "
            f"{units.duration(job.bin_ns)} of {units.duration(job.wall_ns)}",
            tuple(map(str, shown)),
            tuple(
                tuple(value / job.bin_ns for value in job.matrix_ns[place[rank]]) for rank in shown
            ),
            job.bin_ns,
        ),
    )


def _slowest(job: JobExposure, most: int) -> list[RankExposure]:
    return sorted(job.ranks, key=lambda each: (-each.wait_ns, each.rank))[:most]


def _share(part_ns: int, whole_ns: int) -> Cell:
    return Share(part_ns / whole_ns) if whole_ns else NOT_APPLICABLE


def loaders_section(exposure: Exposure) -> Section:
    """Return one row for each loader: what it is, and what of the wait was for it."""
    longest = sorted(exposure.loaders, key=lambda each: -each.wait_ns)[:MOST_LOADERS]
    rows = [each for each in exposure.loaders if each in longest]
    rest = f"The {len(rows)} waited for longest of {len(exposure.loaders)}."
    return Section(
        "loaders",
        "Loaders",
        (
            Table(
                "",
                (
                    *(Column("loader"), Column("class"), Column("workers")),
                    *(Column("batch size"), Column("rounds"), Column("batches")),
                    *(Column("wait", "time"), Column("of the wait")),
                ),
                tuple(_loader_row(each, exposure.whole.wait_ns) for each in rows),
                total=(
                    *("all", "", "", "", ""),
                    Count(exposure.whole.n_batches),
                    Duration(exposure.whole.wait_ns),
                    "",
                ),
                note=rest if len(rows) < len(exposure.loaders) else "",
            ),
        ),
    )


def _loader_row(each: LoaderExposure, wait_ns: int) -> tuple[Cell, ...]:
    role = f" ({each.role})" if each.role else ""
    number = units.UNKNOWN if each.number is None else each.number
    with_threads = each.threads and not each.workers
    return (
        f"{number}: {each.name or units.UNKNOWN}{role}",
        each.kind.rpartition(".")[2] or units.UNKNOWN,
        Count(each.threads, "{} threads") if with_threads else Count(each.workers),
        Count(each.batch_size),
        Count(each.n_rounds),
        Count(each.n_batches),
        Duration(each.wait_ns),
        _share(each.wait_ns, wait_ns),
    )


def processes_section(processes: Sequence[ProcessWork]) -> Section | None:
    """Return what each process did, where nobody waited; nothing where there is none."""
    tables = tuple(_process_table(each) for each in processes if each.stages)
    if not tables:
        return None
    return Section("processes", "Processes, by what they did", tables, is_folded=True)


def _process_table(process: ProcessWork) -> Table:
    return Table(
        f"{process.process} (process {process.pid}), {units.duration(process.wall_ns)}",
        (
            *(Column("stage"), Column("busy", "time"), Column("handed on")),
            *(Column("on a CPU"), Column("spans")),
        ),
        tuple(
            (
                row.stage,
                Duration(row.busy_ns),
                Bytes(row.nbytes),
                Duration(row.cpu_ns),
                Count(row.n_spans),
            )
            for row in process.stages
        ),
    )
