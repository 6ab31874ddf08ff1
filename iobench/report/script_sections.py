"""The sections that only scripts have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import NOT_APPLICABLE, Column, Quantity, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import Exposure, LoaderExposure
    from iobench.analysis.processes import ProcessWork
    from iobench.report.document import Cell

MOST_LOADERS: Final = 16


def _share(part_ns: int, whole_ns: int) -> Cell:
    return Quantity(part_ns / whole_ns, "share") if whole_ns else NOT_APPLICABLE


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
                    Quantity(exposure.whole.n_batches, "count"),
                    Quantity(exposure.whole.wait_ns, "ns"),
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
        Quantity(each.threads, "count", "{} threads")
        if with_threads
        else Quantity(each.workers, "count"),
        Quantity(each.batch_size, "count"),
        Quantity(each.n_rounds, "count"),
        Quantity(each.n_batches, "count"),
        Quantity(each.wait_ns, "ns"),
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
                Quantity(row.busy_ns, "ns"),
                Quantity(row.nbytes, "B"),
                Quantity(row.cpu_ns, "ns"),
                Quantity(row.n_spans, "count"),
            )
            for row in process.stages
        ),
    )
