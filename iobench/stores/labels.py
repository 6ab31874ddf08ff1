"""How the arrays of a store are labelled: names of dimensions, and coordinates along them.

As xarray needs them: a name has one length, and a variable that is called as a dimension lies along
it alone. Where the samples of a store are a whole grid of dates and members, say, they have a
dimension for each; else one, called as what they are along, or ``sample``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.cf_times import coordinate_times
from iobench.coordinates import SAMPLE_DIM, Coordinate, SampleLabels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.samples import Variable

POINTERS: Final = frozenset(
    {"coordinates", "grid_mapping", "bounds", "climatology", "formula_terms"}
)
"""Attributes that name other variables: right only where these are there."""
OF_SPEC: Final = frozenset({"units", "role"})
"""What the spec of a sample says, which preprocessing may have changed."""

UNDECODED_UNITS: Final = "time_units"
"""The attribute that has units of time which xarray cannot decode."""


class StoreLabels(msgspec.Struct, frozen=True):
    """Names for all that a store holds."""

    sample_dims: tuple[str, ...]  # the first dimensions of each array
    sample_shape: tuple[int, ...]  # their lengths
    dims: Mapping[str, tuple[str, ...]]  # the other dimensions of each array
    attributes: Mapping[str, Mapping[str, Any]]  # of each array, as CF has them, without units
    coordinates: tuple[Coordinate, ...]  # along these dimensions; names are none of an array's


def sample_grid(index: SampleIndex, samples: Sequence[int] | NDArray[np.int64]) -> dict[str, int]:
    """Return the lengths of the dimensions that some samples fill as a grid, the last fastest.

    Empty where they are along fewer than two, or not every combination of coordinates is there
    once, in order.
    """
    dims = index.meteorology.sample_dims
    if len(dims) < 2 or not len(samples):
        return {}
    chosen = np.asarray(samples, dtype=np.int64)
    counted = {axis.name: np.asarray(axis.positions) for axis in index.axes}
    places = []
    for dim in dims:
        known = index.meteorology.along(dim)
        values = counted.get(dim, np.empty(0)) if known is None else known.values
        if not values.size:
            return {}
        _, first, place = np.unique(values[chosen], return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(first))  # numbered as they are first met
        places.append(order[place.reshape(-1)])
    shape = tuple(int(place.max()) + 1 for place in places)
    if math.prod(shape) != chosen.size:
        return {}
    expected = np.arange(chosen.size)
    if not np.array_equal(np.ravel_multi_index(tuple(places), shape), expected):
        return {}
    return dict(zip(dims, shape, strict=True))


def unique_dims(
    shapes: Sequence[tuple[tuple[int, ...], tuple[str, ...]]],
) -> list[tuple[str, ...]]:
    """Return dimension names with one length each in the group, as xarray needs them.

    A name of several lengths, or twice in one array, gets the length, or a number, appended; so
    does ``sample``.
    """
    lengths: dict[str, set[int]] = {SAMPLE_DIM: {-1}}
    for shape, dims in shapes:
        for name, length in zip(dims, shape, strict=True):
            lengths.setdefault(name, set()).add(length)
    taken, renamed = set(lengths), {}

    def unique(name: str, length: int, n_before: int) -> str:
        key = (name, length, n_before)
        if key not in renamed:
            is_one = len(lengths[name]) == 1 and name
            new = (name or "dim") + ("" if is_one else f"_{length}")
            new += f"_{n_before + 1}" if n_before else ""
            while new != name and new in taken:
                new += "_"
            taken.add(new)
            renamed[key] = new
        return renamed[key]

    return [
        tuple(
            unique(name, length, dims[:axis].count(name))
            for axis, (name, length) in enumerate(zip(dims, shape, strict=True))
        )
        for shape, dims in shapes
    ]


def label_store(
    arrays: Mapping[str, Variable],
    meteorology: SampleLabels,
    n_samples: int,
    grid: Mapping[str, int],
    *,
    is_free: Callable[[str], bool] = bool,
) -> StoreLabels:
    """Return the labels of a store's arrays."""
    sample_dims = _sample_dims(arrays, meteorology, n_samples, grid)
    sample_shape = tuple(grid.values()) if len(sample_dims) > 1 else (n_samples,)
    shapes = [(each.shape, each.dims) for each in arrays.values()]
    dims = dict(zip(arrays, unique_dims(shapes), strict=True))
    every = dict(zip(sample_dims, sample_shape, strict=True))
    named: dict[tuple[str, int], str] = {}
    for name, array in arrays.items():
        named |= dict(zip(zip(array.dims, array.shape, strict=True), dims[name], strict=True))
        every |= dict(zip(dims[name], array.shape, strict=True))
    by_name: dict[str, Coordinate] = {}
    for each in meteorology.coordinates:
        if each.of_samples and each.name in every and each.name not in sample_dims:
            # Samples that are parts of an index keep the dimension, of one value each.
            each = replace(each, name=f"{SAMPLE_DIM}_{each.name}")
        placed = _placed(each, sample_dims, sample_shape, named)
        if placed.name not in arrays and is_free(placed.name) and _fits(placed, every, arrays):
            by_name[placed.name] = placed
            every |= dict(zip(placed.dims, placed.values.shape, strict=True))
    for each in _of_channels(arrays, dims) if meteorology else ():
        if each.name not in by_name and each.name not in arrays and is_free(each.name):
            by_name[each.name] = each
    attributes = {
        name: _attributes(array, (*sample_dims, *dims[name]), meteorology, by_name)
        for name, array in arrays.items()
    }
    coordinates = []
    for each in by_name.values():
        own = {
            key: value
            for key, value in each.attributes.items()
            if key not in POINTERS or (isinstance(value, str) and _names(value) <= set(by_name))
        }
        coordinates.append(replace(each, attributes=decodable_attributes(own, each.values)))
    return StoreLabels(sample_dims, sample_shape, dims, attributes, tuple(coordinates))


