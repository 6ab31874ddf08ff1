"""What a tracer saw of each file in one process, in bytes and calls."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.storage.traces.contents import ProcessTrace
    from iobench.subjects.storage.named_files import NamedFiles

__all__ = ["SMALL_NBYTES", "TracedFile", "TracerModules", "modules_of", "traced_files"]

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
SEGMENT_MODULES: Final = ("DXT_POSIX", "DFTRACER")


@dataclass(frozen=True, slots=True)
class TracerModules:
    """Which columns a tracer's log of a process can fill.

    Parameters
    ----------
    posix, segments : bool
        Whether counters and single segments could be read.
    partial : tuple of str
        Modules of counters that ran out of room.
    segments_partial : bool
    """

    posix: bool
    segments: bool
    partial: tuple[str, ...]
    segments_partial: bool


def modules_of(trace: ProcessTrace) -> TracerModules:
    """Return what a trace can tell.

    Darshan's logs have no module for calls that were never made, so that STDIO is known wherever
    POSIX is. DFTracer's counters are sums of its segments.
    """
    readable = {each.name for each in trace.modules if not each.problem}
    partial = trace.partial_modules
    return TracerModules(
        posix=not readable.isdisjoint({"POSIX", "DFTRACER"}),
        segments=not readable.isdisjoint(SEGMENT_MODULES),
        partial=tuple(name for name in partial if name != "DXT_POSIX" and name != "HEATMAP"),
        segments_partial=any(name in partial for name in SEGMENT_MODULES),
    )


@dataclass(frozen=True, slots=True)
class TracedFile:
    """What a tracer saw of a file in one process.

    Parameters
    ----------
    posix, stdio, segments : int
        Bytes read; strays are in ``posix`` and not in ``segments``.
    posix_reads, stdio_reads : int
        Calls.
    stray : int
        Bytes of segments credited to the wrong file.
    outside, elsewhere : int
        Bytes of segments outside all stages, and in stages that hand on nothing that was read; 0
        where nobody knows.
    tables : int
        Bytes of segments in stages that open, and of small ones in stages that read a file whose
        format has tables between the data.
    sniffed : int
        Bytes of ``fread`` that the netCDF library asks for to recognise a format.
    front : int
        Where the furthest segment ends, -1 if there is none.
    mapped : bool
    """

    posix: int = 0
    stdio: int = 0
    segments: int = 0
    posix_reads: int = 0
    stdio_reads: int = 0
    stray: int = 0
    outside: int = 0
    elsewhere: int = 0
    tables: int = 0
    sniffed: int = 0
    front: int = -1
    mapped: bool = False

    @property
    def n_reads(self) -> int:
        """Calls of any sort that read."""
        return self.posix_reads + self.stdio_reads

    @property
    def n_bytes(self) -> int:
        """Bytes by any sort of call."""
        return max(self.posix, self.segments + self.stray) + self.stdio


def traced_files(
    trace: ProcessTrace,
    placed: ProcessPlacement,
    names: NamedFiles,
    opens: NDArray[np.bool_],
    reads: NDArray[np.bool_],
) -> dict[str, TracedFile]:
    """Return what a trace has of each file that a stage could have read, by the spans' name of it.

    Files that were only written, or opened and not read, are left out; where spans name what they
    read, so are files that none of them names, unless a read lies in a stage.

    Parameters
    ----------
    trace : ProcessTrace
    placed : ProcessPlacement
        Of this trace.
    names : NamedFiles
    opens, reads : ndarray of bool, shape (n_spans,)
        Which spans of the profile open, and which read.
    """
    table = _Sums(len(trace.files))
    rows = trace.counters
    for column in ("posix_read_nbytes", "stdio_read_nbytes", "posix_reads", "stdio_reads"):
        table.add(column, rows["file"], np.maximum(rows[column], 0))
    table.add("mapped", rows["file"], np.maximum(rows["posix_mmaps"], 0))
    segments = placed.segments[~placed.segments["write"]]
    of_other, inside = segments["stray"], segments["span"] >= 0
    nbytes, file = segments["nbytes"], segments["file"]
    table.add("segments", file, nbytes * ~of_other)
    table.add("n_segments", file, ~of_other)
    table.add("inside", file, inside & ~of_other)
    table.add("stray", file, nbytes * of_other)
    table.add("outside", file, nbytes * (~of_other & ~inside) * bool(placed.matched))
    opening, reading = (np.append(each, False)[segments["span"]] for each in (opens, reads))
    in_open = inside & opening & ~of_other
    in_other = inside & ~opening & ~reading & ~of_other
    table.add("elsewhere", file, nbytes * in_other)
    table.add("in_open", file, nbytes * in_open)
    small = nbytes < SMALL_NBYTES
    table.add("small", file, nbytes * (~of_other & ~in_open & ~in_other & small))
    front = np.full(len(trace.files), -1, np.int64)
    np.maximum.at(front, file[~of_other], (segments["offset"] + nbytes)[~of_other])
    found: dict[str, TracedFile] = {}
    for index, name in enumerate(trace.files):
        known = names.of_file(name)
        stdio, stdio_reads = table.of("stdio_read_nbytes", index), table.of("stdio_reads", index)
        furthest = int(front[index])
        seen = TracedFile(
            posix=table.of("posix_read_nbytes", index),
            stdio=stdio,
            segments=table.of("segments", index),
            posix_reads=table.of("posix_reads", index),
            stdio_reads=stdio_reads,
            stray=table.of("stray", index),
            outside=table.of("outside", index),
            elsewhere=table.of("elsewhere", index),
            tables=_tables_nbytes(name, table, index),
            sniffed=stdio if _is_sniffing(name, stdio, stdio_reads, furthest) else 0,
            front=furthest,
            mapped=table.of("mapped", index) > 0,
        )
        read = seen.n_reads or table.of("n_segments", index)
        if (known is None and not table.of("inside", index)) or not read:
            continue
        known = known or name
        found[known] = _sum(found[known], seen) if known in found else seen
    return found


def _tables_nbytes(name: str, table: _Sums, index: int) -> int:
    if name.rpartition("/")[2] in TABLES:
        return table.of("posix_read_nbytes", index)
    described = name.lower().endswith(DESCRIBED)
    return table.of("in_open", index) + (table.of("small", index) if described else 0)


def _is_sniffing(name: str, stdio: int, stdio_reads: int, front: int) -> bool:
    """Tell whether all that STDIO read was the netCDF library's look at the format."""
    if not stdio or not name.lower().endswith(NETCDF):
        return False
    most = stdio_reads * SNIFFED_NBYTES
    if front >= SNIFFED_NBYTES:
        return stdio == most
    return max(front, 1) * stdio_reads <= stdio <= most


class _Sums:
    """Named columns of one integer for each file."""

    def __init__(self, n_files: int) -> None:
        self._n_files = n_files
        self._columns: dict[str, Any] = {}

    def add(self, name: str, file: Any, values: Any) -> None:
        """Sum values by file."""
        total = np.zeros(self._n_files, np.int64)
        np.add.at(total, file, values)
        self._columns[name] = total.tolist()

    def of(self, name: str, file: int) -> int:
        """Return one of the sums."""
        return int(self._columns[name][file])


def _sum(one: TracedFile, other: TracedFile) -> TracedFile:
    """Return two files of one store as one."""
    sums: dict[str, Any] = {
        each.name: getattr(one, each.name) + getattr(other, each.name) for each in fields(one)
    }
    sums["front"] = max(one.front, other.front)
    sums["mapped"] = one.mapped or other.mapped
    return TracedFile(**sums)
