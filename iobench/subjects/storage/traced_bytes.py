"""What a tracer saw of each file in one process, in bytes and calls."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.frozen import frozen
from iobench.subjects.storage.gaps import Known, summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.placement.file_names import NamedFiles
    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.storage.storage_trace import ProcessTrace

SMALL_NBYTES: Final = 8192
"""Reads of tables inside a file are smaller."""
SNIFFED_NBYTES: Final = 4 << 20
"""The netCDF library reads so much of a file at every open to recognise its format."""
NETCDF: Final = (".nc", ".nc4", ".cdf", ".h5", ".hdf5")
"""What that library opens."""
DESCRIBED: Final = (*NETCDF, ".he5", ".hdf", ".zip")
"""Formats with tables of their own between the data."""
TABLES: Final = frozenset({".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json"})
"""Files that are nothing else."""
SEGMENTS: Final = "DXT_POSIX"


@frozen
class TracerModules:
    """Which columns a tracer's log of a process can fill.

    Parameters
    ----------
    posix, segments : bool
        Whether counters and single segments could be read.
    partial : tuple of str
        Modules of counters that ran out of room.
    """

    posix: bool
    segments: bool
    partial: tuple[str, ...]
    segments_partial: bool


def modules_of(trace: ProcessTrace) -> TracerModules:
    """Return what a trace can tell.

    Darshan's logs have no module for calls that were never made, so that STDIO is known wherever
    POSIX is.
    """
    readable = {each.name for each in trace.modules if not each.problem}
    partial = trace.partial_modules
    return TracerModules(
        posix="POSIX" in readable,
        segments=SEGMENTS in readable,
        partial=tuple(name for name in partial if name not in (SEGMENTS, "HEATMAP")),
        segments_partial=SEGMENTS in partial,
    )


def traced_files(
    trace: ProcessTrace,
    placed: ProcessPlacement,
    names: NamedFiles,
    opens: NDArray[np.bool_],
    reads: NDArray[np.bool_],
) -> dict[str, Known]:
    """Return what a trace has of each file that a stage could have read, by the spans' name of it.

    Files that were only written, or opened and not read, are left out; where spans name what they
    read, so are files that none of them names, unless a read lies in a stage.

    Parameters
    ----------
    placed : ProcessPlacement
        Of this trace.
    opens, reads : ndarray of bool, shape (n_spans,)
        Which spans of the profile open, and which read.
    """

    def by_file(file: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
        total = np.zeros(len(trace.files), np.int64)
        np.add.at(total, file, values)
        return total

    rows = trace.counters
    segments = placed.segments
    nbytes, file = segments["nbytes"], segments["file"]
    own, inside = ~segments["stray"], segments["span"] >= 0
    opening, reading = (np.append(each, False)[segments["span"]] for each in (opens, reads))
    in_open = own & inside & opening
    in_other = own & inside & ~opening & ~reading
    small = own & ~in_open & ~in_other & (nbytes < SMALL_NBYTES)
    columns = {
        ours: by_file(rows["file"], np.maximum(rows[theirs], 0))
        for ours, theirs in (
            *(("posix", "posix_read_nbytes"), ("stdio", "stdio_read_nbytes")),
            *(("posix_reads", "posix_reads"), ("stdio_reads", "stdio_reads")),
            ("mapped", "posix_mmaps"),
        )
    }
    columns |= {
        "segments": by_file(file, nbytes * own),
        "stray": by_file(file, nbytes * ~own),
        "outside": by_file(file, nbytes * (own & ~inside)),
        "elsewhere": by_file(file, nbytes * in_other),
    }
    n_segments, n_inside = by_file(file, own), by_file(file, inside & own)
    in_tables = by_file(file, nbytes * in_open), by_file(file, nbytes * small)
    front = np.full(len(trace.files), -1, np.int64)
    np.maximum.at(front, file[own], (segments["offset"] + nbytes)[own])
    found: defaultdict[str, list[Known]] = defaultdict(list)
    for index, name in enumerate(trace.files):
        known = names.of_file(name)
        seen: dict[str, Any] = {name: int(each[index]) for name, each in columns.items()}
        n_reads = seen["posix_reads"] + seen["stdio_reads"] + n_segments[index]
        if not n_reads or (known is None and not n_inside[index]):
            continue
        tables, few = (int(each[index]) for each in in_tables)
        if name.rpartition("/")[2] in TABLES:
            tables = seen["posix"]
        elif name.lower().endswith(DESCRIBED):
            tables += few
        furthest = int(front[index])
        sniffing = _is_sniffing(name, seen["stdio"], seen["stdio_reads"], furthest)
        mapped = bool(seen.pop("mapped"))
        sniffed = seen["stdio"] if sniffing else 0
        found[known or name].append(
            Known(name, **seen, tables=tables, sniffed=sniffed, front=furthest, mapped=mapped)
        )
    return {name: summed(name, parts) for name, parts in found.items()}


def _is_sniffing(name: str, stdio: int, stdio_reads: int, front: int) -> bool:
    """Tell whether all that STDIO read was the netCDF library's look at the format."""
    if not stdio or not name.lower().endswith(NETCDF):
        return False
    most = stdio_reads * SNIFFED_NBYTES
    if front >= SNIFFED_NBYTES:
        return stdio == most
    return max(front, 1) * stdio_reads <= stdio <= most
