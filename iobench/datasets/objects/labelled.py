"""``xarray.Dataset`` objects: one index along a dimension, one sample."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
from iobench.datasets.objects.targets import in_one_line
from iobench.datasets.objects.values import NamedArrays
from iobench.datasets.positions import time_positions
from iobench.datasets.rows import SampleGrid, SampleRows
from iobench.errors import OptionError, SampleError
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.objects.targets import Opener

NUMBER_KINDS = "biufc"


class LabelledObject:
    """Samples of an ``xarray.Dataset``, ``isel(...)`` and ``load()`` in one.

    What is lazy is opened again by each process that reads, where it has a name; what lies in
    memory is shared with forked processes. Dask, where it is used, works in the thread that asks:
    the workers are processes already.
    """

    kind = "xarray.Dataset"
    fused = ("read", "decode")

    def __init__(self, opener: Opener, value: Any, selection: Selection) -> None:
        self._opener = opener
        self._selection = selection
        source = _as_file(value, opener.name)
        self._dims = check_sample_dims(selection.sample_dim, source.dims, [source.path])
        self._names, self.skipped = choose_variables(source, selection, self._dims)
        self._stored = [source.variables[name] for name in self._names]
        self._spec: SampleSpec | None = None
        self.files = _files(value)
        self._value: Any = value
        self._chosen: Any = None
        self._pid = os.getpid()
        in_memory = all(_in_memory(value.variables[name]) for name in self._names)
        self._shared = in_memory or not opener.makes_it_anew

    @property
    def title(self) -> str:
        """One line saying what it is."""
        return f"an {self.kind}, one sample an index of {' and '.join(self._dims)}"

    def samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return one sample for each index, and the first."""
        name = self._opener.name
        if self._value is None:
            self._value = as_dataset(self._opener.open())
        value = self._value
        lengths = [value.sizes[dim] for dim in self._dims]
        for dim, length in zip(self._dims, lengths, strict=True):
            if length < 1:
                raise OptionError(f"{name}: its dimension {dim} is empty; choose another one")
        self._spec = SampleSpec(
            tuple(sample_variable(each, self._selection, self._dims) for each in self._stored)
        )
        if len(self._dims) == 1:
            (length,), labels = lengths, value.indexes.get(self._dims[0])
            index = SampleIndex(
                spec=self._spec,
                where=range(length),
                coordinate=[
                    f"{self._dims[0]}={number if labels is None else labels[number]}"
                    for number in range(length)
                ],
                **_positions(value, self._dims[0]),
            )
        else:
            rows = [_along(value, dim) for dim in self._dims]
            grid = SampleGrid(self._dims, rows, [lengths])
            index = SampleIndex(
                spec=self._spec,
                where=[tuple(indexes) for _, *indexes in grid.where],
                coordinate=grid.names,
                axes=grid.axes,
            )
        first = NamedArrays()
        with in_one_line(f"{name}: loading {' 0, '.join(self._dims)} 0 raised"):
            first.update(self.read(index.where[0]))
        first.left_out.update(self.skipped)
        if not self._shared:  # so that no forked process shares its files
            value.close()
            self._value = self._chosen = None
        return index, first

    def read(self, where: int | tuple[int, ...]) -> dict[str, NDArray[Any]]:
        """Return the sample's arrays, loaded."""
        if self._spec is None:
            raise SampleError(f"{self._opener.name}: call samples() before read()")
        at = dict(zip(self._dims, (where,) if isinstance(where, int) else where, strict=True))
        part = self._selected().isel(at, missing_dims="ignore")
        with dask_in_this_thread():
            part = part.load()
        sample = {
            variable.name: np.asarray(
                part.variables[variable.name].values, np.dtype(variable.dtype)
            )
            for variable in self._spec
        }
        self._spec.check(sample, where=f"{self._opener.name} at {_spelled(at)}")
        return sample

    def decode(self, raw: Any) -> Any:
        """Return what ``read`` did; never called."""
        return raw

    def preprocess(self, arrays: Any, where: int | tuple[int, ...]) -> Any:
        """Return the arrays as they are."""
        return arrays

    def _selected(self) -> Any:
        """Return the chosen variables without coordinates, whose loading is not wanted."""
        if self._chosen is None or not (self._shared or self._pid == os.getpid()):
            import xarray

            if self._value is None or not (self._shared or self._pid == os.getpid()):
                self._value = as_dataset(self._opener.open())
            variables = {name: self._value.variables[name] for name in self._names}
            self._chosen = xarray.Dataset(variables)
            self._pid = os.getpid()
        return self._chosen

    def __getstate__(self) -> dict[str, Any]:
        if not self._opener.makes_it_anew:
            return dict(self.__dict__)
        return {**self.__dict__, "_value": None, "_chosen": None}


