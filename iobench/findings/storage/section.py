"""Storage: bytes by who counted them, storage inside stages, sizes and order of reads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.storage.figures import StorageFigures, storage_of
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import (
    Bytes,
    Column,
    Count,
    Duration,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.wrapping import short_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.placement.placed_calls import TraceCoverage
    from iobench.findings.storage.byte_rows import ByteRow
    from iobench.findings.storage.figures import LogClock, SanityLine, TracedStorage
    from iobench.findings.storage.read_sizes import AccessFigures
    from iobench.findings.storage.stage_storage import StageStorage
    from iobench.report.document import Block, Cell

MOST: Final = {"run": 1, "process": 8, "file": 8}
"""Rows shown of each scope; JSON has them all."""
SHOWN_FRACTION: Final = 0.01
NARROW_NAME: Final = 20
TITLE: Final = "Storage"
COUNTED: Final = {
    "requested": "requested",
    "darshan": "Darshan",
    "read_calls": "read calls",
    "device": "device",
}
SUBJECTS: Final = {
    "darshan": "Darshan counted",
    "read_calls": "Read calls returned",
    "device": "The device delivered",
}
OBJECTS: Final = {
    "requested": "the stages requested",
    "darshan": "Darshan counted",
    "read_calls": "read calls returned",
}
PUBLISHED_RATES: Final = (1.46e9, 8.08e9)
PUBLISHED_IN: Final = "MLPerf HPC's table 9 (CosmoFlow and DeepCAM on five machines)"
"""Farrell et al., MLPerf HPC: A Holistic Benchmark Suite, 2021: bandwidth of one worker."""


def storage_section(figures: StorageFigures) -> Section | None:
    """Return what storage did: how much of it is known, then bytes, stages and single reads."""
    if not figures.rows:
        # Logs that are there, or were named, are not passed over in silence.
        untold = sentences(figures.untold)
        return Section("storage", TITLE, untold, is_folded=True) if untold else None
    costs = _wait_line(figures.access)
    return Section(
        "storage",
        TITLE,
        (
            *(() if figures.traced is None else sentences(_covered(figures.traced))),
            _byte_table(figures),
            *sentences(_difference_lines(figures.rows)),
            *((_stage_table(figures.stages),) if figures.stages else ()),
            *((Sentence(costs, "strong"),) if costs is not None else ()),
            *(_sizes(figures.access, figures.sanity) if figures.access is not None else ()),
        ),
        is_folded=True,
    )


def _covered(traced: TracedStorage) -> Iterator[str]:
    """Yield how much of the run a tracer saw, what is missing, and what to do about it."""
    seen = traced.coverage
    yield (
        f"Darshan: logs of {units.count(seen.n_found)} of {units.count(seen.n_expected)} "
        f"processes; {_files(seen)}; "
        f"{units.count(seen.n_placed)} of {units.count(seen.n_segments)} segments placed in stages."
    )
    if not seen.complete:
        yield "These logs do not cover everything that was read."
    if seen.missing:
        yield f"No log of: {', '.join(seen.missing)}."
    if seen.partial:
        yield (
            f"Incomplete because the tracer ran out of memory: {'; '.join(seen.partial)}. Raise "
            "MAX_RECORDS and MODMEM, or let iobench set them: --darshan auto."
        )
    if seen.n_stray:
        yield (
            f"{units.count(seen.n_stray)} stray segments ({units.nbytes(seen.stray_nbytes)} in "
            "total) are credited to the wrong file and left out."
        )
    if (others := seen.others) is not None:
        yield (
            f"Totals of logs without a marker of this run, which are placed in no stage: "
            f"{units.count(others.n_logs)} logs, {units.count(others.n_files)} files, "
            f"{units.nbytes(others.posix_nbytes)} read by POSIX calls and "
            f"{units.nbytes(others.stdio_nbytes)} by STDIO."
        )
    yield from dict.fromkeys((*seen.problems, *traced.notes))
    if traced.clocks:
        yield f"Clocks aligned by markers: {', '.join(map(_clock, traced.clocks))}."


def _clock(clock: LogClock) -> str:
    error = units.duration((clock.high_ns - clock.low_ns) // 2)
    return f"{clock.process} {units.duration(clock.offset_ns)} (within {error})"


def _files(seen: TraceCoverage) -> str:
    of = "" if seen.n_files_read is None else f" of {units.count(seen.n_files_read)}"
    return f"{units.count(seen.n_files_seen)}{of} files seen"


def _difference_lines(rows: Sequence[ByteRow]) -> Iterator[str]:
    """Yield how the columns of the run's row differ: with a reason, or by 1 % at least."""
    for row in (row for row in rows if row.scope == "run"):
        for each in row.differences:
            first, second = each.between
            largest = max(getattr(row, first), getattr(row, second))
            if each.reason or abs(each.nbytes) >= SHOWN_FRACTION * largest:
                more = "more" if each.nbytes > 0 else "less"
                reason = f": {each.reason}" if each.reason else ""
                amount = units.nbytes(abs(each.nbytes))
                yield f"{SUBJECTS[first]} {amount} {more} than {OBJECTS[second]}{reason}."


