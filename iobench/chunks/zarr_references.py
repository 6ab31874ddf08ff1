"""Zarr over bytes of other files: references of kerchunk and VirtualiZarr, JSON or Parquet.

Sources: kerchunk's specification of references, versions 0 and 1, and fsspec's of the Parquet ones.
Where each chunk lies is kept with its array. Nothing else is made of what references say than
ranges of files, and those behind a URL may not name files of this machine.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunked_variable import MOST_CHUNKS
from iobench.chunks.library_chunks import file_errors
from iobench.chunks.zarr_store import (
    ARRAY2,
    ATTRIBUTES2,
    CONSOLIDATED,
    GROUP2,
    VERSION3,
    described_store,
    read_document,
)
from iobench.errors import FileFormatError, MissingFileError, import_extra
from iobench.files.objects import states_of
from iobench.files.open_files import forget_files
from iobench.files.urls import URL, as_path, is_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.source_file import SourceFile

REFERENCES: Final = "Zarr references"
METADATA: Final = (ARRAY2, ATTRIBUTES2, GROUP2, VERSION3)
INLINE: Final = "base64:"
PER_FILE: Final = "record_size"
"""Of Parquet references: how many chunks a file of them tells of."""
COLUMNS: Final = ["path", "offset", "size", "raw"]


class _Place(NamedTuple):
    """Where a chunk lies: in a file, of which no bytes are all, or beside its place."""

    number: int  # in C order
    file: str = ""
    offset: int = 0
    nbytes: int = 0
    content: bytes = b""


class _References(NamedTuple):
    """Metadata by path, and what yields the places of an array's chunks by its name."""

    documents: dict[str, Any]
    places: Callable[[str, ChunkedVariable], Iterator[_Place]]


def is_references(folder: Path) -> bool:
    """Return whether a folder holds references as Parquet, and no Zarr store."""
    file = folder / CONSOLIDATED
    is_plain = (folder / GROUP2).is_file() or not file.is_file()
    return not is_plain and PER_FILE in read_document(file)


def inspect_references(path: Path, group: str = "") -> SourceFile:
    """Return what references hold, with where each chunk lies."""
    state = hashlib.blake2b(digest_size=16)
    prefix = f"{group}/" if group else ""

    def located(name: str, array: ChunkedVariable) -> ChunkedVariable:
        if array.keys is None or array.keys.is_sharded:
            why = array.why_unread or "shards, or codecs that zarr alone reads"
            return replace(array, why_unread=f"{why}, behind references", library="")
        result = _located(array, known.places(f"{prefix}{name}", array), path)
        for part in (result.offsets, result.sizes, result.numbers, result.inline):
            state.update(b"" if part is None else part.tobytes())
        state.update("\n".join(map(str, result.files)).encode())
        return result

    with file_errors(f"{path}: cannot be read as references", "write them again"):
        known = (_parquet_references if path.is_dir() else _json_references)(path)
        documents = {
            key.removeprefix(prefix): each
            for key, each in known.documents.items()
            if key.startswith(prefix)
        }
        if not {GROUP2, ARRAY2, VERSION3} & documents.keys():
            raise ValueError(f"neither {GROUP2} nor {VERSION3} is in {group or 'it'}")
        version = 3 if VERSION3 in documents else 2
        found = described_store(path, version, documents, located, kind=REFERENCES)
    forget_files(file for each in found.variables.values() for file in each.files)
    return replace(found, fingerprint=f"{found.fingerprint} {state.hexdigest()}")


