"""Samples that are parts of stored variables, read and decoded as xarray decodes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from iobench.chunks.assembler import read_boxes
from iobench.chunks.boxes import Box, indexes_box
from iobench.chunks.chunked_variable import ChunkedVariable, check_known
from iobench.chunks.decoded_chunks import DecodedChunks
from iobench.chunks.netcdf.file import NetcdfFile, read_through_library
from iobench.chunks.packing import unpack
from iobench.chunks.sampled_variable import SampledVariable, chunks_of_sample
from iobench.chunks.zarr_store import read_through_zarr
from iobench.datasets.file_sets import holder
from iobench.datasets.plain_loop import VariablePart
from iobench.errors import OptionError
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import Place
    from iobench.datasets.contract import Arrays, Raw
    from iobench.datasets.file_variables import SourceFile

ENCODER = msgspec.msgpack.Encoder(enc_hook=repr)


class Hyperslab(NamedTuple):
    """What a sample takes of a variable; of dimensions without a range all."""

    variable: str  # its name in the file
    # by dimension: an index, which is then no axis of the array, or ``slice(start, stop)``; those
    # that the variable lacks do not count
    ranges: Mapping[str, int | slice]
    file: int | None = None  # the file's number; by default the sample's own
    name: str = ""  # of the array; by default the variable's
    of_all: bool = False  # whether the file is one that samples of all files need

    @property
    def array(self) -> str:
        """The name of the array."""
        return self.name or self.variable


class ChunkedSamples:
    """Reads and decodes what samples take of the variables of files: their `hyperslabs`.

    An address begins with the number of a file and the index along each sample dimension there.
    """

    name: str
    chunk_cache: DecodedChunks | None = None  # where it helps to know the order of samples
    shared_chunks: Mapping[str, Any] | None = None  # of the variable that most samples share

    def __init__(self) -> None:
        self.fused: tuple[str, ...] = ()
        self.opened: tuple[Any, ...] = ()
        self._dims: tuple[str, ...] = ()
        self._sampled: dict[int, list[SampledVariable]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_sampled": {}}

    def keep_files(self, files: Sequence[SourceFile], dims: Sequence[str]) -> None:
        """Keep what reading needs: it travels to the workers, what files have alike once."""
        known: dict[bytes, ChunkedVariable] = {}

        def shared(each: ChunkedVariable) -> ChunkedVariable:
            return each if each.is_in_chunks else known.setdefault(ENCODER.encode(each), each)

        self._dims, self._sampled = tuple(dims), {}
        self.opened = tuple(
            msgspec.structs.replace(
                file, variables={name: shared(each) for name, each in file.variables.items()}
            )
            for file in files
        )
        every = [each for file in self.opened for each in file.variables.values()]
        self.fused = ("read", "decode") if any(each.only_library for each in every) else ()
        in_chunks = [each for each in every if each.is_in_chunks]
        self._chunks = DecodedChunks(len(self._dims))
        self.chunk_cache = self._chunks if in_chunks and not self.fused else None
        most = 1
        for each in in_chunks:
            chunk = zip(each.dims, each.chunk, strict=True)
            n_samples = math.prod(length for dim, length in chunk if dim in self._dims)
            if n_samples > most:
                most = n_samples
                self.shared_chunks = {
                    "variable": each.name,
                    "sample_dim": ",".join(self._dims),
                    "dims": each.dims,
                    "shape": each.shape,
                    "chunk": each.chunk,
                }

    # ---- what a sample is

    def ranges(self, where: Any) -> Mapping[str, int | slice]:
        """Return what a sample takes of dimensions: an index, or a slice; the others are whole."""
        return dict(zip(self._dims, where[1:], strict=False))

    def files_of(self, where: Any) -> Sequence[int]:
        """Return the numbers of the files that a sample takes variables of: its own."""
        return where[:1]  # type: ignore[no-any-return]

    def hyperslabs(self, where: Any) -> list[Hyperslab]:
        """Return what a sample takes of its files: its `ranges` of each variable."""
        ranges = self.ranges(where)
        return [
            Hyperslab(name, ranges, number)
            for number in self.files_of(where)
            for name in self._file(number).variables
        ]

    def _slabs(self, where: Any) -> list[tuple[Hyperslab, Any]]:
        """Return the hyperslabs of a sample, each with its file."""
        return [
            (each, self._file(where[0] if each.file is None else each.file))
            for each in self.hyperslabs(where)
        ]

    def _file(self, number: int) -> Any:
        if not self.opened:
            raise OptionError(f"{self.name}: call samples() before reading a sample")
        return self.opened[number]

    # ---- the steps

    def read(self, where: Any) -> Any:
        """Return the bytes of the sample's hyperslabs; their arrays where the library must read."""
        slabs = self._slabs(where)
        if self.fused:
            return {
                each.array: through_library(
                    holder(file, each.variable), file.variables[each.variable], each.ranges
                )
                for each, file in slabs
            }
        boxes = [_box(each, file, self._dims) for each, file in slabs]
        return read_boxes(self._chunks, boxes, tuple(where[: 1 + len(self._dims)]))

    def decode(self, raw: Raw, where: Any, out: Mapping[str, NDArray[Any]] | None = None) -> Arrays:
        """Return the arrays of the sample's bytes by name, made in ``out`` where they can be."""
        slabs = self._slabs(where)
        rows = [None if out is None else out[each.array] for each, _ in slabs]
        arrays = {}
        for (slab, file), stored, row in zip(slabs, raw.arrays(rows), rows, strict=True):
            variable = file.variables[slab.variable]
            values = unpack(stored, variable.packing, row)
            if stored.ndim == len(variable.dims):  # of a box, which keeps all dimensions
                single = [isinstance(slab.ranges.get(dim), int) for dim in variable.dims]
                if any(single):
                    values = np.asarray(values[tuple(0 if one else slice(None) for one in single)])
            arrays[slab.array] = values
        return arrays

    def chunks_of(self, where: Any) -> list[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes; none of one that is less than an index of all."""
        dims = set(self._dims)
        slabs = [] if self.fused else self._slabs(where)
        for each, _ in slabs:
            if each.of_all or each.ranges.keys() != dims or not _are_indexes(each.ranges):
                return []
        number, indexes = where[0], where[1 : 1 + len(dims)]
        if slabs and number not in self._sampled:
            self._sampled[number] = [
                SampledVariable(
                    range_file(holder(file, each.variable).path),
                    file.variables[each.variable],
                    self._dims,
                    each.array,
                )
                for each, file in slabs
            ]
        return chunks_of_sample(self._sampled[number], indexes) if slabs else []

    def plain_parts(self, where: Any) -> list[VariablePart]:
        """Return what xarray has to read of a sample."""
        return [
            VariablePart(
                str(holder(file, each.variable).path),
                file.variables[each.variable].name,
                each.ranges,
                name=each.array,
            )
            for each, file in self._slabs(where)
        ]


def only_variables(file: Any, names: Sequence[str]) -> Any:
    """Return a file with these variables alone, in this order: what travels to the workers."""
    variables = {name: file.variables[name] for name in names if name in file.variables}
    return msgspec.structs.replace(file, variables=variables, skipped={})


def through_library(
    file: SourceFile, variable: ChunkedVariable, ranges: Mapping[str, int | slice]
) -> NDArray[Any]:
    """Return the ranges of a variable along dimensions, as far as it has them."""
    selection = tuple(ranges.get(dim, slice(None)) for dim in variable.dims)
    if isinstance(file, NetcdfFile):
        return np.asarray(read_through_library(file, variable, selection))
    return read_through_zarr(variable, selection)


def _are_indexes(ranges: Mapping[str, int | slice]) -> bool:
    return not any(isinstance(part, slice) for part in ranges.values())


def _box(slab: Hyperslab, file: Any, dims: Sequence[str]) -> Box:
    """Return what is read of a variable; of an index along each sample dimension without them."""
    variable, ranges = file.variables[slab.variable], slab.ranges
    path = range_file(holder(file, slab.variable).path)
    if slab.of_all:
        axes = (-1,) * len(dims)
    else:
        axes = tuple([variable.axis(dim) for dim in dims])
        if len(ranges) == len(dims) and _are_indexes(ranges):
            indexes: Any = [ranges.get(dim) for dim in dims]
            if None not in indexes:
                return indexes_box(path, variable, axes, indexes)
    check_known(path, variable)
    ends = []
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        part = ranges.get(dim, slice(None))
        part = part if isinstance(part, slice) else slice(part, part + 1 or None)
        ends.append(part.indices(length)[:2])
    start, stop = zip(*ends, strict=True) if ends else ((), ())
    return Box(path, variable, start, stop, axes, slab.of_all)
