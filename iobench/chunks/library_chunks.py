"""Chunks that a library reads and decodes in one: what is not taken apart here.

Such a chunk is what the library is asked for at once; its stored bytes are those of its numbers.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError, IobenchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable, Place, StoredChunk

LIBRARIES: Final = {
    "icechunk": "iobench.chunks.icechunk_store",
    "numpy": "iobench.chunks.npz_files",
    "pyarrow": "iobench.chunks.table_files",
    "zarr": "iobench.chunks.zarr_library",
}
"""The module whose ``read_part(file, variable, start, stop)`` returns numbers of a variable."""
NOT_READ: Final = (
    ValueError, RuntimeError, KeyError, IndexError, TypeError, AttributeError, EOFError,
    MemoryError, OverflowError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""What libraries raise of files they cannot read."""

REASON_LENGTH: Final = 300


def read_decoded(chunks: Sequence[StoredChunk]) -> list[memoryview]:
    """Return the numbers of chunks, which end where their variables do, as bytes.

    Chunks of one variable that make a box are asked for at once: a library reads them side by side.
    """
    result = [memoryview(b"")] * len(chunks)
    groups: dict[tuple[str, int], list[int]] = {}
    for number, (file, variable, _) in enumerate(chunks):
        groups.setdefault((file, id(variable)), []).append(number)
    for (file, _), numbers in groups.items():
        variable, places = chunks[numbers[0]][1], [chunks[number][2] for number in numbers]
        first = tuple(map(min, zip(*places, strict=True)))
        last = tuple(map(max, zip(*places, strict=True)))
        n_inside = math.prod(b - a + 1 for a, b in zip(first, last, strict=True))
        whole = _read(file, variable, first, last) if n_inside == len(places) else None
        for number, place in zip(numbers, places, strict=True):
            if whole is None:
                part = _read(file, variable, place, place)
            else:
                ends = zip(place, first, variable.chunk, strict=True)
                inside = [slice((at - a) * n, (at - a + 1) * n) for at, a, n in ends]
                part = whole[tuple(inside)]
            result[number] = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    return result


def _read(file: str, variable: ChunkedVariable, first: Place, last: Place) -> NDArray[Any]:
    """Return the numbers from one chunk to another, as stored."""
    start = tuple(at * n for at, n in zip(first, variable.chunk, strict=True))
    ends = zip(last, variable.chunk, variable.shape, strict=True)
    stop = tuple(min((at + 1) * n, length) for at, n, length in ends)
    read_part = import_module(LIBRARIES[variable.library]).read_part
    expected = tuple(b - a for a, b in zip(start, stop, strict=True))
    what = f"{file}: {variable.library} cannot read {variable.name!r}"
    with file_errors(what, "fetch it again, or leave the variable out with --variables"):
        values: NDArray[Any] = np.asarray(read_part(file, variable, start, stop))
        if values.shape != expected:
            raise ValueError(f"it has the shape {values.shape}, expected {expected}")
        return values.astype(variable.packing.stored, copy=False)


@contextmanager
def file_errors(what: str, to_do: str) -> Iterator[None]:
    """Make what a library raises of a file an error of one line."""
    try:
        yield
    except IobenchError:
        raise
    except (OSError, *NOT_READ) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        is_storage = isinstance(error, OSError) and error.errno is not None
        kind = StorageError if is_storage else FileFormatError
        raise kind(f"{what}: {reason[:REASON_LENGTH]}; {to_do}") from error
