"""What ``iobench limits`` says of a probe of storage, as a title and what stands below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Quantity,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.units import (
    count,
    duration,
    moment,
    nbytes,
)

if TYPE_CHECKING:
    from iobench.report.document import Cell
    from iobench.storage.probe_figures import ReadFigures, StorageLimits


def limits_document(limits: StorageLimits) -> tuple[str, tuple[Section, ...]]:
    """Return the title, and what the storage can do."""
    mount = f" at {limits.mount}" if limits.mount else ""
    title = f"{limits.path}: {limits.file_system}{mount}; host {limits.host}"
    files = "1 file" if limits.n_files == 1 else f"{count(limits.n_files)} files"
    like = f", as {limits.like}" if limits.like else ""
    about = Sentence(
        f"Random reads of {nbytes(limits.request_nbytes)}{like}; {files}, "
        f"{nbytes(limits.files_nbytes)}; {moment(limits.wall_ns)}"
    )
    took = f"Took {duration(limits.spent_ns)}, wrote nothing."
    refused = [f"{each.way}: {each.refused}" for each in limits.reads if each.refused]
    end = sentences([*refused, took])
    return title, (Section("about", "", (about,)), Section("reads", "", (_reads(limits), *end)))


def _reads(limits: StorageLimits) -> Table:
    times = (Column(name, "time") for name in ("median", "90 %", "99 %", "longest"))
    return Table(
        "",
        (
            *map(Column, ("reads", "threads", "served by", "bandwidth", "reads/s")),
            *times,
        ),
        tuple(map(_row, limits.reads)),
    )


def _row(figures: ReadFigures) -> tuple[Cell, ...]:
    named = (figures.way, Quantity(figures.threads, "count"))
    if figures.refused:
        return (*named, *[NOT_APPLICABLE] * 7)
    return (
        *named,
        figures.served_by,
        Quantity(figures.bytes_per_s, "B/s"),
        Quantity(figures.reads_per_s, "samples/s"),
        *(
            (Quantity(each, "ns") for each in figures.latency_ns)
            if figures.latency_ns
            else [NOT_APPLICABLE] * 4
        ),
    )
