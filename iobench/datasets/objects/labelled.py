"""``xarray.Dataset`` objects: one index along a dimension, one sample."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.grib.field_cubes import GribFiles
from iobench.chunks.packing import Packing
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_variables import (
    Selection,
    check_sample_dims,
    choose_variables,
    sample_variable,
)
from iobench.datasets.objects.source import ObjectDataset
from iobench.datasets.objects.targets import dask_in_this_thread, in_one_line
from iobench.datasets.objects.values import NUMBER_KINDS, NamedArrays
from iobench.datasets.positions import FileCoordinates, SampleRows
from iobench.errors import OptionError
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.objects.targets import Opener


class LabelledObject(ObjectDataset):
    """Samples of an ``xarray.Dataset``, ``isel(...)`` and ``load()`` in one.

    What is lazy is opened again by each process that reads, where it has a name; what lies in
    memory is shared with forked processes. Dask, where it is used, works in the thread that asks:
    the workers are processes already.
    """

    kind = "xarray.Dataset"
    fused = ("read", "decode")

    def __init__(
        self, opener: Opener, value: Any, sample_dim: str | None, variables: tuple[str, ...]
    ) -> None:
        super().__init__(opener, _as_dataset(value))
        value, selection = self._value, Selection(sample_dim, variables)
        source = _as_file(value, opener.name)
        self._dims = check_sample_dims(sample_dim, source.dims, [source.path])
        names, self._skipped = choose_variables(source, selection, self._dims)
        self._spec = SampleSpec(
            tuple(sample_variable(source.variables[name], selection, self._dims) for name in names)
        )
        for dim in self._dims:
            if not value.sizes[dim]:
                raise OptionError(f"{opener.name}: its dimension {dim} is empty; choose another")
        self.title = f"an {self.kind}, one sample an index of {' and '.join(self._dims)}"
        self.own_files = _files(value)
        self._pid = os.getpid()
        in_memory = all(getattr(value.variables[name], "_in_memory", 0) for name in names)
        self._shared = in_memory or not opener.is_repeatable

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        value, dims = self._object, self._dims
        rows = SampleRows(dims, [_coordinate(value, dim) for dim in dims])
        where = [tuple(indexes) for _, *indexes in rows.where]
        if len(dims) > 1:
            index = SampleIndex(self._spec, where, coordinate=rows.names(), axes=rows.axes)
        else:
            (dim,), (axis,) = dims, rows.axes
            labels = value.indexes.get(dim)
            names = [f"{dim}={n if labels is None else labels[n]}" for (n,) in where]
            index = SampleIndex(self._spec, where, coordinate=names)
            if rows.along[0].is_comparable and _is_row(axis.positions):
                index = replace(index, positions=axis.positions, position_units=axis.units)
        first = NamedArrays()
        with in_one_line(f"{self.name}: loading {' 0, '.join(dims)} 0 raised"):
            first.update(self.read(where[0]))
        first.left_out.update(self._skipped)
        if not self._shared:  # so that no forked process shares its files
            value.close()
            self._value = None
        return index, first

    def read(self, where: tuple[int, ...]) -> dict[str, NDArray[Any]]:
        """Return the sample's arrays, loaded; without coordinates."""
        variables, at = self._object.variables, dict(zip(self._dims, where, strict=True))
        sample = {}
        with dask_in_this_thread():
            for each in self._spec:
                part = variables[each.name].isel(at, missing_dims="ignore")
                sample[each.name] = np.asarray(part.load().values, np.dtype(each.dtype))
        place = ", ".join(f"{dim} {index}" for dim, index in at.items())
        self._spec.check(sample, where=f"{self.name} at {place}")
        return sample

    @property
    def _object(self) -> Any:
        """The dataset, opened by this process where it is lazy."""
        if self._value is None or not (self._shared or self._pid == os.getpid()):
            self._value = _as_dataset(self._opener.make()[0])
            self._pid = os.getpid()
        return self._value


def _as_dataset(value: Any) -> Any:
    """Return an ``xarray.DataArray`` as a dataset of one variable, a dataset as it is."""
    if hasattr(value, "data_vars"):
        return value
    return value.to_dataset(name=value.name or "values")


def _as_file(value: Any, name: str) -> GribFiles:
    """Return a dataset as the source of its numbers."""
    coordinates = " ".join(map(str, value.coords))
    variables, skipped = {}, {}
    for key, each in value.variables.items():
        if each.dtype.kind not in NUMBER_KINDS:
            skipped[str(key)] = f"is no number: dtype {each.dtype}"
            continue
        attributes = {**each.encoding, **each.attrs}
        texts = {key: str(attributes.get(key, "")) for key in ("units", "coordinates", "bounds")}
        texts["coordinates"] += f" {coordinates}"
        packing = Packing(each.dtype.str, each.dtype.str)
        variables[str(key)] = ChunkedVariable(
            str(key), tuple(map(str, each.dims)), each.shape, packing, 0, texts, "xarray"
        )
    dims = {str(dim): length for dim, length in value.sizes.items()}
    return GribFiles(Path(name), dims, variables, skipped)


def _coordinate(value: Any, dim: str) -> FileCoordinates:
    """Return the coordinate of a dimension: times, seconds, numbers; counts without one."""
    labels, units = np.arange(value.sizes[dim]), None
    if dim in value.indexes:
        index = np.asarray(value.indexes[dim].values)
        if index.dtype.kind == "m":
            labels, units = (index - index[0]) / np.timedelta64(1, "s"), "seconds"
        elif index.dtype.kind in "iufM" or hasattr(index[0], "calendar"):  # or cftime's
            labels, units = index, str(value.variables[dim].attrs.get("units", ""))
    return FileCoordinates([labels], [units], [""])


def _is_row(positions: Any) -> bool:
    """Return whether samples lie in one row, along which windows can be laid."""
    steps = np.diff(positions)
    return bool((steps > 0).all() or (steps < 0).all()) and bool(np.isfinite(positions).all())


def _files(value: Any) -> tuple[Path, ...]:
    """Return its local files, as far as xarray knows them."""
    sources = {value.encoding.get("source")}
    sources |= {variable.encoding.get("source") for variable in value.variables.values()}
    paths = [Path(source) for source in sources if isinstance(source, str | os.PathLike)]
    return tuple(sorted(path for path in paths if path.is_file()))
