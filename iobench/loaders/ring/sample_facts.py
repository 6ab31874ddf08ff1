"""What a store or dataset knows of its samples besides their arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from iobench.chunks.cf_times import coordinate_times
from iobench.errors import StoreError
from iobench.stores.sample_numbers import places_among

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.contract import Dataset, SampleIndex


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

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of these samples have those numbers of the index, -1 where none has."""
        if self._numbers is None:
            return np.where(numbers < self._n_samples, numbers, -1)
        return places_among(self._numbers.tolist(), numbers)

    def coordinates(self, places: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what their coordinates are that each sample has for itself; times as such."""
        try:
            index = self.index()
        except StoreError:  # it keeps none
            return {}
        numbers = places if self._numbers is None else self._numbers[places]
        result = {}
        for each in index.meteorology.coordinates:
            if each.of_samples:
                values = each.values[numbers]
                try:
                    times = coordinate_times(values, each.attributes)
                except ImportError:  # xarray decodes what is out of the usual
                    times = None
                result[each.name] = values if times is None else times
        return result
