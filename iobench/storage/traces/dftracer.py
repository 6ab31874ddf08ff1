"""DFTracer's files as another source of segments: a JSON object a line, for each call one.

Written for what DFTracer 2.2 leaves, and for its older forms as far as these tell the same. Its
times are microseconds of the wall clock. A file is known by a hash of its name, and a forked
process does not repeat the names that its parent told: all files of a run are read before names
are given. As of Darshan's logs, segments are of POSIX calls; those of C streams are in the
counters. `np.load` reads past it: what it calls is not seen.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from iobench.errors import FileFormatError
from iobench.storage.traces.dftracer_calls import RunNames, TracedCalls
from iobench.storage.traces.storage_trace import StorageTrace

__all__ = ["is_dftracer_name", "is_dftracer_start", "read_dftracer_files"]

_GZIP: Final = b"\x1f\x8b"
_NO_CALL: Final = (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)
"""What a line raises that is no call, or one with numbers that are none."""


def is_dftracer_name(name: str) -> bool:
    """Return whether a file is called like one of DFTracer's."""
    return name.removesuffix(".gz").endswith(".pfw")


def is_dftracer_start(start: bytes) -> bool:
    """Return whether a file that starts so, uncompressed, is one of DFTracer's."""
    line = start.lstrip(b"[ \r\n").split(b"\n", 1)[0]
    return line.startswith(b"{") and all(key in line for key in (b'"name"', b'"pid"', b'"ph"'))


def read_dftracer_files(paths: Sequence[Path]) -> StorageTrace:
    """Read what DFTracer left of a run.

    Parameters
    ----------
    paths : sequence of Path
        Files, compressed by gzip or not, whatever they are called.

    Returns
    -------
    StorageTrace
        Its processes in the order of their start. What could not be read is in ``refused``.
    """
    run = RunNames()
    processes: list[TracedCalls] = []
    refused: list[str] = []
    n_empty = 0
    for file in paths:
        try:
            found = _read_file(file, run)
        except FileFormatError as error:
            refused.append(f"{file}: {error}")
            continue
        except OSError as error:
            refused.append(f"{file}: cannot be read: {error.strerror or error}")
            continue
        n_empty += not found
        processes += found
    notes = []
    if n_empty:
        notes.append(
            f"{n_empty} files of DFTracer are empty: their processes changed their program, did "
            f"nothing that it follows, or were killed"
        )
    traces = sorted((each.trace(run) for each in processes), key=lambda each: each.start_ns)
    return StorageTrace(tuple(traces), tuple(refused), tuple(notes))


def _read_file(path: Path, run: RunNames) -> list[TracedCalls]:
    """Return the processes of one file, usually one; none of an empty file."""
    processes: dict[int, TracedCalls] = {}
    damaged = 0
    for number, line in enumerate(_lines(path), 1):
        text = line.strip(b"[], \t\r\n\0")
        if not text:
            continue
        if damaged == 1:
            break
        if damaged:
            raise FileFormatError(f"line {damaged} is not a call of DFTracer's")
        try:
            _take(json.loads(text), path, run, processes)
        except _NO_CALL:
            damaged = number  # fine only as the last line: its process was stopped writing it
    if damaged == 1:
        raise FileFormatError("is not a file of DFTracer's")
    for each in processes.values():
        each.cut = bool(damaged)
    return list(processes.values())


def _take(call: Any, path: Path, run: RunNames, processes: dict[int, TracedCalls]) -> None:
    """Take one line: what a hash stands for, or a call; one of `_NO_CALL` if it is neither."""
    name, pid, told = str(call["name"]), int(call["pid"]), dict(call.get("args") or {})
    if name in ("FH", "HH", "SH"):
        run.learn(name, told)
        return
    calls = processes.get(pid) or TracedCalls(path, pid)
    calls.add(name, call, told)
    processes[pid] = calls


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; the end of a compressed one that was not finished is missing."""
    with path.open("rb") as file:
        if file.read(2) != _GZIP:
            file.seek(0)
            yield from file
            return
    with gzip.open(path) as packed:
        try:
            yield from packed
        except EOFError:
            yield b"{"  # no line: says that the rest is missing
        except (gzip.BadGzipFile, zlib.error) as error:
            raise FileFormatError(f"is damaged: {error}") from None
