"""The sentences about what storage did; what was covered comes before any figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.placement.placed_calls import (
        AccessFigures,
        ByteRow,
        Placement,
        SanityLine,
        StorageFigures,
        TraceCoverage,
    )
    from iobench.profiles.contents import Process
    from iobench.storage.traces.contents import StorageTrace

PUBLISHED_RATES: Final = (1.46e9, 8.08e9)
PUBLISHED_IN: Final = "MLPerf HPC's table 9 (CosmoFlow and DeepCAM on five machines)"
"""Farrell et al., MLPerf HPC: A Holistic Benchmark Suite, 2021: bandwidth of one worker."""

__all__ = [
    "access_lines",
    "clock_lines",
    "coverage_lines",
    "gap_lines",
    "gaps_word",
    "untold_lines",
    "wait_line",
]


def coverage_lines(placement: Placement, trace: StorageTrace) -> list[str]:
    """Return how much of the run a tracer saw, what is missing, and what to do about it."""
    seen = placement.coverage
    tracers = " and ".join(dict.fromkeys(each.tracer for each in trace.processes)) or "Darshan"
    lines = [
        f"{tracers}: {_logs(seen)}; {_files(seen)}; "
        f"{units.count(seen.n_placed)} of {units.count(seen.n_segments)} segments placed in stages."
    ]
    if not seen.complete:
        lines.append("What these logs count is not all that was read.")
    if seen.missing:
        lines.append(f"No log of: {', '.join(seen.missing)}.")
    if seen.partial:
        lines.append(
            f"Incomplete, the tracer ran out of room: {'; '.join(seen.partial)}. "
            "Raise MAX_RECORDS and MODMEM, or let iobench set them: --darshan auto."
        )
    if seen.n_stray:
        lines.append(
            f"{units.count(seen.n_stray)} stray segments of {units.nbytes(seen.stray_nbytes)} in "
            "all, credited to the wrong file, count nowhere."
        )
    if seen.n_extra_logs:
        lines.append(f"Logs of other processes: {units.count(seen.n_extra_logs)}.")
    return [*lines, *dict.fromkeys((*seen.problems, *trace.refused, *trace.notes))]


def untold_lines(trace: StorageTrace, *, many: bool) -> list[str]:
    """Return what is said of logs where no figures are made of them."""
    why = "the run counted no bytes that they could be held against"
    if many:
        why = "jobs of so many training processes are reported without; --lanes draws the first"
    found = units.count(len(trace.processes))
    return [f"Logs of {found} processes, not evaluated: {why}.", *trace.refused, *trace.notes]


def _logs(seen: TraceCoverage) -> str:
    return f"logs of {units.count(seen.n_found)} of {units.count(seen.n_expected)} processes"


def _files(seen: TraceCoverage) -> str:
    if seen.n_files_read is None:
        return f"{units.count(seen.n_files_seen)} files seen"
    return f"{units.count(seen.n_files_seen)} of {units.count(seen.n_files_read)} files seen"


def clock_lines(placement: Placement, processes: Sequence[Process]) -> list[str]:
    """Return by how much the tracer's clocks were moved, and how well that is known."""
    matched, rest = [], []
    for each in placement.processes:
        if each.trace < 0 or not len(each.segments):
            continue
        name = processes[each.process].name
        offset, width = units.duration(each.offset_ns), units.duration(each.high_ns - each.low_ns)
        if each.matched:
            matched.append(f"{name} {offset} (window {width})")
        elif each.reason and not each.is_clock_known:
            rest.append(f"{name} ({each.reason}; within {width})")
    lines = []
    if matched:
        lines.append(f"Clocks moved so that reads lie in their stages: {', '.join(matched)}.")
    if rest:
        lines.append(f"Clocks that could not be matched: {', '.join(rest)}.")
    return lines


def gap_lines(rows: Sequence[ByteRow]) -> list[str]:
    """Return why the columns of the run's row differ."""
    lines = []
    for row in rows:
        if row.scope != "run":
            continue
        for gap in row.gaps:
            first, second = gap.between
            lines.append(
                f"{units.nbytes(abs(gap.nbytes))} {'more' if gap.nbytes >= 0 else 'fewer'} in "
                f"{first} than in {second}: {gap.name or 'nothing explains it'}."
            )
    return lines


def gaps_word(names: Sequence[str | None], *, settled: bool) -> str:
    """Return what a table says of a row's gaps, given their names: of those without one first."""
    unnamed = sum(not name for name in names)
    if unnamed:
        return f"{units.count(unnamed)} unexplained"
    if not settled:
        return "unseen"
    return "explained" if names else "none"


def wait_line(figures: StorageFigures) -> str | None:
    """Return which share of the reads cost which share of the wait for reading."""
    access = figures.access
    if access is None or access.top_fraction is None or access.top_exposed_fraction is None:
        return None
    return (
        f"{units.fraction(access.top_fraction)} of the reads cost "
        f"{units.fraction(access.top_exposed_fraction)} of the wait for reads."
    )


def _order(access: AccessFigures) -> str:
    """Return where reads of a file lie after the one before; nothing where each has but one."""
    if access.consecutive_fraction is None:
        return ""
    order = ", ".join(
        f"{units.fraction(share)} {name}"
        for share, name in (
            (access.consecutive_fraction, "where the last one ended"),
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
    says = "room to hide it" if sanity.fits else "no room to hide it"
    number = sanity.n_processes
    by = f"{units.count(number)} processes or threads" if number > 1 else "one process or thread"
    each = " each" if number > 1 else ""
    return (
        f"{units.nbytes(sanity.nbytes)} an epoch, read by {by} at "
        f"{units.byte_rate(sanity.bandwidth)}{each}, is {takes} of reading; an epoch took {took}, "
        f"{rest} of it without waiting: {says}."
    )


def access_lines(access: AccessFigures, sanity: SanityLine | None) -> list[str]:
    """Return in what order and sizes was read, and how much for each byte used."""
    what = "segments" if access.of_segments else "reads of stages"
    lines = [f"{units.count(access.n_reads)} {what}{_order(access)}."]
    if access.stride is not None:
        lines.append(f"Most reads lie {units.nbytes(access.stride)} after the last one: strided.")
    lines.append(
        f"Reads below 64 KiB: {units.fraction(access.small_read_fraction)}. "
        f"Bytes read for each distinct one: {units.ratio(access.reread_factor)}, "
        f"for each byte of the samples: {units.ratio(access.read_per_used)}."
    )
    if access.bandwidths:
        rates = ", ".join(f"{name} {units.byte_rate(rate)}" for name, rate in access.bandwidths[:8])
        low, high = map(units.byte_rate, PUBLISHED_RATES)
        lines.append(f"While reading: {rates}; in {PUBLISHED_IN} {low} to {high} a process.")
    if sanity is not None:
        lines.append(_sanity(sanity))
    return lines
