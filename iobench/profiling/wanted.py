"""Which samples a run needs: of a split, of windows, in an order that is spread over all files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.datasets.selection import chosen_splits, place_index_windows, select_splits
from iobench.errors import OptionError, UnknownNameError
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.windowed import WindowSource, windowed_pipeline
from iobench.profiling.config import DEFAULT_BATCHES
from iobench.samples import Window
from iobench.stores.plan import probe_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.ring.contract import BatchSource
    from iobench.profiling.config import RunConfig
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store
    from iobench.windows import WindowPlacement

GAPS_SHOWN: Final = 5


class WantedSamples(msgspec.Struct, frozen=True):
    """The samples a run needs, and the windows over them where those are what it loads."""

    samples: list[int]
    placement: WindowPlacement | None = None

    @property
    def windows(self) -> dict[str, Any] | None:
        """Where windows were laid, as JSON-ready values."""
        return None if self.placement is None else self.placement.to_dict()

    def over(
        self, items: Pipeline, samples: Sequence[int], places: ArrayLike | None = None
    ) -> Pipeline:
        """Return what is loaded, from a pipeline that has these samples at these places.

        One after another by default.
        """
        if self.placement is None:
            return items
        table = self._among(self.placement, samples, places)
        return windowed_pipeline(items, table, self.placement.window)

    def over_store(self, store: Store, samples: Sequence[int], places: ArrayLike) -> BatchSource:
        """Return what the ring fills batches with, from a store that has samples at places."""
        extents = StoreSource(store)
        if self.placement is None:
            return extents
        table = self._among(self.placement, samples, places)
        return WindowSource(extents, table, self.placement.window)

    @staticmethod
    def _among(
        placement: WindowPlacement, samples: Sequence[int], places: ArrayLike | None
    ) -> NDArray[np.int64]:
        windows = placement.among(samples)
        if not len(windows):
            raise OptionError(
                f"--window={placement.window.spelled}: no window lies whole within the "
                f"{len(samples)} available samples; take more batches, or --format source"
            )
        return windows if places is None else np.asarray(places, dtype=np.int64)[windows]


def find_wanted(
    config: RunConfig, index: SampleIndex, batch_size: int, screen: Screen
) -> WantedSamples:
    """Return what a run needs, in an order of which every beginning is spread evenly."""
    splits = chosen_splits(config.split, config.splits_by)
    if config.evaluate is not None:
        try:
            select_splits(index, (config.evaluate,))
        except UnknownNameError as error:
            raise UnknownNameError(str(error).replace("--split", "--evaluate", 1)) from None
        splits = (config.training_split, config.evaluate)
    placement = None
    if config.window is not None:
        window = Window.parse(config.window)
        placement = place_index_windows(index, window, split=splits)
        for line in _window_notes(placement, index):
            screen.note(line)
        there = list(range(len(placement)))
    elif splits:
        there = list(select_splits(index, splits))
    else:
        there = list(range(len(index)))
    wanted = len(there)
    if config.epochs is None and (config.batches or config.duration_s is None):
        wanted = min(wanted, (config.batches or DEFAULT_BATCHES) * batch_size)
    chosen = [there[place] for place in probe_samples(len(there), wanted)]
    return WantedSamples(chosen if placement is None else placement.samples(chosen), placement)


def _window_notes(placement: WindowPlacement, index: SampleIndex) -> Iterator[str]:
    """Yield what windows were laid, and the gaps none reaches across."""
    left_out = [
        f"{number} at {what}"
        for number, what in (
            (placement.n_at_ends, "the ends"),
            (placement.n_at_gaps, "gaps"),
            (placement.n_at_split, "the edge of the split"),
        )
        if number
    ]
    without = f"; no window for {', '.join(left_out)}" if left_out else ""
    yield f"window {placement.window.spelled}: {len(placement)} samples{without}"
    for gap in placement.gaps[:GAPS_SHOWN]:
        before, after = (_name(index, number) for number in (gap.before, gap.after))
        yield f"gap: {gap.n_missing} missing between {before} and {after}"
    if len(placement.gaps) > GAPS_SHOWN:
        yield f"and {len(placement.gaps) - GAPS_SHOWN} gaps more, listed in run.json"


def _name(index: SampleIndex, number: int) -> str:
    return index.coordinate[number] if len(index.coordinate) else f"sample {number}"
