"""The sections that only scripts have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bytes,
    Column,
    Count,
    Duration,
    Section,
    Share,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import Exposure, LoaderExposure
    from iobench.analysis.processes import ProcessWork
    from iobench.report.document import Cell

MOST_LOADERS: Final = 16


def _share(part_ns: int, whole_ns: int) -> Cell:
    return Share(part_ns / whole_ns) if whole_ns else NOT_APPLICABLE


def loaders_section(exposure: Exposure) -> Section:
    """Return one row for each loader: what it is, and what of the wait was for it."""
    longest = sorted(exposure.loaders, key=lambda each: -each.wait_ns)[:MOST_LOADERS]
    rows = [each for each in exposure.loaders if each in longest]
    rest = f"The {len(rows)} loaders waited for longest, of {len(exposure.loaders)}."
    return Section(
        "loaders",
        "Loaders",
        (
            Table(
                "",
                (
                    *(Column("loader"), Column("class"), Column("workers")),
                    *(Column("batch size"), Column("rounds"), Column("batches")),
                    *(Column("wait", "time"), Column("share of wait")),
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
    """Return what each process did, where nothing was waited for; nothing where there is none."""
    tables = tuple(_process_table(each) for each in processes if each.stages)
    if not tables:
        return None
    return Section("processes", "Work of each process", tables, is_folded=True)


def _process_table(process: ProcessWork) -> Table:
    return Table(
        f"{process.process} (process {process.pid}), {units.duration(process.wall_ns)}",
        (
            *(Column("stage"), Column("busy", "time"), Column("output")),
            *(Column("CPU time"), Column("spans")),
        ),
        tuple(
            (
                stage_title(row.stage),
                Duration(row.busy_ns),
                Bytes(row.nbytes),
                Duration(row.cpu_ns),
                Count(row.n_spans),
            )
            for row in process.stages
        ),
    )