def _grid(array: ChunkedVariable) -> tuple[int, ...]:
    """Return how many chunks an array has along each axis."""
    lengths = zip(array.shape, array.chunk, strict=True)
    return tuple(-(-n // max(1, length)) for n, length in lengths)


def _located(array: ChunkedVariable, places: Iterator[_Place], references: Path) -> ChunkedVariable:
    """Return an array with where its chunks lie."""
    grid = _grid(array)
    if (n_chunks := math.prod(grid)) > MOST_CHUNKS:
        raise ValueError(f"{array.name!r} claims {n_chunks} chunks")
    offsets, sizes = np.full(n_chunks, -1, dtype=np.int64), np.zeros(n_chunks, dtype=np.int64)
    numbers = np.zeros(n_chunks, dtype=np.int32)
    files: dict[str, int] = {}
    inline = bytearray()
    for number, file, offset, nbytes, content in places:
        if file:
            ends = offset, nbytes
            if "\0" in file or any(type(each) is not int or each < 0 for each in ends):
                raise ValueError(f"a chunk of {array.name!r} is {[file, *ends]!r:.80}")
            numbers[number] = files.setdefault(file, len(files))
            offsets[number], sizes[number] = offset, nbytes
        elif not content:
            raise ValueError(f"a chunk of {array.name!r} has no bytes")
        else:
            numbers[number], offsets[number] = -1, len(inline)
            sizes[number] = len(content)
            inline += content
    paths = [_target(file, references) for file in files]
    whole = (sizes == 0) & (offsets == 0) & (numbers >= 0)
    for which, nbytes in _sizes(paths, np.unique(numbers[whole]), references):
        sizes[whole & (numbers == which)] = nbytes
    return replace(
        array,
        keys=None,
        offsets=offsets.reshape(grid),
        sizes=sizes.reshape(grid),
        numbers=numbers.reshape(grid),
        files=tuple(map(_as_named, paths)),
        inline=np.frombuffer(bytes(inline), np.uint8) if inline else None,
    )


def _sizes(paths: Sequence[Path], which: Any, references: Path) -> Iterator[tuple[int, int]]:
    """Yield some of the files by number, each with its size."""
    urls = [paths[number] for number in which if isinstance(paths[number], URL)]
    states: dict[Path, Any] = dict(zip(urls, states_of(urls), strict=True)) if urls else {}
    for number in which:
        path = paths[number]
        state = states.get(path) or (path.stat() if path.exists() else None)
        if state is None:
            raise MissingFileError(f"{references}: names {path}, which is not there")
        yield int(number), state.st_size


def _target(named: str, references: Path) -> Path:
    """Return a file that references name; relative ones lie beside them."""
    file = as_path(named) if is_url(named) else references.parent / named
    if isinstance(references, URL) and not isinstance(file, URL):
        raise FileFormatError(
            f"{references}: names a file of this machine, {file}; copy the references here first"
        )
    return file


def _as_named(file: Path) -> str:
    """Return a file as ranges of it name it; one whose URL holds secrets stays a `URL`."""
    has_secrets = isinstance(file, URL) and file.with_secrets() != str(file)
    return file if has_secrets else str(file)  # type: ignore[return-value]


def _json_references(path: Path) -> _References:
    """Return references of a file of JSON, by the key of what they stand for."""
    held = read_document(path)
    if held.get("gen"):
        raise ValueError("they generate keys, which is not done here")
    texts = held.get("templates") or {}
    refs: dict[str, Any] = held.get("refs", held)
    documents = {
        key: json.loads(_content(value)) if isinstance(value, str) else value
        for key, value in refs.items()
        if key.rpartition("/")[2] in METADATA
    }
    folders = {key.rpartition("/")[0] for key in documents}
    chunks: dict[str, list[str]] = {folder: [] for folder in folders}
    for key in refs:
        folder = key.rpartition("/")[0]
        while folder and folder not in folders:  # keys of chunks may have folders of their own
            folder = folder.rpartition("/")[0]
        if folder in folders and key not in documents:
            chunks[folder].append(key)

    def named(text: str) -> str:
        if "{{" in (text := re.sub(r"{{\s*(\w+)\s*}}", lambda one: texts[one[1]], text)):
            raise ValueError(f"{text!r} is computed, which is not done here")
        return text

    def places(name: str, array: ChunkedVariable) -> Iterator[_Place]:
        assert array.keys is not None
        grid, begin = _grid(array), f"{name}/" * bool(name)
        for key in chunks[name]:
            last = key.removeprefix(begin).removeprefix(array.keys.prefix)
            parts = last.split(array.keys.separator) if grid else []
            if len(parts) != len(grid) or not all(map(str.isdecimal, parts)):
                continue
            place = tuple(map(int, parts))
            if any(at >= n for at, n in zip(place, grid, strict=True)):
                continue
            number, value = int(np.ravel_multi_index(place, grid)) if grid else 0, refs[key]
            if isinstance(value, str):
                yield _Place(number, content=_content(value))
            else:
                yield _Place(number, named(value[0]), *value[1:])

    return _References(documents, places)


def _content(text: str) -> bytes:
    """Return the bytes that references bring themselves."""
    if text.startswith(INLINE):
        return base64.b64decode(text.removeprefix(INLINE), validate=True)
    return text.encode()


def _parquet_references(path: Path) -> _References:
    """Return references of a folder for each array, whose files have chunks in C order."""
    held = read_document(path / CONSOLIDATED)
    per_file = int(held[PER_FILE])

    def places(name: str, array: ChunkedVariable) -> Iterator[_Place]:
        n_chunks = math.prod(_grid(array))
        for first in range(0, n_chunks, per_file):
            file = path / name / f"refs.{first // per_file}.parq"
            columns = _columns(file) if file.exists() else ()
            for number, (named, offset, nbytes, raw) in enumerate(columns, first):
                if number < n_chunks and (named or raw is not None):
                    yield _Place(number, named or "", offset or 0, nbytes or 0, raw or b"")

    return _References(dict(held["metadata"]), places)


def _columns(file: Path) -> Iterator[tuple[Any, ...]]:
    pa = import_extra("pyarrow", f"{file}: needs pyarrow", extra="parquet")
    parquet = import_extra("pyarrow.parquet", f"{file}: needs pyarrow", extra="parquet")
    content = pa.BufferReader(file.read_bytes())
    table = parquet.read_table(content, columns=COLUMNS, use_threads=False)
    return zip(*(table[name].to_pylist() for name in COLUMNS), strict=True)
