"""Samples that are parts of stored variables, read and decoded as xarray decodes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from iobench.chunks.boxes import (
    Box,
    StoredArrays,
    index_box,
    index_row,
    read_boxes,
    rows_in_place,
)
from iobench.chunks.chunked_variable import ChunkedVariable, check_known
from iobench.chunks.decoded_chunks import DecodedChunks
from iobench.chunks.packing import unpack
from iobench.chunks.sampled_variable import SampledVariable, chunks_of_sample
from iobench.datasets.plain_loop import VariablePart
from iobench.errors import OptionError
from iobench.files.ranges import fill_extents, read_extents
from iobench.files.urls import as_path, range_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import Place
    from iobench.chunks.source_file import SourceFile
    from iobench.datasets.contract import Arrays, Raw


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


class _Place(NamedTuple):
    """Where a variable is that samples take at an index along each sample dimension."""

    name: str  # of the array
    variable: ChunkedVariable
    path: str
    axes: tuple[int, ...]  # the sample dimensions; -1 of one that it lacks
    row: Any  # an `IndexRow`, None where a sample's numbers are no part of the file


class ChunkedSamples:
    """Reads and decodes what samples take of the variables of files: their `hyperslabs`.

    An address begins with the number of a file and the index along each sample dimension there.
    """

    name: str
    chunk_cache: DecodedChunks | None = None  # where it helps to know the order of samples
    shared_chunks: Mapping[str, Any] | None = None  # of the variable that most samples share
    fused: tuple[str, ...] = ()
    _are_indexes = False  # whether samples are whole but for their indexes

    def __init__(self) -> None:
        self.opened: tuple[Any, ...] = ()
        self._dims: tuple[str, ...] = ()
        self._known: dict[int, list[_Place]] = {}
        self._sampled: dict[int, list[SampledVariable]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}, "_sampled": {}}

    def keep_files(self, files: Sequence[SourceFile], dims: Sequence[str]) -> None:
        """Keep what reading needs: it travels to the workers."""
        self.opened, self._dims = tuple(files), tuple(dims)
        self._known, self._sampled = {}, {}
        own = type(self).ranges, type(self).hyperslabs
        self._are_indexes = own == (ChunkedSamples.ranges, ChunkedSamples.hyperslabs)
        every = [(file, each) for file in files for each in file.variables.values()]
        for file, each in every:
            check_known(str(file.path), each)
        if any(each.library for _, each in every):
            self.fused = ("read", "decode")
        in_chunks = [each for _, each in every if each.is_in_chunks]
        most, shared = 1, (1,) * len(self._dims)
        for each in in_chunks:
            lengths = dict(zip(each.dims, each.chunk, strict=True))
            if (n_samples := math.prod(lengths.get(dim, 1) for dim in dims)) > most:
                most, shared = n_samples, tuple([lengths.get(dim, 0) for dim in dims])
                facts = {"variable": each.name, "sample_dim": ",".join(dims), "dims": each.dims}
                self.shared_chunks = {**facts, "shape": each.shape, "chunk": each.chunk}
        self._chunks = DecodedChunks(shared)
        self.chunk_cache = self._chunks if in_chunks else None

    @property
    def referenced_files(self) -> list[Path]:
        """The files that references name: what they hold decides what samples are, too."""
        variables = (each for file in self.opened for each in file.variables.values())
        named = {str(file): as_path(file) for each in variables for file in each.files}
        return [named[text] for text in sorted(named)]

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

    def _places(self, where: Any) -> list[_Place] | None:
        """Return where the variables are that a sample takes at an index; None where it is less."""
        if (result := self._known.get(where[0])) is None and self._are_indexes:
            result = self._known[where[0]] = []
            for each, file in self._slabs(where):
                variable, path, axes = _located(file, each.variable, self._dims)
                row = index_row(variable, axes)
                result.append(_Place(each.array, variable, path, axes, row))
        return result

    # ---- the steps

    def read(self, where: Any) -> Any:
        """Return the bytes of the sample's hyperslabs; its arrays where a library decodes them."""
        return self.read_to(where)

    def read_to(self, where: Any, out: Mapping[str, NDArray[Any]] | None = None) -> Any:
        """Return what `read` does; numbers that lie in ``out`` as in the file are read there."""
        return self.decode(self._read(where, {}), where) if self.fused else self._read(where, out)

    def _read(self, where: Any, out: Mapping[str, NDArray[Any]] | None) -> Any:
        sample = tuple(where[: 1 + len(self._dims)])
        if (places := self._places(where)) is None:
            boxes = [_box(each, file, self._dims) for each, file in self._slabs(where)]
            return read_boxes(self._chunks, boxes, sample)
        indexes, targets = sample[1:], [(out or {}).get(each.name) for each in places]
        if None in [each.row for each in places]:
            boxes = [index_box(path, each, axes, indexes) for _, each, path, axes, _ in places]
            return read_boxes(self._chunks, boxes, sample, targets)
        extents = [each.row.at(each.path, indexes) for each in places]
        views = [
            rows_in_place(target, each.row.shape, each.row.dtype, each.row.nbytes)
            for each, target in zip(places, targets, strict=True)
        ]
        in_place = [number for number, view in enumerate(views) if view]
        fill_extents([extents[n] for n in in_place], [views[n][0] for n in in_place])
        rest = iter(read_extents([n for n, view in zip(extents, views, strict=True) if not view]))
        return [view[0] if view else next(rest) for view in views]

    def decode(self, raw: Raw, where: Any, out: Mapping[str, NDArray[Any]] | None = None) -> Arrays:
        """Return the arrays of the sample's bytes by name, made in ``out`` where they can be."""
        if (places := self._places(where)) is not None:
            rows = [None if out is None else out[each.name] for each in places]
            if isinstance(raw, StoredArrays):
                every = raw.arrays(rows)
            else:
                every = [
                    row if row is not None and data.obj is row else each.row.array(data)
                    for each, data, row in zip(places, raw, rows, strict=True)
                ]
            return {
                each.name: unpack(stored, each.variable.packing, row)
                for each, stored, row in zip(places, every, rows, strict=True)
            }
        arrays, slabs = {}, self._slabs(where)
        every = raw.arrays([(out or {}).get(slab.array) for slab, _ in slabs])
        for (slab, file), stored in zip(slabs, every, strict=True):
            variable = file.variables[slab.variable]
            single = [isinstance(slab.ranges.get(dim), int) for dim in variable.dims]
            index = tuple(0 if one else slice(None) for one in single)
            arrays[slab.array] = np.asarray(unpack(stored, variable.packing)[index])
        return arrays

    def chunks_of(self, where: Any) -> list[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes; none of one that is less than an index of all."""
        places, number = self._places(where), where[0]
        if places is None:
            return []
        if number not in self._sampled:
            self._sampled[number] = [
                SampledVariable(each.path, each.variable, self._dims, each.name) for each in places
            ]
        return chunks_of_sample(self._sampled[number], where[1 : 1 + len(self._dims)])

    def plain_parts(self, where: Any) -> list[VariablePart]:
        """Return what xarray has to read of a sample."""
        return [
            VariablePart(
                str(file.holder(each.variable).path),
                file.variables[each.variable].name,
                each.ranges,
                name=each.array,
            )
            for each, file in self._slabs(where)
        ]


def only_variables(file: Any, names: Sequence[str]) -> Any:
    """Return a file with these variables alone, in this order: what travels to the workers."""
    variables = {name: file.variables[name] for name in names if name in file.variables}
    return msgspec.structs.replace(
        file, variables=variables, skipped={}, coordinates={}, described={}
    )


def _located(
    file: Any, name: str, dims: Sequence[str]
) -> tuple[ChunkedVariable, str, tuple[int, ...]]:
    """Return a variable of a file, the file that holds it, and which axes some dimensions are."""
    variable = file.variables[name]
    path = range_file(file.holder(name).path)
    return variable, path, tuple([variable.axis(dim) for dim in dims])


def _box(slab: Hyperslab, file: Any, dims: Sequence[str]) -> Box:
    """Return what is read of a variable, with all its dimensions."""
    variable, path, axes = _located(file, slab.variable, dims)
    ends = []
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        part = slab.ranges.get(dim, slice(None))
        part = part if isinstance(part, slice) else slice(part, part + 1 or None)
        ends.append(part.indices(length)[:2])
    start, stop = zip(*ends, strict=True) if ends else ((), ())
    return Box(path, variable, start, stop, (-1,) * len(dims) if slab.of_all else axes, slab.of_all)
