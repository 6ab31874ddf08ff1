"""The header of classic NetCDF files (CDF-1, CDF-2, CDF-5), which lie open: no library needed.

Source: the NetCDF classic format specification, appendix B of the NetCDF user's guide. The
NetCDF library reads zeros where such a file has been cut short; this reader can tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.errors import FileFormatError, IobenchError

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.files.ranges import SourceBytes

HEADER_NBYTES = 1 << 20
"""Read at first; of a longer header what is below on a second go: a damaged one has no end."""

LARGEST_HEADER_NBYTES = 1 << 28

DIMENSIONS, VARIABLES, ATTRIBUTES = 10, 11, 12
TYPES = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8"}
TYPES_5 = {7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}
UNKNOWN_RECORDS = {1: 0xFFFFFFFF, 2: 0xFFFFFFFF, 5: 0xFFFFFFFFFFFFFFFF}


class ClassicVariable(NamedTuple):
    """A variable of a classic file, with where its numbers lie."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: dict[str, Any]
    where: dict[str, Any]  # fields of `ChunkedVariable`


class ClassicHeader(NamedTuple):
    """What the header of a classic file says."""

    dims: dict[str, int]
    variables: list[ClassicVariable]
    attributes: dict[str, Any]


class _Described(NamedTuple):
    """A variable as the header has it."""

    name: str
    dims: tuple[int, ...]
    attributes: dict[str, Any]
    dtype: np.dtype[Any]
    begin: int

    def nbytes(self, lengths: list[int], first: int = 0) -> int:
        """Return its bytes, those along its dimensions from ``first`` on."""
        return math.prod(lengths[dim] for dim in self.dims[first:]) * self.dtype.itemsize


class _EndOfBuffer(Exception):
    """The header goes on after what was read."""


