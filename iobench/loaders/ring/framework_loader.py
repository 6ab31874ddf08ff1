"""What the options of `iobench.loader` make of a store or dataset: a loader in its parts."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from iobench.chunks.cf_times import coordinate_times
from iobench.datasets.selection import place_index_windows, select_samples, select_split
from iobench.errors import OptionError, StoreError, parameters_named
from iobench.loaders.contract import HELD_BY_LOOP, BatchSource
from iobench.loaders.pipeline import dataset_pipeline
from iobench.loaders.ring.loader import DEPTH, usual_threads
from iobench.loaders.ring.loader_config import LoaderConfig, check_whole
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.presenting import ChannelStack, Presenter, means_of
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.sample_patches import PatchPlaces
from iobench.loaders.ring.sample_source import SampleSource
from iobench.loaders.ring.store_source import REMOTE_THREADS, source_of_store
from iobench.samples import Window
from iobench.stores.finished_store import open_store
from iobench.stores.sample_numbers import are_all, places_among

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.contract import Dataset, SampleIndex

logger = logging.getLogger("iobench")


@runtime_checkable
class NumberedSamples(Protocol):
    """Samples of a dataset by number, as `iobench.open_dataset` returns them."""

    dataset: Dataset
    index: SampleIndex
    numbers: Sequence[int]


def resolve_options(
    store: Any,
    batch_size: int,
    config: LoaderConfig,
    *,
    cast: Callable[[Any], Any],
    convert: Callable[[Any], Any] | None = None,
    depth: int = DEPTH,
) -> dict[str, Any]:
    """Return what a `RingLoader` is made of: what is opened, in which order, how presented."""
    check_whole("batch_size", batch_size)
    if isinstance(store, (str, os.PathLike)):
        store = open_store(store)
    items, facts = _items_of(store, config)
    inner = _samples_of(items, config, facts)
    rank, world_size = find_rank(config.rank, config.world_size)
    order = BatchOrder(
        len(inner),
        int(batch_size),
        shuffle=config.shuffle,
        seed=int(config.seed),
        drop_last=config.drop_last,
        rank=rank,
        world_size=world_size,
    )
    if isinstance(order.shuffle, str):  # weaker than what is usual, so nobody should have to ask
        logger.warning("shuffle=%r: %s", order.shuffle, order.quality)
    threads = config.threads
    if getattr(items, "is_remote", False):
        threads = threads or REMOTE_THREADS
        depth = max(depth, threads + HELD_BY_LOOP)
    depth = depth if config.depth is None else config.depth
    if isinstance(items, PipelineSource) and items.one_thread and not config.processes:
        threads = 1
    if threads is None:
        # Where batches go to a device, one reads while the other one's batch is copied.
        is_alone = config.device is None and config.in_order
        threads = max(usual_threads(depth), 1 if is_alone else 2)
    if threads < 2 and not config.in_order:
        raise OptionError(
            "in_order=False: one thread reads, so that no sample can be ready before another; "
            "give threads=2, or processes=True where a dataset may be used by one thread at a time"
        )
    source, transform = inner, config.transform
    if config.processes and config.in_order:  # each thread has one make its batches
        source, transform = ProcessSource(inner, int(batch_size), threads, transform), None
    elif config.processes:  # or its samples
        source = ProcessSource(inner, 1, threads)
    stack = None if config.stack is None else ChannelStack(source.spec, config.stack)
    casts = None if config.dtype is None else cast(config.dtype)
    present = None
    if any(each is not None for each in (transform, casts, convert, stack)):
        present = Presenter(transform, casts, convert, stack)
    is_same = inner is items and hasattr(store, "__getitem__")
    return {
        "source": source,
        "order": order,
        "threads": threads,
        "depth": depth,
        "dataset": store if is_same else inner,
        "present": present,
        "facts": facts,
        "config": config,
        "find_rank": find_rank if config.rank is None else None,
    }


def _items_of(store: Any, config: LoaderConfig) -> tuple[BatchSource, SampleFacts | None]:
    """Return what reads the samples of what was given, and what is known of them."""
    if isinstance(store, (BatchSource, NumberedSamples)):
        if config.verify:
            raise OptionError("verify=True is for stores, which hold checksums")
    elif not hasattr(store, "spec"):
        raise OptionError(
            f"a loader takes a store or the path of one, not a {type(store).__name__}; see "
            "iobench.open_store"
        )
    if isinstance(store, BatchSource):
        return store, None
    if not isinstance(store, NumberedSamples):
        return source_of_store(store, config.verify), SampleFacts(store)
    is_alone = not getattr(store.dataset, "thread_safe", False)
    if is_alone and config.processes is None:
        logger.warning(
            "%s may be used by one thread at a time; processes load side by side: processes=True "
            "asks for them, the script's own work under if __name__ == '__main__':",
            store.dataset.name,
        )
    pipeline = dataset_pipeline(store.dataset, store.index, store.numbers)
    return PipelineSource(pipeline, one_thread=is_alone), SampleFacts(store)


def _samples_of(items: BatchSource, config: LoaderConfig, facts: SampleFacts | None) -> BatchSource:
    """Return the samples that options ask for, made of those of a source."""
    patches = None
    spec = items.spec
    if config.patch is not None:
        patches = PatchPlaces(config.patch, spec, config.patch_at, int(config.seed))
        spec = patches.part
    means = {}
    if config.normalise is not False and config.normalise is not None:
        means = means_of(config.normalise, spec, None if facts is None else facts.manifest)
    with parameters_named():
        numbers, window = _chosen(config, facts)
        if numbers is not None and not len(numbers):
            names = [n for n in ("window", "split", "select") if getattr(config, n) is not None]
            raise OptionError(f"{' and '.join(names)}: no sample fits; choose a wider {names[-1]}")
        if numbers is None and patches is None and not means:
            return items
        return SampleSource(items, numbers, window=window, patches=patches, means=means)


def _chosen(
    config: LoaderConfig, facts: SampleFacts | None
) -> tuple[NDArray[np.int64] | None, Window | None]:
    """Return which items make up the samples: those of windows, or of a split; None for all."""
    window, split, select = config.window, config.split, config.select
    given = {"window": window, "split": split, "select": select}
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if not named:
        return None, None
    if facts is None:
        raise OptionError(f"{named[0]} is for stores and datasets; SampleSource takes any source")
    if isinstance(window, str):
        window = Window.parse(window)
    selected = None if select is None else select_samples(facts.index(), select)
    if window is not None:
        items = place_index_windows(facts.index(), window, split=split).items
        if selected is not None:
            items = items[np.isin(items, selected).all(axis=1)]
        places = facts.places(items.reshape(-1)).reshape(items.shape)
        return places[(places >= 0).all(axis=1)], window
    numbers = np.arange(0) if selected is None else selected
    if split is not None:
        numbers = np.asarray(select_split(facts.index(), split), dtype=np.int64)
        numbers = numbers if selected is None else numbers[np.isin(numbers, selected)]
    places = facts.places(numbers)
    return places[places >= 0], None


def find_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return the rank of this process, and how many there are.

    What is given counts, else what ``torch.distributed`` says, else ``RANK`` and ``WORLD_SIZE``.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    # Where nobody has imported it, it is not initialised: so nothing is imported here.
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return torch.get_rank(), torch.get_world_size()
    own, count = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if count is None:
        return 0, 1
    try:
        return int(own or ""), int(count)
    except ValueError:
        raise OptionError(
            f"the environment says RANK={own} and WORLD_SIZE={count}, expected two whole "
            "numbers; set both, or pass rank= and world_size="
        ) from None


# -- what is known of samples ---


class SampleFacts:
    """What a store or dataset knows of its samples besides their arrays."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._index: SampleIndex | None = None
        is_store = not isinstance(owner, NumberedSamples)
        # Which samples of the index they are.
        self._n_samples = len(owner)
        self._numbers: NDArray[np.int64] | None = None  # those of all
        if not is_store and not are_all(owner.numbers, len(owner)):
            self._numbers = np.asarray(owner.numbers, dtype=np.int64)
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