def _names(text: str) -> set[str]:
    """Return the variables that an attribute names, as ``a: hyam b: hybm`` does."""
    return {word for word in text.split() if not word.endswith(":")}


def _sample_dims(
    arrays: Mapping[str, Variable],
    meteorology: SampleLabels,
    n_samples: int,
    grid: Mapping[str, int],
) -> tuple[str, ...]:
    """Return the names of the dimensions of the samples: as the source has them, where one can."""
    names = tuple(grid) if grid else meteorology.sample_dims
    taken = {*arrays, *(dim for each in arrays.values() for dim in each.dims)}
    if not names or not taken.isdisjoint(names) or len(set(names)) != len(names):
        return (SAMPLE_DIM,) if not grid else tuple(f"{SAMPLE_DIM}_{name}" for name in names)
    if grid:
        return names
    along = meteorology.along(names[0]) if len(names) == 1 else None
    # With indexes NumPy sorts: of as many values as these, hashing them takes a hundred times that.
    is_index = along is not None and len(np.unique(along.values, return_index=True)[1]) == n_samples
    return names if is_index else (SAMPLE_DIM,)  # a value that is there twice makes no index


def _placed(
    each: Coordinate,
    sample_dims: tuple[str, ...],
    sample_shape: tuple[int, ...],
    named: Mapping[tuple[str, int], str],
) -> Coordinate:
    """Return a coordinate along the dimensions of the arrays."""
    values, dims = each.values, list(each.dims)
    own: list[str] = []
    if each.of_samples:
        values = values.reshape(*sample_shape, *values.shape[1:])
        own, dims = list(sample_dims), dims[1:]
        for dim in sample_dims if len(sample_dims) > 1 else ():
            axis = own.index(dim)
            first = values.take([0], axis=axis)
            if dim != each.name and len(own) > 1 and (values == first).all():
                values = first.squeeze(axis)
                own.remove(dim)
    rest = values.shape[len(own) :]
    inner = [named.get((dim, n), dim) for dim, n in zip(dims, rest, strict=True)]
    # A dimension that was renamed takes its coordinate with it.
    is_dim = not each.of_samples and each.dims == (each.name,)
    return Coordinate(inner[0] if is_dim else each.name, (*own, *inner), values, each.attributes)


def _fits(each: Coordinate, dims: Mapping[str, int], arrays: Mapping[str, Variable]) -> bool:
    """Return whether a coordinate can stand beside the arrays; bounds have a dimension more."""
    if each.name in dims and each.dims != (each.name,):
        return False
    lengths = zip(each.dims, each.values.shape, strict=True)
    if any(dims.get(dim, length) != length for dim, length in lengths):
        return False
    *first, last = [dim in dims for dim in each.dims] or [True]
    return all(first) and (last or (bool(first) and each.dims[-1] not in arrays))


def _of_channels(
    arrays: Mapping[str, Variable], dims: Mapping[str, tuple[str, ...]]
) -> Iterator[Coordinate]:
    """Yield the names of channels along their dimension, where all arrays have the same there."""
    by_dim: dict[str, tuple[str, ...]] = {}
    for name, each in arrays.items():
        if not each.channels:
            continue
        axis = each.dims.index("channel") if "channel" in each.dims else 0
        dim, channels = dims[name][axis], tuple(each.channels)
        by_dim[dim] = channels if by_dim.get(dim, channels) == channels else ()
    for dim, channels in by_dim.items():
        if channels:
            yield Coordinate(dim, (dim,), np.array(channels, dtype=np.str_), {})


def _attributes(
    each: Variable,
    dims: tuple[str, ...],
    meteorology: SampleLabels,
    coordinates: Mapping[str, Coordinate],
) -> dict[str, Any]:
    """Return the attributes of an array's variable, and its coordinates."""
    known = meteorology.variables.get(each.name, {})
    own = {key: value for key, value in known.items() if key not in POINTERS | OF_SPEC}
    mapping = str(known.get("grid_mapping", "")).partition(":")[0]
    if mapping in coordinates:
        own["grid_mapping"] = mapping
    bounds = {str(one.attributes.get("bounds", "")) for one in coordinates.values()}
    auxiliary = [
        name
        for name, one in coordinates.items()
        if one.dims != (name,) and set(one.dims) <= set(dims)
        if name not in bounds and " " not in name
    ]
    return {**own, **({"coordinates": " ".join(sorted(auxiliary))} if auxiliary else {})}


def decodable_attributes(attributes: Mapping[str, Any], values: NDArray[Any]) -> dict[str, Any]:
    """Return the attributes of numbers so that xarray opens them: as times, or as they are.

    Units of time that it cannot decode would keep it from opening a whole store.
    """
    is_time = "since" in str(attributes.get("units", "")) and values.dtype.kind in "iuf"
    if not is_time or coordinate_times(values, attributes) is not None:
        return {key: each for key, each in attributes.items() if key != "calendar" or each}
    return {UNDECODED_UNITS if key == "units" else key: each for key, each in attributes.items()}
