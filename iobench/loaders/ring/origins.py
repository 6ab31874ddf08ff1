"""Where the samples of a batch are from: their numbers, corners of patches, coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from iobench.datasets.positions import coordinate_times
from iobench.errors import StoreError
from iobench.loaders.ring.sample_source import SampleSource
from iobench.stores.sample_numbers import places_among

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.coordinates import Coordinate
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.loaders.ring.contract import BatchSource


@runtime_checkable
class NumberedSamples(Protocol):
    """Samples of a dataset by number, as `iobench.open_dataset` returns them."""

    dataset: Dataset
    index: SampleIndex
    numbers: Sequence[int]


class SampleFacts:
    """What a store or dataset knows of its samples besides their arrays."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._index: SampleIndex | None = None
        is_store = not isinstance(owner, NumberedSamples)
        # Which samples of the index they are, and of the dataset, whose windows somebody placed.
        self._n_samples = len(owner)
        self._numbers: NDArray[np.int64] | None = None  # those of all
        if not is_store and owner.numbers != range(len(owner)):
            self._numbers = np.asarray(owner.numbers, dtype=np.int64)
        self.placed: Sequence[int] = owner.manifest.samples if is_store else owner.numbers
        self.manifest = owner.manifest if is_store else None

    def index(self) -> SampleIndex:
        """Return the index they are in; raise StoreError where a store keeps none."""
        if self._index is None:
            index = self._owner.index
            self._index = index() if callable(index) else index
        return self._index

    def numbers_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the index of some of these samples."""
        return places if self._numbers is None else self._numbers[places]

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of these samples have those numbers of the index, -1 where none has."""
        if self._numbers is None:
            return np.where(numbers < self._n_samples, numbers, -1)
        return places_among(self._numbers.tolist(), numbers)


def coordinates_of(
    source: BatchSource, samples: NDArray[np.int64], epoch: int, facts: SampleFacts | None
) -> dict[str, NDArray[Any]]:
    """Return where samples of a source are from; see `RingLoader.coordinates`."""
    starts: dict[str, NDArray[np.int64]] = {}
    lengths: dict[str, int] = {}
    whole = {d: n for v in source.spec for d, n in zip(v.dims, v.shape, strict=True)}
    numbers = samples
    if isinstance(source, SampleSource):
        numbers = source.items_of(samples)
        if source.patches is not None:
            patches = source.patches
            starts = dict(zip(patches.dims, patches.corners(samples, epoch).T, strict=True))
            lengths = dict(zip(patches.dims, patches.sizes, strict=True))
            whole |= dict(zip(patches.dims, patches.lengths, strict=True))
    origins: dict[str, NDArray[Any]] = {"sample": numbers}
    origins |= {f"{dim}_start": each for dim, each in starts.items()}
    if facts is None:
        return origins
    try:
        index = facts.index()
    except StoreError:  # it keeps none
        return origins
    of_index = facts.numbers_of(numbers)
    for each in index.meteorology.coordinates:
        values = each.values[of_index] if each.of_samples else each.values
        dims = each.dims[1:] if each.of_samples else each.dims
        if not each.dims or not _is_whole(values, dims, whole):
            continue
        if cut := starts.keys() & {*dims}:
            rows = values if each.of_samples else [values] * len(numbers)
            places = {dim: starts[dim][:, None] + np.arange(lengths[dim]) for dim in cut}
            values = np.stack([_cut(row, dims, places, at) for at, row in enumerate(rows)])
        origins.setdefault(each.name, _times(each, values) if each.of_samples else values)
    return origins


def _is_whole(values: NDArray[Any], dims: Sequence[str], whole: Mapping[str, int]) -> bool:
    """Return whether a coordinate has the lengths of whole samples along its dimensions."""
    lengths = values.shape[values.ndim - len(dims) :]
    return all(whole.get(dim, n) == n for dim, n in zip(dims, lengths, strict=True))


def _cut(
    row: NDArray[Any], dims: Sequence[str], places: Mapping[str, NDArray[np.int64]], patch: int
) -> NDArray[Any]:
    """Return a coordinate in one patch, cut along its last axes."""
    for axis, dim in enumerate(dims, start=-len(dims)):
        if dim in places:
            row = np.take(row, places[dim][patch], axis=axis)
    return row


def _times(coordinate: Coordinate, values: NDArray[Any]) -> NDArray[Any]:
    """Return values of a coordinate of samples; times as such where their units say so."""
    try:
        times = coordinate_times(values, coordinate.attributes)
    except ImportError:  # xarray decodes what is out of the usual
        times = None
    return values if times is None else times