class _Header:
    """Takes values off the front of the header."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.version = content[3]
        self.place = 4
        self.types = TYPES | (TYPES_5 if self.version == 5 else {})

    def take(self, nbytes: int) -> bytes:
        taken = self.content[self.place : self.place + nbytes]
        if len(taken) < nbytes:
            raise _EndOfBuffer
        self.place += nbytes
        return taken

    def int4(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def count(self) -> int:
        return int.from_bytes(self.take(8 if self.version == 5 else 4), "big")

    def begin(self) -> int:
        return int.from_bytes(self.take(4 if self.version == 1 else 8), "big")

    def padded(self, nbytes: int) -> bytes:
        content = self.take(nbytes)
        self.take(-nbytes % 4)
        return content

    def name(self) -> str:
        return self.padded(self.count()).decode("utf-8")

    def list_length(self, tag: int) -> int:
        kind, length = self.int4(), self.count()
        if kind != tag and (kind, length) != (0, 0):
            raise ValueError(f"a list of kind {kind} where {tag} was expected")
        return length

    def dtype(self) -> np.dtype[Any]:
        number = self.int4()
        if number not in self.types:
            raise ValueError(f"a type number {number}")
        return np.dtype(self.types[number])

    def attributes(self) -> dict[str, Any]:
        return dict(self._attribute() for _ in range(self.list_length(ATTRIBUTES)))

    def _attribute(self) -> tuple[str, Any]:
        name, dtype, length = self.name(), self.dtype(), self.count()
        content = self.padded(length * dtype.itemsize)
        if dtype.kind == "S":
            return name, content.rstrip(b"\0").decode("utf-8", "replace")
        return name, np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))

    def variable(self) -> _Described:
        name = self.name()
        dims = tuple(self.count() for _ in range(self.count()))
        attributes, dtype = self.attributes(), self.dtype()
        self.count()  # vsize: redundant, and wrong for large variables
        return _Described(name, dims, attributes, dtype, self.begin())


def read_classic_header(path: Path, opened: SourceBytes) -> ClassicHeader:
    """Return the dimensions, the variables and the attributes of a classic NetCDF file."""
    size = opened.nbytes
    for limit in (HEADER_NBYTES, LARGEST_HEADER_NBYTES):
        content = opened.read_at(0, min(limit, size))
        try:
            return _parsed(path, _Header(content), size)
        except _EndOfBuffer:
            continue
        except IobenchError:
            raise
        except (ValueError, IndexError) as error:
            raise FileFormatError(
                f"{path}: its NetCDF header is damaged: {error}; fetch the file again"
            ) from error
    raise FileFormatError(
        f"{path}: is cut short: ends within its NetCDF header; fetch the file again"
    )


def _parsed(path: Path, header: _Header, size: int) -> ClassicHeader:
    n_records = header.count()
    dimensions = [(header.name(), header.count()) for _ in range(header.list_length(DIMENSIONS))]
    attributes = header.attributes()
    described = [header.variable() for _ in range(header.list_length(VARIABLES))]
    lengths = [length for _, length in dimensions]
    if any(lengths[dim] == 0 for each in described for dim in each.dims[1:]):
        raise ValueError("the unlimited dimension is not the first of a variable")
    in_records = [each for each in described if each.dims and lengths[each.dims[0]] == 0]
    # one variable alone is not padded to four bytes
    parts = [each.nbytes(lengths, 1) for each in in_records]
    record_nbytes = parts[0] if len(parts) == 1 else sum(part + -part % 4 for part in parts)
    if n_records == UNKNOWN_RECORDS[header.version]:
        first = min((each.begin for each in in_records), default=size)
        n_records = (size - first) // record_nbytes if record_nbytes else 0
    _check_places(header.place, described, in_records, lengths)
    sizes = [length or n_records for length in lengths]
    variables = []
    for each in described:
        shape = tuple(sizes[dim] for dim in each.dims)
        record = each in in_records
        end, where = _where(each, shape, record_nbytes if record else None, size)
        if end > size:
            raise FileFormatError(
                f"{path}: is cut short: variable {each.name!r} ends at byte {end}, the file at "
                f"{size}; fetch the file again"
            )
        names = tuple(dimensions[dim][0] for dim in each.dims)
        variables.append(
            ClassicVariable(each.name, names, shape, each.dtype, each.attributes, where)
        )
    dims = {name: size for (name, _), size in zip(dimensions, sizes, strict=True)}
    return ClassicHeader(dims, variables, attributes)


def _check_places(
    end: int, described: list[_Described], in_records: list[_Described], lengths: list[int]
) -> None:
    """Check that variables lie one behind the other, behind the header, as the library asks."""
    fixed = [each for each in described if each not in in_records]
    for each in (*fixed, *in_records):
        if each.begin < end:
            raise ValueError(f"variable {each.name!r} begins at byte {each.begin}, before {end}")
        nbytes = each.nbytes(lengths, int(each in in_records))
        end = each.begin + nbytes + -nbytes % 4


def _where(
    each: _Described, shape: tuple[int, ...], record_nbytes: int | None, size: int
) -> tuple[int, dict[str, Any]]:
    """Return where the variable ends and how it lies; records are chunks of one index."""
    if record_nbytes is None:
        nbytes = math.prod(shape) * each.dtype.itemsize
        return each.begin + nbytes, {"chunk": shape, "offset": each.begin if nbytes else -1}
    nbytes = math.prod(shape[1:]) * each.dtype.itemsize
    end = each.begin + (shape[0] - 1) * record_nbytes + nbytes if shape[0] else 0
    if end > size:  # before as many places are made as there are records
        return end, {}
    grid = (shape[0],) + (1,) * (len(shape) - 1)
    offsets = each.begin + np.arange(shape[0], dtype=np.int64) * record_nbytes
    sizes = np.full(grid, nbytes, dtype=np.int64)
    return end, {"chunk": (1, *shape[1:]), "offsets": offsets.reshape(grid), "sizes": sizes}
