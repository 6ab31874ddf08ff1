"""A store as an xarray dataset, whatever its container: samples are read as they are asked for."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import import_extra
from iobench.stores.index_file import read_index
from iobench.stores.labels import decodable_attributes, label_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.stores.extents import ExtentStore


def store_dataset(store: ExtentStore) -> Any:
    """Return an ``xarray.Dataset`` of a store: `ExtentStore.to_xarray`."""
    xarray = import_extra("xarray", "to_xarray() needs xarray", extra="netcdf")
    manifest = store.manifest
    index = read_index(store.path, manifest)
    known = index.meteorology
    labels = label_store(
        {each.name: each for each in store.spec}, known, len(store), manifest.sample_grid
    )
    variables = {}
    for each in store.spec:
        units = {"units": each.units} if each.units else {}
        attributes = {**labels.attributes[each.name], "role": each.role, **units}
        variables[each.name] = xarray.Variable(
            (*labels.sample_dims, *labels.dims[each.name]),
            xarray.core.indexing.LazilyIndexedArray(
                _array_class()(store, each.name, labels.sample_shape)
            ),
            decodable_attributes(attributes, np.zeros(1, each.dtype)),
        )
    for other in labels.coordinates:
        variables[other.name] = xarray.Variable(other.dims, other.values, other.attributes)
    title = {"title": manifest.dataset} if manifest.dataset else {}
    attributes = {**title, **known.attributes, "Conventions": "CF-1.11"}
    result = xarray.decode_cf(xarray.Dataset(variables, attrs=attributes), decode_timedelta=False)
    if index.splits:
        result.attrs["splits"] = {n: np.asarray(numbers) for n, numbers in index.splits.items()}
    return result


@cache
def _array_class() -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class StoreArray(BackendArray):  # type: ignore[misc]  # xarray is there only if installed
        def __init__(self, store: ExtentStore, name: str, sample_shape: Sequence[int]) -> None:
            variable = store.spec[name]
            self.store, self.name, self.sample_shape = store, name, tuple(sample_shape)
            self.shape = (*self.sample_shape, *variable.shape)
            self.dtype = np.dtype(variable.dtype)

        def __getitem__(self, key: Any) -> Any:
            support = indexing.IndexingSupport.OUTER
            return indexing.explicit_indexing_adapter(key, self.shape, support, self.selection)

        def selection(self, key: Sequence[Any]) -> NDArray[Any]:
            """Return what is at an index, a slice or indices of each axis."""
            rank = len(self.sample_shape)
            chosen = [np.arange(n)[each] for n, each in zip(self.shape, key, strict=True)]
            outer = np.ix_(*map(np.atleast_1d, chosen[:rank]))
            numbers = np.ravel_multi_index(outer, self.sample_shape).reshape(-1)
            inside = np.ix_(*map(np.atleast_1d, chosen[rank:]))
            rows = np.empty((numbers.size, *(len(a) for a in map(np.atleast_1d, chosen[rank:]))),
                            dtype=self.dtype)  # fmt: skip
            for row, number in enumerate(numbers.tolist()):
                rows[row] = self.store[number][self.name][inside]
            return rows.reshape([each.size for each in chosen if each.ndim])

    return StoreArray
