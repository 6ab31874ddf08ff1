"""Archives of NumPy's arrays (``.npz``), each a sample or a stack of them.

What they hold is told by the headers in them; numbers are read by NumPy, which checks their sums,
and nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.library_chunks import file_errors
from iobench.chunks.packing import Packing
from iobench.chunks.source_file import SourceFile
from iobench.files.open_files import OpenFile
from iobench.files.ranges import cached_source_file, open_source_file

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.chunks.chunked_variable import Place
    from iobench.files.ranges import SourceBytes

NAMELESS = "dim_{}"


def inspect_npz(path: Path) -> SourceFile:
    """Return what an archive holds; axes of one length in all arrays are one dimension."""
    with (
        file_errors(f"{path}: cannot be read as npz", "write it again"),
        zipfile.ZipFile(_source(open_source_file(path))) as archive,
    ):
        held = dict(_header(archive, each) for each in archive.infolist())
    skipped = {
        name: "its objects only pickle reads" if dtype.hasobject else "not numeric"
        for name, (_, dtype) in held.items()
        if dtype.kind not in "biufc"
    }
    numbers = {name: each for name, each in held.items() if name not in skipped}
    lengths: dict[int, set[int]] = {}
    for shape, _ in numbers.values():
        for axis, length in enumerate(shape):
            lengths.setdefault(axis, set()).add(length)
    variables, every = {}, dict[str, int]()
    for name, (shape, dtype) in numbers.items():
        dims = tuple(
            NAMELESS.format(axis) if len(lengths[axis]) == 1 else f"{name}_{axis}"
            for axis in range(len(shape))
        )
        every |= dict(zip(dims, shape, strict=True))
        packing = Packing(dtype.newbyteorder("<").str, dtype.newbyteorder("<").str)
        chunk = tuple(max(1, length) for length in shape)
        variables[name] = ChunkedVariable(
            name, dims, shape, packing, 0, {}, chunk=chunk, library="numpy"
        )
    return SourceFile(path, every, variables, skipped, kind="npz")


def read_part(file: str, variable: ChunkedVariable, start: Place, stop: Place) -> Any:
    """Return numbers of an array, which is read whole."""
    with np.load(_source(cached_source_file(file)), allow_pickle=False) as archive:
        return archive[variable.name][tuple(map(slice, start, stop))]


def _source(opened: SourceBytes) -> Any:
    """Return what zipfile opens: a path that leads to the same file still, or a stream."""
    if not isinstance(opened, OpenFile):
        return opened.reader()
    opened.check()
    return opened.path


def _header(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> tuple[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the name, shape and dtype of an array, whose numbers its file has room for."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize > entry.file_size:
        raise ValueError(f"{entry.filename} claims the shape {shape} in {entry.file_size} bytes")
    return entry.filename.removesuffix(".npy"), (shape, dtype)
