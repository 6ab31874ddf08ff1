"""Samples that are parts of stored variables, read and decoded as xarray decodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.chunks.assembler import read_boxes
from iobench.chunks.boxes import index_box, indexes_box
from iobench.chunks.chunked_fields import ChunkedFields
from iobench.chunks.netcdf.file import NetcdfFile, read_through_library
from iobench.chunks.packing import unpack
from iobench.chunks.sampled_variable import SampledVariable, chunks_of_sample
from iobench.chunks.zarr_store import read_through_zarr
from iobench.datasets.file_sets import holder
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable, Place
    from iobench.datasets.contract import Arrays, Raw
    from iobench.datasets.file_variables import SourceFile


def through_library(
    file: SourceFile,
    variable: ChunkedVariable,
    dims: Sequence[str] = (),
    indexes: Sequence[int] = (),
) -> NDArray[Any]:
    """Return one index of a variable along each of some dimensions, as far as it has them."""
    places = dict(zip(dims, indexes, strict=True))
    selection = tuple(places.get(dim, slice(None)) for dim in variable.dims)
    if isinstance(file, NetcdfFile):
        return read_through_library(file, variable, selection)
    return read_through_zarr(variable, selection)


class ChunkedSamples(ChunkedFields):
    """Reads and decodes samples; an address is the number of a file and the indexes there."""

    def __init__(self) -> None:
        self.fused: tuple[str, ...] = ()
        self._dims: tuple[str, ...] = ()
        self._axes: dict[str, tuple[int, ...]] = {}
        self._names: tuple[str, ...] = ()
        self._files: tuple[SourceFile, ...] = ()
        self._sampled: dict[int, list[SampledVariable]] = {}

    def read(self, where: tuple[int, ...]) -> Any:
        """Return the sample's bytes; the arrays themselves where the library must read them."""
        number, *indexes = where
        file = self._files[number]
        variables = [file.variables[name] for name in self._names]
        if self.fused:
            return {
                each.name: through_library(holder(file, each.name), each, self._dims, indexes)
                for each in variables
            }
        paths, axes = self._range_files(file), self._axes
        if len(indexes) == 1:
            (index,) = indexes
            boxes = [
                index_box(path, each, axes[each.name][0], index)
                for path, each in zip(paths, variables, strict=True)
            ]
        else:
            boxes = [
                indexes_box(path, each, axes[each.name], indexes)
                for path, each in zip(paths, variables, strict=True)
            ]
        return read_boxes(self._chunks, boxes, where)

    def decode(
        self, raw: Raw, where: tuple[int, ...], out: Mapping[str, NDArray[Any]] | None = None
    ) -> Arrays:
        """Return the arrays of the sample's bytes, made in ``out`` where they can be."""
        file = self._files[where[0]]
        rows: list[NDArray[Any] | None] = [None if out is None else out[n] for n in self._names]
        return {
            name: unpack(stored, file.variables[name].packing, row)
            for name, stored, row in zip(self._names, raw.arrays(rows), rows, strict=True)
        }

    def chunks_of(self, where: tuple[int, ...]) -> list[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes; none where only a library can read them."""
        if self.fused:
            return []
        number, *indexes = where
        if number not in self._sampled:
            file = self._files[number]
            self._sampled[number] = [
                SampledVariable(path, file.variables[name], self._dims)
                for path, name in zip(self._range_files(file), self._names, strict=True)
            ]
        return chunks_of_sample(self._sampled[number], indexes)

    def _range_files(self, file: SourceFile) -> list[str]:
        """Return the file that each variable of a sample is in."""
        if not getattr(file, "others", {}):
            return [range_file(file.path)] * len(self._names)
        return [range_file(holder(file, name).path) for name in self._names]
