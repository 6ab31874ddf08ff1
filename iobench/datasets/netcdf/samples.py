"""Samples of users' own NetCDF files: one index along a dimension, file after file."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from iobench.datasets.contract import SampleIndex
from iobench.datasets.grouped import SampleGroups
from iobench.datasets.netcdf.boxes import ChunkedFields, read_fields
from iobench.datasets.netcdf.file import read_through_library, where_slab
from iobench.datasets.netcdf.inspected import inspect_files
from iobench.datasets.netcdf.pieces import pieced_netcdf
from iobench.datasets.netcdf.rows import FileRows
from iobench.datasets.packing import unpack
from iobench.datasets.selection import (
    Selection,
    check_same_schema,
    check_sample_dim,
    choose_variables,
    sample_variable,
)
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Arrays, Locator, Raw
    from iobench.datasets.netcdf.file import NetcdfFile
    from iobench.datasets.pieces import PiecedVariable

__all__ = ["NetcdfSamples"]


class NetcdfSamples(ChunkedFields):
    """Reads and decodes samples of NetCDF files, dtypes as xarray decodes them.

    Samples are counted file after file. Files are put in the order of their coordinate along the
    sample dimension where that orders them (no overlap; times, or one unit): they are then one row
    of samples. Else, as with forecasts that all have the same lead times, they stay in the order
    given and each is a row of its own.
    """

    kind = "NetCDF"

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.fused: tuple[str, ...] = ()
        self._dim = ""
        self._names: tuple[str, ...] = ()
        self._files: tuple[NetcdfFile, ...] = ()

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; files whose schemas differ are an error."""
        # The first by itself: what it lacks is said before thousands are looked into.
        (first,) = inspect_files(files[:1], cache_dir=locator.cache_dir)
        self._dim = check_sample_dim(self.selection.sample_dim, dict(first.dims), files)
        inspected = inspect_files(files, cache_dir=locator.cache_dir, progress=locator.progress)
        first = inspected[0]
        self._names, skipped = choose_variables(first, self.selection, self._dim)
        check_same_schema(inspected, self._names, self._dim)
        rows = FileRows(inspected, self._dim, cache_dir=locator.cache_dir)
        self._files = rows.files
        if any(file.variables[name].storage is None for file in inspected for name in self._names):
            self.fused = ("read", "decode")
        chosen = [file.variables[name] for file in inspected for name in self._names]
        self._find_chunks(self._dim, [(each, each.storage) for each in chosen])
        where = [(n, i) for n, f in enumerate(self._files) for i in range(f.dims[self._dim])]
        return SampleIndex(
            spec=SampleSpec(
                tuple(
                    sample_variable(first.variables[name], self.selection, self._dim)
                    for name in self._names
                )
            ),
            where=where,
            coordinate=[
                f"{self._files[n].path.name} {self._dim}={rows.coordinates[n][i]:g}"
                for n, i in where
            ],
            positions=rows.positions.tolist(),
            position_units=rows.units,
            rows=rows.numbers.tolist() if rows.numbers.any() else (),
            provenance={"sample_dim": self._dim, "skipped": skipped},
        )

    def read(self, where: tuple[int, int]) -> Any:
        """Return the sample's bytes; the arrays themselves where the library must read them."""
        number, index = where
        file = self._files[number]
        if self.fused:
            return {name: self._through_library(file, name, index) for name in self._names}
        slabs = [
            where_slab(file, file.variables[name], dim=self._dim, index=index)
            for name in self._names
        ]
        return read_fields(self._chunks, slabs, where)

    def _through_library(self, file: NetcdfFile, name: str, index: int) -> NDArray[Any]:
        return read_through_library(file, file.variables[name], dim=self._dim, index=index)

    def decode(self, raw: Raw, where: tuple[int, int]) -> Arrays:
        """Return the arrays of the sample's bytes."""
        variables = self._files[where[0]].variables
        return {
            name: unpack(stored, variables[name].packing)
            for name, stored in zip(self._names, raw.arrays(), strict=True)
        }

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order that samples count them by."""
        return tuple(file.path for file in self._files)

    @property
    def sample_dim(self) -> str:
        """The sample dimension; known once `samples` has run."""
        return self._dim

    @cached_property
    def grouped(self) -> SampleGroups:
        """The same samples, made in groups; not where only the library knows the storage."""
        return SampleGroups(self._pieced, len(self._files))

    def _pieced(self, number: int) -> list[PiecedVariable]:
        file = self._files[number]
        return [pieced_netcdf(file, name, self._dim) for name in self._names]
