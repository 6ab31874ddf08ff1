"""What of a tracer's logs is of one run, with the times that iobench itself can tell better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from iobench.storage.traces.contents import ProcessTrace, StorageTrace

__all__ = ["part_of_run"]

AT_BEGIN_NS: Final = 100_000
"""How much later than it was told a tracer that we started may have taken its zero."""
TOO_FAR_NS: Final = 1_000_000_000


def part_of_run(trace: StorageTrace, told: Mapping[str, Any]) -> StorageTrace:
    """Return what is of the run whose ``run.json`` tells this of Darshan.

    A profile of several formats has one log of its main process: files of the others are left
    out. Of the process that began to be traced by iobench the clock's zero is known.
    """
    processes = trace.processes
    begun, folders = told.get("begun"), told.get("folders")
    if isinstance(begun, Mapping) and isinstance(begun.get("wall_ns"), int):
        processes = tuple(
            _from_zero(each, begun["wall_ns"]) if each.pid == begun.get("pid") else each
            for each in processes
        )
    if isinstance(folders, Mapping):
        own, others = (
            [PurePath(text) for text in folders.get(name, ()) if isinstance(text, str)]
            for name in ("own", "others")
        )
        processes = tuple(_without(each, own, others) for each in processes)
    return replace(trace, processes=processes)


def _from_zero(process: ProcessTrace, wall_ns: int) -> ProcessTrace:
    """Return a process with its times counted from a zero that is known."""
    move_ns = wall_ns - process.start_ns
    if process.start_ns < 0 or abs(move_ns) > TOO_FAR_NS:
        return process
    segments, counters = process.segments.copy(), process.counters.copy()
    segments["start_ns"] += move_ns
    segments["end_ns"] += move_ns
    for name in counters.dtype.names or ():
        if "_first_" in name or "_last_" in name:
            counters[name][counters[name] >= 0] += move_ns
    return replace(
        process,
        start_ns=wall_ns,
        end_ns=process.end_ns + move_ns if process.end_ns >= 0 else -1,
        zero_error_ns=AT_BEGIN_NS,
        segments=segments,
        counters=counters,
    )


def _without(
    process: ProcessTrace, own: Sequence[PurePath], others: Sequence[PurePath]
) -> ProcessTrace:
    """Return a process without the files of other runs: those below one of their folders.

    The folder nearest to a file decides.
    """
    keep = np.array([_is_kept(PurePath(name), own, others) for name in process.files], dtype=bool)
    if keep.all():
        return process
    number = np.cumsum(keep, dtype=np.int32) - 1

    def kept(table: Any) -> Any:
        rows = table[keep[table["file"]]].copy()
        rows["file"] = number[rows["file"]]
        return rows

    return replace(
        process,
        files=tuple(name for name, is_kept in zip(process.files, keep, strict=True) if is_kept),
        segments=kept(process.segments),
        counters=kept(process.counters),
    )


def _is_kept(file: PurePath, own: Sequence[PurePath], others: Sequence[PurePath]) -> bool:
    def depth(folders: Sequence[PurePath]) -> int:
        return max((len(each.parts) for each in folders if file.is_relative_to(each)), default=0)

    return depth(own) >= depth(others)
