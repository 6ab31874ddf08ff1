"""Tables of Parquet and Arrow, one sample a row: columns of numbers, and of lists of one length.

pyarrow reads whole row groups, or batches, and what rows share of them is kept as chunks are.
"""

from __future__ import annotations

import math
import os
import threading
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.library_chunks import file_errors
from iobench.chunks.packing import Packing
from iobench.chunks.source_file import SourceFile
from iobench.errors import import_extra
from iobench.files.open_files import OpenFile
from iobench.files.ranges import cached_source_file
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.chunks.chunked_variable import Place

ROW: Final = "row"  # the dimension that counts samples
PARQUET: Final = b"PAR1"
ARROW: Final = (b"ARRO", b"\xff\xff\xff\xff")
"""How files of record batches begin, and streams of them."""
PART_NBYTES: Final = 1 << 20
MOST_OPEN: Final = 256


def inspect_table(path: Path) -> SourceFile:
    """Return what a table holds; its columns of numbers are variables along `ROW`."""
    _pyarrow()
    file = range_file(path)
    with file_errors(f"{path}: cannot be read as a table", "write it again"):
        table = _opened(file, *_state(file))
    n_rows = table.edges[-1]
    together = max(1, max((b - a for a, b in pairwise(table.edges)), default=1))
    variables, skipped, dims = {}, {}, {ROW: n_rows}
    for field in table.schema:
        shape, dtype, why = _cell(field.type)
        if why:
            skipped[field.name] = why
            continue
        own = tuple(f"{field.name}_{axis}" for axis in range(len(shape)))
        dims |= dict(zip(own, shape, strict=True))
        packing = Packing(dtype, dtype)
        # Of record batches parts are had without the others, but for compressed ones.
        some = PART_NBYTES // max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        chunk = together if table.is_parquet else max(1, min(together, some))
        variables[field.name] = ChunkedVariable(
            field.name, (ROW, *own), (n_rows, *shape), packing, 0, {},
            chunk=(chunk, *(max(1, length) for length in shape)), library="pyarrow",
        )  # fmt: skip
    kind = "Parquet" if table.is_parquet else "Arrow"
    return SourceFile(path, dims, variables, skipped, kind=kind)


def read_part(file: str, variable: ChunkedVariable, start: Place, stop: Place) -> Any:
    """Return rows of a column."""
    column = _opened(file, *_state(file)).rows(variable.name, start[0], stop[0])
    shape = (stop[0] - start[0], *variable.shape[1:])
    parts = [_numbers(part) for part in column.chunks]
    values = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return values.reshape(shape)[(slice(None), *map(slice, start[1:], stop[1:]))]


class _Table:
    """An open table and where its row groups, or batches, begin and end."""

    def __init__(self, file: str, opened: Any) -> None:
        pa, magic = _pyarrow(), opened.read_at(0, 4)
        from pyarrow import parquet

        self._file, self.is_parquet = opened, magic == PARQUET
        if not isinstance(opened, OpenFile):
            source = pa.PythonFile(opened.reader(), mode="r")
        else:
            source = pa.OSFile(file) if self.is_parquet else pa.memory_map(file)
        if self.is_parquet:
            self._reader = parquet.ParquetFile(source)
            groups = self._reader.metadata
            lengths = [groups.row_group(n).num_rows for n in range(groups.num_row_groups)]
            self.schema = self._reader.schema_arrow
        elif magic == ARROW[0]:
            self._reader = pa.ipc.open_file(source)
            self._batch = lru_cache(maxsize=2)(self._reader.get_batch)
            lengths = [self._batch(n).num_rows for n in range(self._reader.num_record_batches)]
            self.schema = self._reader.schema
        else:
            self._reader = pa.ipc.open_stream(source).read_all()
            lengths, self.schema = [self._reader.num_rows], self._reader.schema
        self.edges = [*accumulate(lengths, initial=0)]

    def rows(self, name: str, start: int, stop: int) -> Any:
        """Return some rows of a column."""
        if isinstance(self._file, OpenFile):
            self._file.check()
        spans = [n for n, (a, b) in enumerate(pairwise(self.edges)) if a < stop and b > start]
        first = self.edges[spans[0]]
        if self.is_parquet:
            column = self._reader.read_row_groups(spans, [name], use_threads=False)[name]
        elif hasattr(self._reader, "get_batch"):
            column = _pyarrow().chunked_array([self._batch(n)[name] for n in spans])
        else:
            column = self._reader[name]
        column.validate(full=True)  # a damaged one would end the process
        return column.slice(start - first, stop - start)


def _state(file: str) -> tuple[int | str, int, int]:
    """Return what changes with a file, and who opened it: threads share no reader."""
    return cached_source_file(file).version, os.getpid(), threading.get_ident()


@lru_cache(maxsize=MOST_OPEN)
def _opened(file: str, version: int | str, process: int, thread: int) -> _Table:
    return _Table(file, cached_source_file(file))


def _cell(kind: Any) -> tuple[tuple[int, ...], str, str]:
    """Return the shape and dtype of what a row has in a column of a type, or why it is none."""
    pa = _pyarrow()
    shape: tuple[int, ...] = ()
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation not in (None, list(range(len(kind.shape)))):
            return (), "", "a tensor in another order of axes"
        shape, kind = tuple(kind.shape), kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return (), "", "lists of any length; write it as a fixed_size_list"
    if pa.types.is_temporal(kind):
        return (), "", "dates, not numbers"
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_number:
        return (), "", "not numeric"
    dtype = np.dtype(kind.to_pandas_dtype()).newbyteorder("<")
    return shape, dtype.str, ""


def _numbers(column: Any) -> Any:
    """Return the numbers of an array of a column, flat; a list without one is refused."""
    pa = _pyarrow()
    if isinstance(column.type, pa.FixedShapeTensorType):
        column = column.storage
    while True:
        if column.null_count:
            raise ValueError(f"{column.null_count} of its rows or numbers have no value")
        if not pa.types.is_fixed_size_list(column.type):
            break
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False)


def _pyarrow() -> Any:
    return import_extra("pyarrow", "tables need pyarrow", extra="parquet")
