"""The samples a loader hands out, made of the items of a source.

Which items fill which row is arithmetic on numbers: a split, windows, tiles. Items are cut and
normalised before they are stacked to windows: each once a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.contract import BatchSource
from iobench.loaders.pipeline import stacking, windowed_spec
from iobench.loaders.ring.buffers import ScratchRows
from iobench.loaders.ring.presenting import Normaliser, normalised_spec
from iobench.loaders.ring.sample_patches import CutReader
from iobench.loaders.ring.store_source import StoreSource
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from iobench.loaders.contract import Reader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.presenting import MeanStd
    from iobench.loaders.ring.sample_patches import PatchPlaces
    from iobench.samples import SampleSpec, Window


class SampleSource(BatchSource):
    """Samples made of the items of another source; what one looks like is ``spec``."""

    def __init__(
        self,
        source: BatchSource,
        items: ArrayLike | None = None,
        *,
        window: Window | None = None,
        patches: PatchPlaces | None = None,
        means: Mapping[str, MeanStd] | None = None,
    ) -> None:
        self.source, self.is_planned = source, source.is_planned
        self.window, self.patches, self.means = window, patches, dict(means or {})
        self.n_each = 1 if patches is None else patches.n_each  # samples of the same items
        self._items: NDArray[np.int64] | None = None  # all, in their order
        if items is not None:
            self._items = np.asarray(items, dtype=np.int64)
            if window is not None:
                self._items = self._items.reshape(-1, len(window.offsets))
            if self._items.size and not 0 <= self._items.min() <= self._items.max() < len(source):
                raise OptionError(
                    f"the items of samples are {self._items.min()} to {self._items.max()} of "
                    f"{len(source)}"
                )
        spec = source.spec if patches is None else patches.part
        self.item_spec: SampleSpec = normalised_spec(spec, self.means)
        self.spec = self.item_spec if window is None else windowed_spec(self.item_spec, window)

    def __len__(self) -> int:
        return (len(self.source) if self._items is None else len(self._items)) * self.n_each

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order."""
        self.source.expect(self.items_of(samples).ravel(), follows=follows)

    def items_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which items samples are made of; of windows one for each offset."""
        numbers = samples // self.n_each if self.n_each > 1 else samples
        return numbers if self._items is None else self._items[numbers]

    def filler(self) -> Reader:
        """Return a reader for one more thread."""
        return _SampleReader(self)


class _SampleReader:
    def __init__(self, source: SampleSource) -> None:
        self._source, whole, patches = source, source.source, source.patches
        self._reader: Any = None  # of items, or of boxes of them, which takes corners as well
        if patches is None:
            self._reader = whole.filler()
        elif isinstance(whole, StoreSource):
            self._reader = whole.box_filler(patches)
        else:
            self._reader = CutReader(whole.filler(), whole.spec, patches)
        spec = whole.spec if patches is None else patches.part
        self._normaliser = Normaliser(source.means, spec) if source.means else None
        self._scratch = ScratchRows(source.item_spec)
        self._stacks = stacking(source.item_spec, source.window) if source.window else []
        self.close = self._reader.close

    @property
    def failed_sample(self) -> int:
        """Which item of the last batch could not be made; -1 where that is not known."""
        return getattr(self._reader, "failed_sample", -1)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill rows; of windows each item once, which are then gathered into them."""
        source = self._source
        items = source.items_of(samples)
        corners = None if source.patches is None else source.patches.corners(samples, log.epoch)
        if items.ndim == 1:
            self._fill_items(items, corners, rows, log)
            return
        keys = items.reshape(-1, 1)
        if corners is not None:
            keys = np.hstack([keys, np.repeat(corners, items.shape[1], axis=0)])
        keys, place = np.unique(keys, axis=0, return_inverse=True)
        filled = self._scratch.arrays(len(keys), at_least=items.size)
        self._fill_items(keys[:, 0], None if corners is None else keys[:, 1:], filled, log)
        start_ns, place = log.now_ns(), place.reshape(items.shape)
        nbytes = 0
        for name, variable, offsets in self._stacks:
            # "clip": with "raise" NumPy gathers into a copy first.
            np.take(filled[variable], place[:, offsets], axis=0, out=rows[name], mode="clip")
            nbytes += rows[name].nbytes
        log.add(Kind.TRANSFORM, start_ns, nbytes=nbytes, label="window")

    def _fill_items(
        self, items: NDArray[np.int64], corners: NDArray[np.int64] | None, rows: Rows, log: BatchLog
    ) -> None:
        stored = rows if self._normaliser is None else self._normaliser.stored(rows, len(items))
        self._reader.fill(items, stored, log, *(() if corners is None else (corners,)))
        if self._normaliser is not None:
            self._normaliser.apply(stored, rows, log)