def as_dataset(value: Any) -> Any:
    """Return an ``xarray.DataArray`` as a dataset of one variable, anything else as it is."""
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(value, xarray.DataArray):
        return value.to_dataset(name=value.name or "values")
    return value


def _as_file(value: Any, name: str) -> GribFiles:
    """Return a dataset as the source of its numbers."""
    beside = " ".join(map(str, value.coords))
    variables, skipped = {}, {}
    for key, each in value.variables.items():
        if each.dtype.kind not in NUMBER_KINDS:
            skipped[str(key)] = f"is no number: dtype {each.dtype}"
            continue
        attributes = {**each.encoding, **each.attrs}
        texts = {key: str(attributes.get(key, "")) for key in ("units", "coordinates", "bounds")}
        texts["coordinates"] += f" {beside}"
        packing = Packing(each.dtype.str, each.dtype.str)
        variables[str(key)] = ChunkedVariable(
            str(key), tuple(map(str, each.dims)), each.shape, packing, 0, texts, "xarray"
        )
    dims = {str(dim): length for dim, length in value.sizes.items()}
    return GribFiles(Path(name), dims, variables, skipped)


def _positions(value: Any, dim: str) -> dict[str, Any]:
    """Return where the samples lie along their dimension, times as those of files."""
    if dim not in value.indexes:
        return {}
    labels = np.asarray(value.indexes[dim].values)
    if labels.dtype.kind == "M" or hasattr(labels[0], "calendar"):  # or cftime's
        places, units = time_positions(labels)
    elif labels.dtype.kind == "m":
        places, units = (labels - labels[0]) / np.timedelta64(1, "s"), "seconds"
    elif labels.dtype.kind in "iuf":
        places, units = labels, str(value.variables[dim].attrs.get("units", ""))
    else:
        return {}
    steps = np.diff(places)
    if not (np.isfinite(places).all() and ((steps > 0).all() or (steps < 0).all())):
        return {}  # in no row that windows could be laid over
    return {"positions": [float(place) for place in places], "position_units": units}


def _spelled(at: dict[str, int]) -> str:
    return ", ".join(f"{dim} {index}" for dim, index in at.items())


def _along(value: Any, dim: str) -> SampleRows:
    """Return the coordinate of a dimension, counts without one."""
    labels = np.arange(value.sizes[dim])
    units = None
    if dim in value.indexes:
        found = np.asarray(value.indexes[dim].values)
        if found.dtype.kind in "iufM" or hasattr(found[0], "calendar"):
            labels, units = found, str(value.variables[dim].attrs.get("units", ""))
    return SampleRows([labels], [units], [""])


def _files(value: Any) -> tuple[Path, ...]:
    """Return the local files behind it, as far as xarray tells."""
    sources = {value.encoding.get("source")}
    sources |= {variable.encoding.get("source") for variable in value.variables.values()}
    paths = [Path(source) for source in sources if isinstance(source, str | os.PathLike)]
    return tuple(sorted(path for path in paths if path.is_file()))


def _in_memory(variable: Any) -> bool:
    return bool(getattr(variable, "_in_memory", False))


@contextlib.contextmanager
def dask_in_this_thread() -> Iterator[None]:
    """Let dask, where there is one, compute in the thread that asks."""
    if importlib.util.find_spec("dask") is None:
        yield
        return
    import dask

    with dask.config.set(scheduler="synchronous"):
        yield
