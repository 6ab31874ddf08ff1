"""What ``iobench limits`` says of a probe of storage, as a title and what stands below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from iobench.report.document import (
    NOT_APPLICABLE,
    Block,
    ByteRate,
    Column,
    Count,
    Duration,
    SampleRate,
    Section,
    Sentence,
    Share,
    Table,
    sentences,
)
from iobench.report.units import (
    count,
    duration,
    moment,
    nbytes,
    ratio,
)
from iobench.storage.limit_figures import CACHE

if TYPE_CHECKING:
    from iobench.report.document import Cell
    from iobench.storage.file_systems import FileSystem
    from iobench.storage.limit_figures import ReadFigures, StorageLimits

ENOUGH_READS: Final = 100
WIDE, LONG_NS = 3.0, 1_000_000
"""Storage is said to be uneven from this many times the median on, and no less than so long: what
a busy machine does to short reads is not the storage's."""


def limits_told(limits: StorageLimits, file_system: FileSystem) -> tuple[str, tuple[Section, ...]]:
    """Return the title, and what the storage can do."""
    mount = f" at {limits.mount}" if limits.mount else ""
    reach = "" if limits.reach == "unknown" else f", {limits.reach}"
    title = f"{limits.path}: {limits.file_system}{mount}{reach}; host {limits.host}"
    files = "1 file" if limits.n_files == 1 else f"{count(limits.n_files)} files"
    like = f", as {limits.like}" if limits.like else ""
    about: tuple[Block, ...] = (
        Sentence(file_system.cold),
        Sentence(
            f"Random reads of {nbytes(limits.request_nbytes)}{like}; {files}, "
            f"{nbytes(limits.files_nbytes)}; {moment(limits.wall_ns)}"
        ),
    )
    notes = f" Note: {'; '.join(limits.notes)}." if limits.notes else ""
    took = (
        f"Took {duration(limits.spent_ns)}, read {nbytes(limits.read_nbytes)}, "
        f"wrote nothing.{notes}"
    )
    end = sentences([*_others(limits), took])
    return title, (Section("about", "", about), Section("reads", "", (_reads(limits), *end)))


def _reads(limits: StorageLimits) -> Table:
    times = (Column(name, "time") for name in ("median", "90 %", "99 %", "longest"))
    return Table(
        "",
        (
            *map(Column, ("reads", "threads", "served by", "bandwidth", "reads/s")),
            *times,
            Column("cached before"),
            Column("from storage"),
        ),
        tuple(map(_row, limits.reads)),
    )


def _row(figures: ReadFigures) -> tuple[Cell, ...]:
    named = (figures.way, Count(figures.threads))
    if figures.refused:
        return (*named, *[NOT_APPLICABLE] * 9)
    stored = figures.device_nbytes
    return (
        *named,
        figures.served_by,
        ByteRate(figures.bytes_per_s),
        SampleRate(figures.reads_per_s),
        *(map(Duration, figures.latency_ns) if figures.latency_ns else [NOT_APPLICABLE] * 4),
        Share(figures.resident_fraction),
        Share(None if stored is None or not figures.nbytes else stored / figures.nbytes),
    )


def _others(limits: StorageLimits) -> Iterator[str]:
    """Yield what was refused, and where read times vary."""
    for each in limits.reads:
        if each.refused:
            yield f"{each.way}: {each.refused}"
    spread = max((each for each in limits.reads if _spread(each)), key=_spread, default=None)
    if spread is not None:
        yield (
            f"Read times vary widely: of the {count(spread.n_reads)} reads ({spread.way}) one in a "
            f"hundred took "
            f"{duration(spread.latency_ns[2])} or more, {ratio(_spread(spread))} times the median"
        )


def _spread(figures: ReadFigures) -> float:
    """Return how much longer than the median one read in a hundred took; 0 where that is usual."""
    if figures.n_reads < ENOUGH_READS or figures.served_by == CACHE or not figures.latency_ns:
        return 0.0
    times = figures.latency_ns[2] / max(1, figures.latency_ns[0])
    return times if times >= WIDE and figures.latency_ns[2] >= LONG_NS else 0.0
