"""The header of classic NetCDF files (CDF-1, CDF-2, CDF-5), which lie open: no library needed.

Source: the NetCDF classic format specification, appendix B of the NetCDF user's guide. The
NetCDF library reads zeros where such a file has been cut short; this reader can tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import FileFormatError, IobenchError

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.files.ranges import SourceBytes

HEADER_NBYTES: Final = (1 << 20, 1 << 28)
"""Read at first, and of a longer header: a damaged one has no end."""
DIMENSIONS, VARIABLES, ATTRIBUTES = 10, 11, 12
TYPES: Final = (
    "i1", "S1", ">i2", ">i4", ">f4", ">f8", "u1", ">u2", ">u4", ">i8", ">u8",
)  # fmt: skip
"""From number 1 on; those from ``u1`` on are of CDF-5."""


class ClassicVariable(NamedTuple):
    """A variable of a classic file, with where its numbers lie."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: dict[str, Any]
    where: dict[str, Any]  # fields of `ChunkedVariable`


ClassicHeader = tuple[dict[str, int], list[ClassicVariable], dict[str, Any]]
"""Dimensions, variables and attributes of a classic file."""


class _EndOfBuffer(Exception):
    """The header goes on after what was read."""


class _Header:
    """Takes values off the front of the header."""

    def __init__(self, content: bytes) -> None:
        self.content, self.version, self.place = content, content[3], 4

    def take(self, nbytes: int, padding: int = 0) -> bytes:
        taken = self.content[self.place : self.place + nbytes]
        self.place += nbytes + padding
        if self.place > len(self.content):
            raise _EndOfBuffer
        return taken

    def number(self, nbytes: int = 0) -> int:
        """Return a number, a count where its size is not given."""
        return int.from_bytes(self.take(nbytes or (8 if self.version == 5 else 4)), "big")

    def name(self) -> str:
        length = self.number()
        return self.take(length, -length % 4).decode("utf-8")

    def items(self, tag: int) -> range:
        kind, length = self.number(4), self.number()
        if kind != tag and (kind, length) != (0, 0):
            raise ValueError(f"a list of kind {kind} where {tag} was expected")
        return range(length)

    def dtype(self) -> np.dtype[Any]:
        number = self.number(4)
        if not 0 < number <= (11 if self.version == 5 else 6):
            raise ValueError(f"a type number {number}")
        return np.dtype(TYPES[number - 1])

    def attributes(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for _ in self.items(ATTRIBUTES):
            name, dtype, length = self.name(), self.dtype(), self.number()
            nbytes = length * dtype.itemsize
            content = self.take(nbytes, -nbytes % 4)
            if dtype.kind == "S":
                values[name] = content.rstrip(b"\0").decode("utf-8", "replace")
            else:
                values[name] = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))
        return values


def read_classic_header(path: Path, opened: SourceBytes) -> ClassicHeader:
    """Return the dimensions, the variables and the attributes of a classic NetCDF file."""
    for limit in HEADER_NBYTES:
        content = opened.read_at(0, min(limit, opened.nbytes))
        try:
            return _parsed(path, _Header(content), opened.nbytes)
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
    n_records = header.number()
    dimensions = [(header.name(), header.number()) for _ in header.items(DIMENSIONS)]
    attributes = header.attributes()
    described, begins = [], []
    for _ in header.items(VARIABLES):
        name = header.name()
        numbers = [header.number() for _ in range(header.number())]
        own, dtype = header.attributes(), header.dtype()
        header.number()  # vsize: redundant, and wrong for large variables
        begins.append(header.number(4 if header.version == 1 else 8))
        lengths = [dimensions[each][1] for each in numbers]
        if 0 in lengths[1:]:
            raise ValueError("the unlimited dimension is not the first of a variable")
        is_record = lengths[:1] == [0]
        shape = (n_records, *lengths[1:]) if is_record else tuple(lengths)
        dims = tuple(dimensions[each][0] for each in numbers)
        nbytes = math.prod(shape[is_record:]) * dtype.itemsize  # of a record, or of all
        described.append((is_record, nbytes, ClassicVariable(name, dims, shape, dtype, own, {})))
    in_records = [nbytes for is_record, nbytes, _ in described if is_record]
    # one variable alone is not padded to four bytes
    padded = sum(nbytes + -nbytes % 4 for nbytes in in_records)
    record_nbytes = in_records[0] if len(in_records) == 1 else padded
    # They lie one behind the other, behind the header, those in records last, as the library asks.
    end = header.place
    for begin, (_, nbytes, variable) in sorted(
        zip(begins, described, strict=True), key=lambda each: each[1][0]
    ):
        if begin < end:
            raise ValueError(f"variable {variable.name!r} begins at byte {begin}, before {end}")
        end = begin + nbytes + -nbytes % 4
    for begin, (is_record, nbytes, variable) in zip(begins, described, strict=True):
        shape = variable.shape
        n_parts = n_records if is_record else 1
        last = begin + (n_parts - 1) * record_nbytes * is_record + nbytes if n_parts else 0
        if last > size:  # before as many places are made as there are records
            raise FileFormatError(
                f"{path}: is cut short: variable {variable.name!r} ends at byte {last}, the file "
                f"at {size}; fetch the file again"
            )
        if is_record:  # a record is a chunk
            grid = (n_records,) + (1,) * (len(shape) - 1)
            offsets = begin + np.arange(n_records, dtype=np.int64) * record_nbytes
            variable.where["chunk"] = (1, *shape[1:])
            variable.where["offsets"] = offsets.reshape(grid)
            variable.where["sizes"] = np.full(grid, nbytes, dtype=np.int64)
        else:
            variable.where.update(chunk=shape, offset=begin if nbytes else -1)
    sizes = {name: length or n_records for name, length in dimensions}
    return sizes, [variable for _, _, variable in described], attributes
