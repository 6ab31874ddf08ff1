"""Darshan's counters of files as rows of ours: which of them, their units, what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.storage.traces.contents import COUNTER_DTYPE, NO_COUNTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.storage.traces.contents import ModuleState

__all__ = ["counter_rows", "joined_counters", "nanoseconds"]

_COLUMNS: Final = {
    "POSIX": {
        "posix_opens": "POSIX_OPENS",
        "posix_reads": "POSIX_READS",
        "posix_read_nbytes": "POSIX_BYTES_READ",
        "posix_mmaps": "POSIX_MMAPS",
        "posix_first_open_ns": "POSIX_F_OPEN_START_TIMESTAMP",
        "posix_first_read_ns": "POSIX_F_READ_START_TIMESTAMP",
        "posix_last_read_ns": "POSIX_F_READ_END_TIMESTAMP",
        "posix_last_close_ns": "POSIX_F_CLOSE_END_TIMESTAMP",
    },
    "STDIO": {
        "stdio_opens": "STDIO_OPENS",
        "stdio_reads": "STDIO_READS",
        "stdio_read_nbytes": "STDIO_BYTES_READ",
        "stdio_read_ns": "STDIO_F_READ_TIME",
        "stdio_first_read_ns": "STDIO_F_READ_START_TIMESTAMP",
        "stdio_last_read_ns": "STDIO_F_READ_END_TIMESTAMP",
        "stdio_last_close_ns": "STDIO_F_CLOSE_END_TIMESTAMP",
    },
}
"""By module, which of its counters our columns are; those with ``_F_`` are in seconds."""


def counter_rows(
    module: str, raw: NDArray[Any], files: NDArray[np.int32], zero_ns: int
) -> NDArray[Any]:
    """Return the rows of files by calls of one sort, -1 in all that these do not tell."""
    rows = np.full(len(raw), -1, COUNTER_DTYPE)
    rows["file"] = files
    for ours, theirs in _COLUMNS[module].items():
        if theirs.endswith("_TIMESTAMP"):
            rows[ours] = np.where(raw[theirs] > 0, nanoseconds(raw[theirs], zero_ns), -1)
        else:
            rows[ours] = nanoseconds(raw[theirs], 0) if "_F_" in theirs else raw[theirs]
    return rows


def nanoseconds(seconds: NDArray[Any], zero_ns: int) -> NDArray[np.int64]:
    """Return times of a log on the wall clock; what is no finite number becomes -1."""
    known = np.isfinite(seconds) & (seconds >= 0) & (seconds < 1e9)
    since = np.rint(np.where(known, seconds, 0) * 1e9).astype(np.int64)
    return np.where(known, since + zero_ns, -1)  # summed as integers: as floats, 256 ns are lost


def joined_counters(
    parts: Mapping[str, list[NDArray[Any]]], modules: tuple[ModuleState, ...]
) -> NDArray[Any]:
    """Return one row for each file of POSIX or STDIO calls.

    A file without calls of one sort has 0 of them; -1 where that sort was not recorded in full or
    could not be read.
    """
    told = {name: _unique_files(parts.get(name, [])) for name in _COLUMNS}
    files = np.unique(np.concatenate([rows["file"] for rows in told.values()]))
    if not len(files):
        return NO_COUNTERS
    rows = np.full(len(files), -1, COUNTER_DTYPE)
    rows["file"] = files
    full = {each.name for each in modules if not each.partial and not each.problem}
    seen = {each.name for each in modules}
    for name, columns in _COLUMNS.items():
        at = np.searchsorted(files, told[name]["file"])
        for column in columns:
            if not _is_time(column) and (name in full or name not in seen):
                rows[column] = 0
            rows[column][at] = told[name][column]
    return rows


def _is_time(column: str) -> bool:
    return "_first_" in column or "_last_" in column


def _unique_files(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return rows by file; a file that a module has twice, which only damage explains, once."""
    if not parts:
        return NO_COUNTERS
    rows = np.concatenate(parts)
    return rows[np.unique(rows["file"], return_index=True)[1]]
