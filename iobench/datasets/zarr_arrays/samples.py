"""Samples of users' own Zarr stores: one index along a dimension, store after store."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.contract import SampleIndex
from iobench.datasets.decoded_chunks import DecodedChunks, file_and_index, widest_chunks
from iobench.datasets.grouped import SampleGroups
from iobench.datasets.packing import unpack
from iobench.datasets.rows import SampleRows
from iobench.datasets.selection import (
    Selection,
    check_same_schema,
    check_sample_dim,
    choose_variables,
    sample_variable,
)
from iobench.datasets.zarr_arrays.chunks import Cut, check_held, cut_array, read_cut, read_cuts
from iobench.datasets.zarr_arrays.pieces import PiecedZarr
from iobench.datasets.zarr_arrays.store import inspect_zarr, metadata_fingerprint
from iobench.datasets.zarr_arrays.through_library import check_through_zarr, read_through_zarr
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Arrays, Locator, Raw, SharedChunks
    from iobench.datasets.zarr_arrays.arrays import ZarrStore, ZarrVariable

__all__ = ["ZarrSamples"]


class ZarrSamples:
    """Reads and decodes samples of Zarr stores, dtypes as xarray decodes them.

    Samples are counted store after store, in the order of their coordinate along the sample
    dimension where that orders the stores (no overlap, one unit); else in the order given.
    """

    kind = "Zarr"

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.fused: tuple[str, ...] = ()
        self._dim = ""
        self._names: tuple[str, ...] = ()
        self._stores: tuple[ZarrStore, ...] = ()
        self._chunks = DecodedChunks()

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; stores whose schemas differ are an error."""
        inspected = []
        for number, path in enumerate(files):
            inspected.append(inspect_zarr(path))
            locator.progress(number + 1, len(files))
        first = inspected[0]
        self._dim = check_sample_dim(self.selection.sample_dim, dict(first.dims), files)
        self._names, skipped = choose_variables(first, self.selection, self._dim)
        check_same_schema(inspected, self._names, self._dim)
        for store in inspected:
            for name in self._names:
                check_held(store.variables[name])
        rows = SampleRows(
            [_coordinate(store, self._dim) for store in inspected],
            [_attribute(store, self._dim, "units") for store in inspected],
            [_attribute(store, self._dim, "calendar") for store in inspected],
        )
        self._stores = tuple(inspected[number] for number in rows.order)
        chosen = [store.variables[name] for store in inspected for name in self._names]
        through_zarr = [variable for variable in chosen if variable.chunking is None]
        for variable in through_zarr:
            check_through_zarr(variable)
        self.fused = ("read", "decode") if through_zarr else ()
        where = [
            (n, i) for n, store in enumerate(self._stores) for i in range(store.dims[self._dim])
        ]
        return SampleIndex(
            spec=SampleSpec(
                tuple(
                    sample_variable(first.variables[name], self.selection, self._dim)
                    for name in self._names
                )
            ),
            where=where,
            coordinate=[
                f"{self._stores[n].path.name} {self._dim}={_spelled(rows.values[n][i])}"
                for n, i in where
            ],
            positions=rows.positions.tolist(),
            position_units=rows.units,
            rows=rows.numbers.tolist() if rows.numbers.any() else (),
            provenance={"sample_dim": self._dim, "skipped": skipped},
        )

    def facts(self, path: Path) -> dict[str, Any]:
        """Return name, size of the numbers and a fingerprint of the metadata of a store."""
        store = inspect_zarr(path)
        nbytes = sum(
            int(np.prod(each.shape, dtype=np.int64)) * np.dtype(each.dtype).itemsize
            for each in store.variables.values()
        )
        return {
            "name": path.name,
            "zarr_format": store.zarr_format,
            "nbytes": nbytes,
            "fingerprint": metadata_fingerprint(store),
        }

    def read(self, where: tuple[int, int]) -> Any:
        """Return the sample's bytes; the arrays themselves where zarr must read them."""
        number, index = where
        store = self._stores[number]
        cuts = [_cut(store.variables[name], self._dim, index) for name in self._names]
        if self.fused:
            return {
                name: read_through_zarr(cut.variable, axis=cut.axis, index=cut.index)
                for name, cut in zip(self._names, cuts, strict=True)
            }
        return read_cuts(self._chunks, cuts, where)

    def decode(self, raw: Raw, where: tuple[int, int]) -> Arrays:
        """Return the arrays of the sample's bytes."""
        variables = self._stores[where[0]].variables
        packings = [variables[name].packing for name in self._names]
        return {
            name: unpack(stored.view(packing.stored), packing)
            for name, packing, stored in zip(self._names, packings, raw.arrays(), strict=True)
        }

    @property
    def has_chunks(self) -> bool:
        """Whether there are chunks that are kept decoded."""
        return not self.fused

    def expect(self, where: Sequence[tuple[int, int]], *, follows: bool) -> None:
        """Say which samples will be asked for, in order; see `DecodedChunks.expect`."""
        self._chunks.expect(*file_and_index(where), follows=follows)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The stores, in the order that samples count them by."""
        return tuple(store.path for store in self._stores)

    @property
    def sample_dim(self) -> str:
        """The sample dimension; known once `samples` has run."""
        return self._dim

    def chunking(self) -> SharedChunks | None:
        """Return the variable of whose chunks a sample takes least; None where all are its own."""
        chosen = [self._stores[0].variables[name] for name in self._names]
        return widest_chunks(
            self._dim,
            (
                (each.name, each.dims, each.shape, each.chunking.codecs.shape)
                for each in chosen
                if each.chunking is not None
            ),
        )

    @cached_property
    def grouped(self) -> SampleGroups:
        """The same samples, made in groups; not where only zarr can read them."""
        return SampleGroups(self._pieced, len(self._stores))

    def _pieced(self, number: int) -> list[PiecedZarr]:
        variables = self._stores[number].variables
        return [PiecedZarr(variables[name], self._dim) for name in self._names]


def _cut(variable: ZarrVariable, dim: str, index: int) -> Cut:
    axis = variable.dims.index(dim) if dim in variable.dims else -1
    return Cut(variable, axis, index if axis >= 0 else -1)


def _coordinate_variable(store: ZarrStore, dim: str) -> ZarrVariable | None:
    variable = store.variables.get(dim) or store.dates.get(dim)
    return variable if variable is not None and variable.dims == (dim,) else None


def _coordinate(store: ZarrStore, dim: str) -> NDArray[Any]:
    """Return the coordinate along ``dim``, or the indices where it has none."""
    variable = _coordinate_variable(store, dim)
    if variable is None:
        return np.arange(store.dims[dim])
    if variable.chunking is None:
        values = read_through_zarr(variable, axis=-1, index=-1)
    else:
        # Without the fill value: zarr's default of 0 is a time like any other.
        values = cut_array(Cut(variable), read_cut(Cut(variable)))
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _attribute(store: ZarrStore, dim: str, name: str) -> str | None:
    """Return an attribute of the coordinate, "" where it lacks it, None without a coordinate."""
    variable = _coordinate_variable(store, dim)
    return None if variable is None else variable.attributes.get(name, "")


def _spelled(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto")) if value == value else "unknown"
    return f"{value:g}" if isinstance(value, np.number | int | float) else str(value)
