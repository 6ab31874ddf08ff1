"""A store as an xarray dataset, whatever its container: samples are read as they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.coordinates import SampleLabels
from iobench.errors import MissingExtraError
from iobench.stores.index_file import has_index, read_index
from iobench.stores.labels import decodable_attributes, label_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.stores.contract import Store


def store_dataset(store: Store) -> Any:
    """Return an ``xarray.Dataset`` of a store, its variables lazy, its times decoded.

    Dimensions, coordinates and attributes are those that the store's source has
    (`iobench.stores.labels`); ``attrs["splits"]`` has the numbers of each split's samples.
    """
    try:
        import xarray
        from xarray.core.indexing import LazilyIndexedArray
    except ImportError as error:
        raise MissingExtraError(
            "to_xarray() needs xarray: pip install 'iobench[netcdf]'"
        ) from error
    manifest = store.manifest
    index = read_index(store.path, manifest) if has_index(manifest) else None
    known = SampleLabels() if index is None else index.meteorology
    arrays = {each.name: each for each in store.spec}
    labels = label_store(arrays, known, len(store), manifest.sample_grid)
    samples = _Samples(store, labels.sample_shape)
    variables = {}
    for each in store.spec:
        units = {"units": each.units} if each.units else {}
        attributes = {**labels.attributes[each.name], "role": each.role, **units}
        variables[each.name] = xarray.Variable(
            (*labels.sample_dims, *labels.dims[each.name]),
            LazilyIndexedArray(_store_array(samples, each.name)),
            decodable_attributes(attributes, np.zeros(1, each.dtype)),
        )
    for other in labels.coordinates:
        variables[other.name] = xarray.Variable(other.dims, other.values, other.attributes)
    title = {"title": manifest.dataset} if manifest.dataset else {}
    attributes = {**title, **known.attributes, "Conventions": "CF-1.11"}
    result = xarray.decode_cf(xarray.Dataset(variables, attrs=attributes), decode_timedelta=False)
    if index is not None and index.splits:
        result.attrs["splits"] = {n: np.asarray(numbers) for n, numbers in index.splits.items()}
    return result


class _Samples:
    """A store's samples along their dimensions; the last one is kept for its other variables."""

    def __init__(self, store: Store, shape: tuple[int, ...]) -> None:
        self.store = store
        self.shape = shape
        self._last: tuple[int, dict[str, NDArray[Any]]] = (-1, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return _Samples, (self.store, self.shape)

    def __getitem__(self, number: int) -> dict[str, NDArray[Any]]:
        last = self._last
        if last[0] != number:
            self._last = last = number, self.store[number]
        return last[1]


def _store_array(samples: _Samples, name: str) -> Any:
    """Return a variable of all samples, as xarray indexes it."""
    return _array_class()(samples, name)


@cache
def _array_class() -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class StoreArray(BackendArray):  # type: ignore[misc]  # xarray is there only if installed
        def __init__(self, samples: _Samples, name: str) -> None:
            variable = samples.store.spec[name]
            self.samples, self.name = samples, name
            self.shape = (*samples.shape, *variable.shape)
            self.dtype = np.dtype(variable.dtype)

        def __reduce__(self) -> tuple[Any, ...]:
            return _store_array, (self.samples, self.name)

        def __getitem__(self, key: Any) -> Any:
            support = indexing.IndexingSupport.OUTER
            return indexing.explicit_indexing_adapter(
                key, self.shape, support, lambda outer: _read(self.samples, self.name, outer)
            )

    return StoreArray


def _read(samples: _Samples, name: str, key: Sequence[Any]) -> NDArray[Any]:
    """Return a selection of a variable: of each axis an index, a slice or indices."""
    variable, rank = samples.store.spec[name], len(samples.shape)
    shape = (*samples.shape, *variable.shape)
    chosen = [np.arange(n)[each] for n, each in zip(shape, key, strict=True)]
    outer = np.ix_(*map(np.atleast_1d, chosen[:rank]))
    numbers = np.ravel_multi_index(outer, samples.shape).reshape(-1)
    inside = tuple(each.size for each in chosen[rank:] if each.ndim)
    result = np.empty((numbers.size, *inside), dtype=variable.dtype)
    for row, number in enumerate(numbers.tolist()):
        values = samples[number][name]
        for axis in reversed(range(values.ndim)):  # later axes first: an index drops its own
            values = values[(slice(None),) * axis + (key[rank + axis],)]
        result[row] = values
    return result.reshape(*(each.size for each in chosen[:rank] if each.ndim), *inside)