def _wait_line(access: AccessFigures | None) -> str | None:
    """Return which share of the reads cost which share of the wait for reading."""
    if access is None or access.top_fraction is None or access.top_exposed_fraction is None:
        return None
    return (
        f"{units.fraction(access.top_fraction)} of the reads caused "
        f"{units.fraction(access.top_exposed_fraction)} of the wait for reads."
    )


def _byte_table(figures: StorageFigures) -> Table:
    """Return bytes read by the run, its processes and files, one column for each who counted."""
    columns = [name for name in COUNTED if name != "darshan" or figures.traced is not None]
    shown = [
        row
        for scope, most in MOST.items()
        for row in [row for row in figures.rows if row.scope == scope][:most]
    ]
    processes = Counter(row.name.partition(" (")[0] for row in figures.rows)
    return Table(
        f"Bytes read, by counter{_left_out(figures.rows)}",
        (Column(""), *(Column(COUNTED[name]) for name in columns)),
        tuple(
            (_row_name(row, processes), *(Bytes(getattr(row, name)) for name in columns))
            for row in shown
        ),
    )


def _left_out(rows: Sequence[ByteRow]) -> str:
    parts = [
        f"{most} of {units.count(number)} {scope}{ending}"
        for scope, ending in (("process", "es"), ("file", "s"))
        if (number := sum(row.scope == scope for row in rows)) > (most := MOST[scope])
    ]
    return f": {' and '.join(parts)}" if parts else ""


def _row_name(row: ByteRow, processes: Counter[str]) -> str:
    """Return a file's name cut, a process's without its number where one has that name."""
    if row.scope == "file":
        return short_path(row.name, NARROW_NAME)
    name = row.name.partition(" (")[0]
    return name if processes[name] < 2 else row.name


def _stage_table(stages: Sequence[StageStorage]) -> Table:
    """Return how much of each stage that read was storage, and where its bytes came from.

    Without a tracer nobody knows what of a stage was storage: then there are no such columns.
    """
    traced = any(row.storage_ns is not None for row in stages)
    storage = (Column("storage", "time"), Column("rest", "time")) if traced else ()
    return Table(
        "Storage inside the stages that read" if traced else "Stages that read",
        (
            *(Column("stage"), Column("busy", "time"), *storage),
            *(Column("off-CPU"), Column("output"), Column("bytes are")),
        ),
        tuple(line for row in stages for line in _stage_rows(row, traced=traced)),
    )


