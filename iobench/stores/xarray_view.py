"""A store as an xarray dataset, whatever its container: samples are read as they are asked for."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import MissingExtraError
from iobench.stores.index_file import has_index, read_meteorology
from iobench.stores.labels import ArrayLabels, label_store
from iobench.stores.time_units import decodable_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.stores.contract import Store


def store_dataset(store: Store) -> Any:
    """Return an ``xarray.Dataset`` of a store, its variables lazy, its times decoded.

    Dimensions, coordinates and attributes are those that the store's source has
    (`iobench.stores.labels`); ``attrs["splits"]`` has the numbers of each split's samples. A store
    of a former version has neither.
    """
    try:
        import xarray
        from xarray.core.indexing import LazilyIndexedArray
    except ImportError as error:
        raise MissingExtraError(
            "to_xarray() needs xarray: pip install 'iobench[netcdf]'"
        ) from error
    manifest = store.manifest
    known = read_meteorology(store.path, manifest)
    labels = label_store(
        {
            each.name: ArrayLabels(each.dims, each.shape, each.channels, each.name)
            for each in store.spec
        },
        known,
        len(store),
        manifest.sample_grid,
    )
    samples = _Samples(store, labels.sample_shape)
    variables = {}
    for each in store.spec:
        units = {"units": each.units} if each.units else {}
        variables[each.name] = xarray.Variable(
            (*labels.sample_dims, *labels.dims[each.name]),
            LazilyIndexedArray(_lazy_array(samples, each.name)),
            decodable_attributes(
                {**labels.attributes[each.name], "role": each.role, **units},
                np.zeros(1, each.dtype),
            ),
        )
    for beside in labels.coordinates:
        variables[beside.name] = xarray.Variable(beside.dims, beside.values, beside.attributes)
    title = {"title": manifest.dataset} if manifest.dataset else {}
    attributes = {**title, **known.attributes, "Conventions": "CF-1.11"}
    made = xarray.decode_cf(xarray.Dataset(variables, attrs=attributes), decode_timedelta=False)
    if has_index(manifest) and (splits := store.index().splits):
        made.attrs["splits"] = {name: np.asarray(numbers) for name, numbers in splits.items()}
    return made


class _Samples:
    """Reads what is asked of a store's samples; remembers the last one, for its other variables."""

    def __init__(self, store: Store, shape: tuple[int, ...]) -> None:
        self.store = store
        self.shape = shape
        self._last = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Samples, (self.store, self.shape)

    def sample(self, number: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample."""
        number_and_sample = getattr(self._last, "kept", None)
        if number_and_sample is None or number_and_sample[0] != number:
            self._last.kept = number_and_sample = number, self.store[number]
        found: dict[str, NDArray[Any]] = number_and_sample[1]
        return found

    def values(self, name: str, key: Sequence[Any]) -> NDArray[Any]:
        """Return an outer selection of a variable: of each axis an index, a slice or indices."""
        rank = len(self.shape)
        wanted = [np.arange(n)[each] for n, each in zip(self.shape, key[:rank], strict=True)]
        lengths = tuple(each.size for each in wanted if each.ndim)
        numbers = np.ravel_multi_index(np.ix_(*map(np.atleast_1d, wanted)), self.shape).reshape(-1)
        variable = self.store.spec[name]
        inside = key[rank:]
        kept = [np.arange(n)[each] for n, each in zip(variable.shape, inside, strict=True)]
        shape = tuple(each.size for each in kept if each.ndim)
        found = np.empty((numbers.size, *shape), dtype=variable.dtype)
        for place, number in enumerate(numbers.tolist()):
            values = self.sample(number)[name]
            for axis in reversed(range(values.ndim)):  # later axes first: an index drops its own
                values = values[(slice(None),) * axis + (inside[axis],)]
            found[place] = values
        return found.reshape(*lengths, *shape)


def _lazy_array(samples: _Samples, name: str) -> Any:
    """Return a variable of all samples as xarray indexes it."""
    return _lazy_class()(samples, name)


@cache
def _lazy_class() -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class StoreArray(BackendArray):  # type: ignore[misc]  # xarray is there only if installed
        def __init__(self, samples: _Samples, name: str) -> None:
            variable = samples.store.spec[name]
            self.samples, self.name = samples, name
            self.shape = (*samples.shape, *variable.shape)
            self.dtype = np.dtype(variable.dtype)

        def __reduce__(self) -> tuple[Any, ...]:
            return _lazy_array, (self.samples, self.name)

        def __getitem__(self, key: Any) -> Any:
            return indexing.explicit_indexing_adapter(
                key,
                self.shape,
                indexing.IndexingSupport.OUTER,
                lambda told: self.samples.values(self.name, told),
            )

    return StoreArray
