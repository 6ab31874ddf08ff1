"""Files of any tracer, told apart by what is in them."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from iobench.errors import MissingExtraError, StorageError
from iobench.storage.darshan.log_files import is_log_name, is_log_start
from iobench.storage.darshan.run_logs import read_darshan_logs
from iobench.storage.traces.dftracer import is_dftracer_name, is_dftracer_start, read_dftracer_files
from iobench.storage.traces.storage_trace import StorageTrace

__all__ = ["read_traces"]

_GZIP: Final = b"\x1f\x8b"
_START: Final = 4096


def read_traces(paths: Sequence[Path]) -> StorageTrace:
    """Read what tracers left of a run: Darshan's logs, DFTracer's files, or both.

    Parameters
    ----------
    paths : sequence of Path
        Files, whatever they are called; or folders, of which files with the tracers' suffixes are
        read, those in folders within as well.

    Returns
    -------
    StorageTrace
        What could not be read, and why, is in ``refused``, a line each; also that PyDarshan is
        not installed.
    """
    logs: list[Path] = []
    calls: list[Path] = []
    refused: list[str] = []
    read: set[Path] = set()
    for path in paths:
        found = _files_in(path)
        if not found:
            refused.append(f"{path}: no log of Darshan and no file of DFTracer in this folder")
        for each in found:
            # A run's own logs may be named as well.
            place = Path(os.path.realpath(each))
            if place in read:
                continue
            read.add(place)
            try:
                if not stat.S_ISREG(each.stat().st_mode):  # a pipe would be waited for
                    refused.append(f"{each}: is no regular file; expected a log")
                    continue
                of_dftracer = is_dftracer_start(_start(each)) or (
                    is_dftracer_name(each.name) and not is_log_start(_start(each))
                )
            except OSError as error:
                refused.append(f"{each}: cannot be read: {error.strerror or error}")
                continue
            (calls if of_dftracer else logs).append(each)
    trace = _joined(read_dftracer_files(calls) if calls else StorageTrace(), _darshan(logs))
    return StorageTrace(trace.processes, (*refused, *trace.refused), trace.notes)


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        each
        for each in path.rglob("*")
        if (is_log_name(each.name) or is_dftracer_name(each.name)) and not each.is_dir()
    )


def _start(path: Path) -> bytes:
    """Return how a file starts, uncompressed; empty where it is damaged."""
    with path.open("rb") as file:
        start = file.read(_START)
    if not start.startswith(_GZIP):
        return start
    try:
        with gzip.open(path) as packed:
            return packed.read1(_START)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""


def _darshan(logs: list[Path]) -> StorageTrace:
    if not logs:
        return StorageTrace()
    try:
        return read_darshan_logs(logs)
    except (MissingExtraError, StorageError) as error:
        return StorageTrace(refused=(f"{len(logs)} Darshan logs are not read: {error}",))


def _joined(*traces: StorageTrace) -> StorageTrace:
    return StorageTrace(
        tuple(
            sorted(
                (process for trace in traces for process in trace.processes),
                key=lambda each: (each.start_ns, each.pid, each.rank),
            )
        ),
        tuple(line for trace in traces for line in trace.refused),
        tuple(line for trace in traces for line in trace.notes),
    )