def _stage_rows(row: StageStorage, *, traced: bool) -> Iterator[tuple[Cell, ...]]:
    """Yield a stage, and where a tracer saw several processes do it, each of them below it."""
    rest = "<={}" if row.rest_is_bound else "{}"
    split = (Duration(row.storage_ns), Duration(row.rest_ns, rest)) if traced else ()
    others = (Duration(row.off_cpu_ns), Bytes(row.nbytes), row.verdict)
    yield stage_title(row.stage), Duration(row.busy_ns), *split, *others
    if traced and 1 < len(row.processes) <= MOST["process"]:
        for each in row.processes:
            rest_ns = None if each.storage_ns is None else each.busy_ns - each.storage_ns
            name = f"  {each.process.partition(' (')[0]}"
            split = (Duration(each.storage_ns), Duration(rest_ns, rest))
            yield name, Duration(each.busy_ns), *split, "", "", ""


def _sizes(access: AccessFigures, sanity: SanityLine | None) -> Iterator[Block]:
    """Yield how many reads were of what size, those no read had left out, and in what order."""
    edges = zip(
        (0, *access.size_edges),
        (*access.size_edges, None),
        access.size_counts,
        access.size_nbytes,
        strict=True,
    )
    rows = tuple(
        (
            f"from {units.power_of_two(low)}" if high is None else f"< {units.power_of_two(high)}",
            Count(number),
            Bytes(nbytes),
        )
        for low, high, number, nbytes in edges
        if number
    )
    if rows:
        columns = (Column("size"), Column("reads"), Column("bytes"))
        yield Table("Reads by size", columns, rows)
    yield from sentences(_access_lines(access, sanity))


def _order(access: AccessFigures) -> str:
    """Return where reads of a file lie after the one before; nothing where each has but one."""
    if access.consecutive_fraction is None:
        return ""
    order = ", ".join(
        f"{units.fraction(share)} {name}"
        for share, name in (
            (access.consecutive_fraction, "where the previous read ended"),
            (access.sequential_fraction, "further on"),
            (access.random_fraction, "elsewhere"),
        )
    )
    return f"; after the first of each file: {order}"


def _sanity(sanity: SanityLine) -> str:
    """Return MLPerf HPC's check: what reading an epoch takes, against what there is beside it."""
    takes, took, rest = (
        units.duration(units.nanoseconds(value))
        for value in (sanity.estimated_s, sanity.epoch_s, sanity.epoch_s - sanity.wait_s)
    )
    says = "it can be hidden" if sanity.fits else "it cannot be hidden"
    number = sanity.n_processes
    by = f"{units.count(number)} processes or threads" if number > 1 else "one process or thread"
    each = " each" if number > 1 else ""
    return (
        f"{units.nbytes(sanity.nbytes)} per epoch, read by {by} at "
        f"{units.byte_rate(sanity.bytes_per_s)}{each}, is {takes} of reading; an epoch took "
        f"{took}, {rest} of it without waiting: {says}."
    )


def _access_lines(access: AccessFigures, sanity: SanityLine | None) -> list[str]:
    """Return in what order and sizes was read, and how much for each byte used."""
    what = "segments" if access.of_segments else "reads of stages"
    lines = [f"{units.count(access.n_reads)} {what}{_order(access)}."]
    lines.append(
        f"Reads below 64 KiB: {units.fraction(access.small_read_fraction)}. Bytes read per "
        f"distinct byte: {units.ratio(access.reread_factor)}; per byte of the samples: "
        f"{units.ratio(access.read_per_used)}."
    )
    if access.bytes_per_s:
        known = list(access.bytes_per_s.items())[:8]
        rates = ", ".join(f"{name} {units.byte_rate(rate)}" for name, rate in known)
        low, high = map(units.byte_rate, PUBLISHED_RATES)
        lines.append(f"While reading: {rates}; in {PUBLISHED_IN} {low} to {high} a process.")
    if sanity is not None:
        lines.append(_sanity(sanity))
    return lines


FINDING: Final = Finding(name="storage", order=100, figures=storage_of, section=storage_section)
"""Storage, as the entry point names it."""
