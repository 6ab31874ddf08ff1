"""What inspecting source files found, kept from one start to the next.

A file is known by its path, size, time of change and inode (behind a URL: its ETag), and by how it
was inspected. What is missing, damaged or out of date is found anew. The outcomes of one
inspection of a list of files are one file, written whole; nothing is written beside the data.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.setup_processes import run_jobs
from iobench.files.atomic import write_atomically
from iobench.files.open_files import expect_files
from iobench.files.urls import URL
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.stores.places import make_item

if TYPE_CHECKING:
    from pathlib import Path

Outcome = TypeVar("Outcome")

DIGEST_NBYTES: Final = 16
SUFFIX: Final = ".catalogue-4"
MAX_NBYTES: Final = 1 << 28
"""A catalogue of more bytes than this has the files of the latest list alone."""
YOUNG_NS: Final = 2 * 10**9
"""A file changed so lately may change again within one tick of its file system's clock."""
MANY_FILES: Final = 512
MANY_NBYTES: Final = 1 << 32
"""From here on files are inspected in processes, which take about a second to start."""
ARRAY_KINDS: Final = "biufcmMSU"
ARRAY, PATH = 1, 2  # extensions of msgpack


class Inspection(msgspec.Struct, Generic[Outcome], frozen=True):
    """How something is found out about a file."""

    # unlike any other's. Whatever the outcome depends on besides the file is part of it, and a
    # number that changes with the code
    name: str
    inspect: Callable[[Path], Outcome]  # returns what there is to know of a file
    # their type, as msgspec decodes it: of structs, numbers, texts, tuples, mappings by text,
    # arrays and the file's path
    outcome: Any
    # whether it is picklable and worth processes where many files take seconds
    in_processes: bool = True


@functools.cache  # milliseconds
def _layout(outcome: Any) -> str:
    """Return the fields of what is kept, by which another state of iobench's is told."""
    return repr(msgspec.inspect.type_info(outcome))


def catalogued(
    files: Sequence[Path],
    inspection: Inspection[Outcome],
    *,
    cache_dir: Path,
    progress: Progress = no_progress,
) -> list[Outcome]:
    """Return what there is to know of each file: as kept, else found out now and kept."""
    if not files:
        return []
    outcome = inspection.outcome
    whole = functools.cache(lambda folder: os.fsencode(folder.resolve()))
    # A link is known by its own name: its state is that of the file it leads to.
    names = [
        str(path).encode()
        if isinstance(path, URL)
        else whole(path.parent) + b"/" + os.fsencode(path.name)
        for path in files
    ]
    about = json.dumps([inspection.name, _layout(outcome)]).encode() + names[0].rpartition(b"/")[0]
    catalogue = cache_dir / f"{_digest(about).hex()}{SUFFIX}"
    keys, states = list(map(_digest, names)), list(map(_state, files))
    # What is found holds for the files as they are now: a reader of another one fails.
    expect_files({str(path): own for path, (_, _, own) in zip(files, states, strict=True) if own})
    rows, new = _read(catalogue), dict[bytes, tuple[bytes, bytes]]()
    values: dict[int, Outcome] = {}
    for number, (path, key, (state, *_)) in enumerate(zip(files, keys, states, strict=True)):
        known, row = rows.get(key, (b"", b""))
        if known == state:
            values[number] = msgspec.msgpack.decode(
                row, type=outcome, ext_hook=partial(_restored, path), dec_hook=lambda _, own: own
            )
    missing = [number for number in range(len(files)) if number not in values]
    progress(len(values), len(files))
    is_much = len(missing) > MANY_FILES or sum(states[n][1] for n in missing) > MANY_NBYTES
    processes = None if inspection.in_processes and is_much else 1
    try:
        jobs = [files[number] for number in missing]
        for job, value in run_jobs(inspection.inspect, jobs, processes=processes):
            number = missing[job]
            values[number], state = value, states[number][0]
            # One behind a URL is known by what it was when it was looked up.
            if state is not None and _state(files[number])[0] == state:
                # An attribute that is no number or text, or is beyond 64 bits: it is not kept.
                with suppress(TypeError, OverflowError):
                    hook = partial(_extension, files[number])
                    new[keys[number]] = state, msgspec.msgpack.encode(value, enc_hook=hook)
            progress(len(values), len(files))
    finally:
        if new:
            _write(catalogue, rows | new, {*keys})
    return [values[number] for number in range(len(files))]


def _state(path: Path) -> tuple[bytes | None, int, tuple[int, int] | None]:
    """Return what changes when a file is written anew, if that is known, size, `expect_files`."""
    try:
        status = path.stat()
    except OSError:
        return None, 0, None  # reading it says why
    size, identity = status.st_size, None
    if isinstance(path, URL):
        version: list[int | str] = [status.etag or status.st_mtime_ns]  # type: ignore[attr-defined]
        is_known = status.kind == "file" and version != [0]  # type: ignore[attr-defined]
    else:
        identity = size, status.st_mtime_ns
        version = [status.st_mtime_ns, status.st_ino]
        is_young = abs(SYSTEM_CLOCK.wall_ns() - status.st_mtime_ns) < YOUNG_NS
        is_known = stat.S_ISREG(status.st_mode) and not is_young
    return _digest(json.dumps([size, *version]).encode()) if is_known else None, size, identity


def _write(catalogue: Path, rows: Mapping[bytes, tuple[bytes, bytes]], latest: set[bytes]) -> None:
    """Write all outcomes; where that cannot be, they have served this call."""
    with suppress(OSError):  # a StorageError, or the folder was removed meanwhile
        if catalogue.exists() and not catalogue.is_file():
            return
        make_item(catalogue.parent, kind="index", title="indexes of source files")
        if sum(len(row) for _, row in rows.values()) > MAX_NBYTES:
            rows = {key: row for key, row in rows.items() if key in latest}
        content = zlib.compress(msgspec.msgpack.encode(rows), 1)
        write_atomically(catalogue, _digest(content) + content)


def _read(file: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """Return what a catalogue has; nothing where it is missing or damaged."""
    with suppress(OSError):
        content = file.read_bytes() if file.is_file() else b""
        if _digest(content[DIGEST_NBYTES:]) == content[:DIGEST_NBYTES]:
            packed = zlib.decompress(content[DIGEST_NBYTES:])
            rows: dict[bytes, tuple[bytes, bytes]] = msgspec.msgpack.decode(packed)
            return rows
    return {}


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_NBYTES).digest()


def _extension(path: Path, value: Any) -> msgspec.msgpack.Ext:
    """Return what msgpack has no kind for: arrays and numbers of NumPy, and the file's path."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in ARRAY_KINDS:
        shape = value.shape if isinstance(value, np.ndarray) else None
        packed = msgspec.msgpack.encode((value.dtype.str, shape, value.tobytes()))
        return msgspec.msgpack.Ext(ARRAY, packed)
    if type(value) is type(path) and value == path:
        return msgspec.msgpack.Ext(PATH, b"")
    raise TypeError(f"a {type(value).__name__} cannot be kept")


def _restored(path: Path, code: int, packed: memoryview) -> Any:
    """Return the value that `_extension` was given; its arrays cannot be written."""
    if code == PATH:
        return path
    dtype, shape, content = msgspec.msgpack.decode(packed)
    values = np.frombuffer(content, dtype) if content else np.empty(0, dtype)
    return values[0] if shape is None else values.reshape(shape)
