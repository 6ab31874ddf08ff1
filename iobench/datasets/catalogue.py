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
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.setup_processes import Advance, run_jobs
from iobench.files.atomic import write_atomically
from iobench.files.open_files import expect_files
from iobench.files.urls import URL
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.stores.places import make_item

if TYPE_CHECKING:
    from pathlib import Path

Outcome = TypeVar("Outcome")

DIGEST_NBYTES: Final = 16
SUFFIX: Final = ".catalogue-3"
MAX_NBYTES: Final = 1 << 28
"""A catalogue of more bytes than this has the files of the latest list alone."""
YOUNG_NS: Final = 2 * 10**9
"""A file changed so lately may change again within one tick of its file system's clock."""
MANY_FILES: Final = 512
MANY_NBYTES: Final = 1 << 32
"""From here on files are inspected in processes, which take about a second to start."""
FILES_PER_JOB: Final = 16
SCALARS: Final = (type(None), bool, int, float, str)
ARRAY_KINDS: Final = "biufcmMSU"


class Inspection(msgspec.Struct, Generic[Outcome], frozen=True):
    """How something is found out about a file."""

    # unlike any other's. Whatever the outcome depends on besides the file is part of it, and a
    # number that changes with the code
    name: str
    inspect: Callable[[Path], Outcome]  # returns what there is to know of a file
    # the structs that its outcomes are made of, besides numbers, texts, tuples, mappings by text,
    # arrays and the file's path
    kinds: tuple[type[msgspec.Struct], ...]
    # whether it is picklable and worth processes where many files take seconds
    in_processes: bool = True


class _Source(msgspec.Struct, frozen=True):
    """A file: ``state`` changes when it is written anew.

    It is None where that cannot be told, or of a file that was changed just now.
    """

    path: Path
    key: bytes
    state: bytes | None = None
    weight: int = 1
    identity: tuple[int, int] | None = None  # of a local file, what `expect_files` takes


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
    kinds = inspection.kinds
    whole = functools.cache(lambda path: os.fsencode(path.resolve()))
    # A link is known by its own name: its state is that of the file it leads to.
    names = [
        str(path).encode()
        if isinstance(path, URL)
        else whole(path.parent) + b"/" + os.fsencode(path.name)
        for path in files
    ]
    fields = [[kind.__qualname__, *kind.__struct_fields__] for kind in kinds]
    about = json.dumps([inspection.name, fields]).encode() + names[0].rpartition(b"/")[0]
    catalogue = cache_dir / f"{_digest(about).hex()}{SUFFIX}"
    sources = [_source(path, _digest(name)) for path, name in zip(files, names, strict=True)]
    # What is found holds for the files as they are now: a reader of another one fails.
    expect_files({str(each.path): each.identity for each in sources if each.identity})
    rows, new = _read(catalogue), dict[bytes, tuple[bytes, bytes]]()
    values: dict[int, Outcome] = {}
    for number, source in enumerate(sources):
        state, row = rows.get(source.key, (b"", b""))
        if state == source.state:
            values[number] = _value(msgspec.msgpack.decode(row), kinds, source.path)
    missing = [number for number in range(len(sources)) if number not in values]
    # Many files, or large ones, are inspected in processes.
    weight = sum(sources[number].weight for number in missing)
    is_much = weight > MANY_NBYTES or len(missing) > MANY_FILES
    length = FILES_PER_JOB if len(missing) > MANY_FILES else 1
    shares = [missing[start : start + length] for start in range(0, len(missing), length)]
    total = sum(source.weight for source in sources)
    progress(total - weight, total)
    outcomes = run_jobs(
        _inspect_share,
        [(inspection, [sources[number] for number in share]) for share in shares],
        processes=None if is_much and inspection.in_processes else 1,
        progress=lambda done, _: progress(total - weight + done, total),
    )
    try:
        for job, own in outcomes:
            for number, value in zip(shares[job], own, strict=True):
                values[number], source = value, sources[number]
                # One behind a URL is known by what it was when it was looked up.
                if source.state is None or _source(source.path, b"").state != source.state:
                    continue
                # An attribute that is no number or text, or is beyond 64 bits: it is not kept.
                with suppress(TypeError, OverflowError):
                    row = msgspec.msgpack.encode(_row(value, kinds, source.path))
                    new[source.key] = source.state, row
    finally:
        if new:
            _write(catalogue, rows | new, {source.key for source in sources})
    return [values[number] for number in range(len(sources))]


def _inspect_share(job: tuple[Inspection[Any], Sequence[_Source]], advance: Advance) -> list[Any]:
    inspection, sources = job
    outcomes = []
    for source in sources:
        outcomes.append(inspection.inspect(source.path))
        advance(source.weight)
    return outcomes


def _source(path: Path, key: bytes) -> _Source:
    try:
        status = path.stat()
    except OSError:
        return _Source(path, key)  # reading it says why
    size = status.st_size
    if isinstance(path, URL):
        identity = None
        version: list[int | str] = [status.etag or status.st_mtime_ns]  # type: ignore[attr-defined]
        is_known = status.kind == "file" and version != [0]  # type: ignore[attr-defined]
    else:
        identity = size, status.st_mtime_ns
        version = [status.st_mtime_ns, status.st_ino]
        is_young = abs(SYSTEM_CLOCK.wall_ns() - status.st_mtime_ns) < YOUNG_NS
        is_known = stat.S_ISREG(status.st_mode) and not is_young
    state = _digest(json.dumps([size, *version]).encode()) if is_known else None
    return _Source(path, key, state, max(1, size), identity)


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


def _row(value: Any, kinds: Sequence[type], path: Path) -> Any:
    """Return a value as msgpack has it; raise TypeError of what `_value` cannot make again."""
    if type(value) in SCALARS:
        return value
    if type(value) in (tuple, list):
        return ["t" if type(value) is tuple else "l", *(_row(each, kinds, path) for each in value)]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return ["d", {key: _row(each, kinds, path) for key, each in value.items()}]
    if type(value) in kinds:
        fields = (_row(getattr(value, name), kinds, path) for name in value.__struct_fields__)
        return ["c", kinds.index(type(value)), *fields]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in ARRAY_KINDS:
        shape = value.shape if isinstance(value, np.ndarray) else None
        return ["a", value.dtype.str, shape, value.tobytes()]
    if type(value) is type(path) and value == path:
        return ["p"]
    raise TypeError(f"a {type(value).__name__} cannot be kept")


def _value(row: Any, kinds: Sequence[type], path: Path) -> Any:
    """Return the value that `_row` was given; its arrays cannot be written."""
    if type(row) is not list:
        return row
    what, *rest = row
    if what == "p":
        return path
    if what == "a":
        dtype, shape, content = rest
        values = np.frombuffer(content, dtype) if content else np.empty(0, dtype)
        return values[0] if shape is None else values.reshape(shape)
    if what == "d":
        return {key: _value(each, kinds, path) for key, each in rest[0].items()}
    if what == "c":
        return kinds[rest[0]](*(_value(each, kinds, path) for each in rest[1:]))
    parts = [_value(each, kinds, path) for each in rest]
    return tuple(parts) if what == "t" else parts
