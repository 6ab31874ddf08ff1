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
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.coordinates import Coordinate
    from iobench.loaders.ring.composed_source import SampleFacts
    from iobench.loaders.ring.contract import BatchSource

__all__ = ["coordinates_of"]


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
        if each.of_samples:
            found.setdefault(each.name, _times(each, each.values[held]))
        elif each.dims:
            known = _in_patches(each, starts, lengths, whole)
            if known is not None:
                found.setdefault(each.name, known)
    return found


def _in_patches(
    coordinate: Coordinate,
    starts: Mapping[str, NDArray[np.int64]],
    lengths: Mapping[str, int],
    whole: Mapping[str, int],
) -> NDArray[Any] | None:
    """Return a coordinate of the grid, in each patch; None where it is not known for these."""
    values = coordinate.values
    for dim, length in zip(coordinate.dims, values.shape, strict=True):
        if whole.get(dim, length) != length:
            return None  # a part of the grid, or other dimensions of that name
    if not starts.keys() & {*coordinate.dims}:
        return values
    n_samples = len(next(iter(starts.values())))
    return np.stack(
        [
            values[
                tuple(
                    slice(starts[dim][row], starts[dim][row] + lengths[dim])
                    if dim in starts
                    else slice(None)
                    for dim in coordinate.dims
                )
            ]
            for row in range(n_samples)
        ]
    )


def _times(coordinate: Coordinate, values: NDArray[Any]) -> NDArray[Any]:
    """Return values of a coordinate of samples; times as such where their units say so."""
    try:
        times = coordinate_times(values, coordinate.attributes)
    except ImportError:  # xarray decodes what is out of the usual
        times = None
    return values if times is None else times
