"""What storage did, as plain values; see `to_json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report.units import seconds

if TYPE_CHECKING:
    from iobench.analysis.placement.placed_calls import (
        AccessFigures,
        ByteRow,
        Placement,
        ReadCost,
        SanityLine,
        StageStorage,
        StorageFigures,
    )
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["storage_to_json"]


def storage_to_json(
    figures: StorageFigures | None, names: tuple[str, ...], trace: StorageTrace | None
) -> dict[str, Any] | None:
    """Return what storage did as plain values, unrounded; unknown is null.

    Parameters
    ----------
    figures : StorageFigures or None
    names : tuple of str
        Of the profile's processes.
    trace : StorageTrace or None
    """
    if figures is None:
        return None
    return {
        "traced": None
        if figures.placement is None
        else _placement(figures.placement, names, trace),
        "bytes": [_row(row) for row in figures.rows],
        "stages": [_stage(row) for row in figures.stages],
        "costliest_reads": [_read(read) for read in figures.costliest],
        "access": None if figures.access is None else _access(figures.access),
        "sanity": None if figures.sanity is None else _sanity(figures.sanity),
    }


def _placement(
    placement: Placement, names: tuple[str, ...], trace: StorageTrace | None
) -> dict[str, Any]:
    seen = placement.coverage
    return {
        "complete": seen.complete,
        "logs_expected": seen.n_expected,
        "logs_found": seen.n_found,
        "missing": list(seen.missing),
        "partial": list(seen.partial),
        "files_read": seen.n_files_read,
        "files_seen": seen.n_files_seen,
        "segments": seen.n_segments,
        "segments_placed": seen.n_placed,
        "segments_stray": seen.n_stray,
        "stray_nbytes": seen.stray_nbytes,
        "extra_logs": seen.n_extra_logs,
        "problems": list(seen.problems),
        "refused": [] if trace is None else list(trace.refused),
        "notes": [] if trace is None else list(trace.notes),
        "clocks": [
            {
                "process": names[each.process],
                "log": None if trace is None else str(trace.processes[each.trace].path),
                "offset_ns": each.offset_ns,
                "low_ns": each.low_ns,
                "high_ns": each.high_ns,
                "matched": each.matched,
                "known": each.is_clock_known,
                "reason": each.reason or None,
            }
            for each in placement.processes
            if each.trace >= 0
        ],
    }


def _row(row: ByteRow) -> dict[str, Any]:
    return {
        "scope": row.scope,
        "name": row.name,
        "asked_nbytes": row.asked,
        "posix_nbytes": row.posix,
        "stdio_nbytes": row.stdio,
        "segments_nbytes": row.segments,
        "rchar_nbytes": row.rchar,
        "device_nbytes": row.device,
        "gaps": [
            {"name": gap.name or None, "nbytes": gap.nbytes, "between": list(gap.between)}
            for gap in row.gaps
        ],
        "settled": row.settled,
    }


def _stage(row: StageStorage) -> dict[str, Any]:
    return {
        "stage": row.stage,
        "busy_s": seconds(row.busy_ns),
        "storage_s": _seconds(row.storage_ns),
        "rest_s": _seconds(row.rest_ns),
        "rest_is_bound": row.rest_is_bound,
        "off_cpu_s": _seconds(row.off_cpu_ns),
        "nbytes": row.nbytes,
        "verdict": row.verdict,
        "processes": [
            {
                "process": each.process,
                "busy_s": seconds(each.busy_ns),
                "storage_s": _seconds(each.storage_ns),
            }
            for each in row.processes
        ],
    }


def _read(read: ReadCost) -> dict[str, Any]:
    return {
        "process": read.process,
        "file": read.file or None,
        "offset": read.offset if read.offset >= 0 else None,
        "nbytes": read.nbytes if read.nbytes >= 0 else None,
        "start_ns": read.start_ns,
        "duration_s": seconds(read.duration_ns),
        "exposed_s": seconds(read.exposed_ns),
    }


def _access(access: AccessFigures) -> dict[str, Any]:
    return {
        "reads": access.n_reads,
        "of_segments": access.of_segments,
        "size_edges": list(access.size_edges),
        "size_counts": list(access.size_counts),
        "size_nbytes": list(access.size_nbytes),
        "consecutive_fraction": access.consecutive_fraction,
        "sequential_fraction": access.sequential_fraction,
        "random_fraction": access.random_fraction,
        "stride": access.stride,
        "small_read_fraction": access.small_read_fraction,
        "reread_factor": access.reread_factor,
        "read_per_used": access.read_per_used,
        "bytes_per_s": dict(access.bandwidths),
        "top_fraction": access.top_fraction,
        "top_exposed_fraction": access.top_exposed_fraction,
    }


def _sanity(sanity: SanityLine) -> dict[str, Any]:
    return {
        "epoch_nbytes": sanity.nbytes,
        "processes": sanity.n_processes,
        "bytes_per_s": sanity.bandwidth,
        "reading_s": sanity.estimated_s,
        "epoch_s": sanity.epoch_s,
        "epoch_wait_s": sanity.wait_s,
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else seconds(ns)
