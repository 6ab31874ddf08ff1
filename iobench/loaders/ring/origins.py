"""Where the samples of a batch are from: their numbers, corners of patches, coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.positions import coordinate_times
from iobench.errors import StoreError
from iobench.loaders.ring.patch_source import PatchSource
from iobench.loaders.ring.telling import beneath
from iobench.loaders.ring.wrapped_source import WrappedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.coordinates import Coordinate
    from iobench.loaders.ring.composed_source import SampleFacts
    from iobench.loaders.ring.contract import BatchSource


def coordinates_of(
    source: BatchSource, samples: NDArray[np.int64], epoch: int, facts: SampleFacts | None
) -> dict[str, NDArray[Any]]:
    """Return where samples of a source are from; see `RingLoader.coordinates`."""
    numbers, starts, lengths = samples, {}, {}
    whole = {d: n for v in source.spec for d, n in zip(v.dims, v.shape, strict=True)}
    at: BatchSource | None = source
    while at is not None:
        if isinstance(at, PatchSource):
            dims = at.sizes.dims
            starts = dict(zip(dims, at.corners(numbers, epoch).T, strict=True))
            lengths = dict(zip(dims, at.sizes.sizes, strict=True))
            whole |= dict(zip(dims, at.sizes.lengths, strict=True))
        if isinstance(at, WrappedSource):
            numbers = at.made_of(numbers)
        at = beneath(at)
    found: dict[str, NDArray[Any]] = {"sample": numbers}
    found |= {f"{dim}_start": each for dim, each in starts.items()}
    if facts is None or facts.index is None:
        return found
    try:
        index = facts.index()
    except StoreError:  # it keeps none
        return found
    held = np.asarray(facts.held, dtype=np.int64)[numbers]
    for each in index.meteorology.coordinates:
        values = each.values[held] if each.of_samples else each.values
        dims = each.dims[1:] if each.of_samples else each.dims
        if not each.dims or not _is_whole(values, dims, whole):
            continue
        if starts.keys() & {*dims}:
            rows = values if each.of_samples else [values] * len(numbers)
            values = _in_patches(rows, dims, starts, lengths)
        found.setdefault(each.name, _times(each, values) if each.of_samples else values)
    return found


def _is_whole(values: NDArray[Any], dims: Sequence[str], whole: Mapping[str, int]) -> bool:
    """Return whether a coordinate has the lengths of whole samples along its dimensions."""
    lengths = values.shape[values.ndim - len(dims) :]
    return all(whole.get(dim, n) == n for dim, n in zip(dims, lengths, strict=True))


def _in_patches(
    rows: Sequence[NDArray[Any]] | NDArray[Any],
    dims: Sequence[str],
    starts: Mapping[str, NDArray[np.int64]],
    lengths: Mapping[str, int],
) -> NDArray[Any]:
    """Return a coordinate in each patch: of each a row, cut along its last axes."""
    cut = []
    for number, row in enumerate(rows):
        part = row
        for axis, dim in enumerate(dims, start=-len(dims)):
            if dim in starts:
                places = starts[dim][number] + np.arange(lengths[dim])
                part = np.take(part, places, axis=axis)
        cut.append(part)
    return np.stack(cut)


def _times(coordinate: Coordinate, values: NDArray[Any]) -> NDArray[Any]:
    """Return values of a coordinate of samples; times as such where their units say so."""
    try:
        times = coordinate_times(values, coordinate.attributes)
    except ImportError:  # xarray decodes what is out of the usual
        times = None
    return values if times is None else times
