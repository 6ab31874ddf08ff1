"""The loader's options, and ``iobench.loader``."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.opened_store import open_store
from iobench.loaders.ring.composed_source import SampleFacts, composed
from iobench.loaders.ring.contract import OwnMemory
from iobench.loaders.ring.dataset_source import NumberedSamples, dataset_source
from iobench.loaders.ring.loader import DEPTH, RingLoader, usual_threads
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.presenting import Presenter, float_cast
from iobench.loaders.ring.probe_ahead import ahead_of
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.rank_lookup import find_rank
from iobench.loaders.ring.stacking import SourceSamples
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.ring.telling import innermost
from iobench.samples import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iobench.loaders.ring.contract import BatchSource
    from iobench.loaders.ring.normalising import Normalise
    from iobench.loaders.ring.presenting import Cast, Transform
    from iobench.recording.recorder import Recorder
    from iobench.stores.contract import Store
    from iobench.windows import WindowPlacement

logger = logging.getLogger("iobench")

Framework = Literal["numpy", "torch", "tensorflow"]
FRAMEWORKS: Final = ("numpy", "torch", "tensorflow")
OF_THE_RING: Final = {"threads", "depth", "max_bytes", "recorder"}
WHOLE_NUMBERS: Final = {
    "batch_size", "seed", "rank", "world_size", "threads", "depth", "max_bytes",
}  # fmt: skip


class LoaderOptions(TypedDict, total=False):
    """Options that the loaders of all frameworks share; see `loader`."""

    shuffle: bool | str
    seed: int
    transform: Transform | None
    threads: int | None
    depth: int | None
    dtype: Any
    drop_last: bool
    rank: int | None
    world_size: int | None
    max_bytes: int | None
    verify: bool
    direct: bool | Literal["auto"]
    split: str | None
    window: str | Window | WindowPlacement | None
    patch: Mapping[str, int] | None
    patch_at: Literal["random", "tiles", "centre"]
    normalise: Normalise
    processes: bool | None
    recorder: Recorder | None


def settle(
    store: Any,
    batch_size: int,
    options: LoaderOptions,
    *,
    cast: Callable[[Any], Cast],
    convert: Callable[[Any], Any] | None = None,
    depth: int = DEPTH,
) -> dict[str, Any]:
    """Open what is to be loaded and lay down the order; return what a `RingLoader` is made of.

    Parameters
    ----------
    store : Store, path, or BatchSource
        As given to `loader`.
    batch_size : int
        Samples a batch.
    options : LoaderOptions
        As given to `loader`.
    cast : callable
        Makes of ``dtype=`` what casts to it.
    convert : callable, optional
        Makes of each array of a batch what the framework wants.
    depth : int
        By default.

    Raises
    ------
    StoreError, OptionError
        As `loader`.
    """
    unknown = sorted(set(options) - set(LoaderOptions.__annotations__))
    if unknown:
        known = ", ".join(sorted(LoaderOptions.__annotations__))
        raise OptionError(f"a loader has no option {unknown[0]!r}; there are {known}")
    for name, value in {"batch_size": batch_size, **options}.items():
        if name in WHOLE_NUMBERS and value is not None and not isinstance(value, (int, np.integer)):
            raise OptionError(f"{name}={value!r}: expected a whole number")
    transform = options.get("transform")
    if transform is not None and not callable(transform):
        raise OptionError(f"transform={transform!r}: expected a function of a dict of arrays")
    source, dataset, facts = _opened(store, int(batch_size), options)
    if options.get("processes"):
        transform = None  # applied there
    rank, world_size = find_rank(options.get("rank"), options.get("world_size"))
    order = BatchOrder(
        len(source),
        int(batch_size),
        shuffle=options.get("shuffle", False),
        seed=int(options.get("seed", 0)),
        drop_last=options.get("drop_last", False),
        rank=rank,
        world_size=world_size,
    )
    if isinstance(order.shuffle, str):  # weaker than what is usual, so nobody should have to ask
        logger.warning("shuffle=%r: %s", order.shuffle, order.quality)
    ring = {name: value for name, value in options.items() if name in OF_THE_RING}
    if options.get("rank") is None:
        ring["find_rank"] = find_rank
    _read_ahead(source, int(batch_size), options, ring, depth)
    made = innermost(source)
    if isinstance(made, PipelineSource):
        if made.one_thread and not isinstance(source, ProcessSource):
            ring["threads"] = 1
        if made.note:
            logger.warning(made.note)
    dtype = options.get("dtype")
    casts = None if dtype is None else cast(dtype)
    if casts is not None or transform is not None or convert is not None:
        ring["present"] = Presenter(transform, casts, convert)
    ring["facts"], ring["samples"] = facts, _samples_told(options)
    return {"source": source, "order": order, "dataset": dataset, **ring}


def _read_ahead(
    source: BatchSource, batch_size: int, options: LoaderOptions, ring: dict[str, Any], depth: int
) -> None:
    """Choose threads and depth by what the storage takes, where the user leaves them open."""
    threads, wanted = options.get("threads"), options.get("depth")
    ring["depth"] = depth if wanted is None else wanted
    is_fixed = threads is not None and wanted is not None
    if is_fixed or options.get("processes"):
        return
    choice = ahead_of(
        source,
        batch_size,
        threads=usual_threads(ring["depth"]),
        depth=ring["depth"],
        max_bytes=options.get("max_bytes"),
    )
    if choice is None:
        return
    ring["why"] = choice.why
    if wanted is None:
        ring["depth"] = choice.depth
    if threads is None and choice.speeds is not None:
        ring["threads"] = min(choice.threads, max(1, ring["depth"] - 1))


def _samples_told(options: LoaderOptions) -> dict[str, str]:
    """Return what samples are, in words that a state keeps."""
    window, patch = options.get("window"), options.get("patch")
    told: dict[str, Any] = {"split": options.get("split"), "window": window}
    if window is not None and not isinstance(window, str):
        told["window"] = (window if isinstance(window, Window) else window.window).spelled
    if patch is not None:
        sizes = ",".join(f"{dim}={size}" for dim, size in patch.items())
        told["patch"] = f"{sizes} {options.get('patch_at', 'random')}"
    return {name: str(value) for name, value in told.items() if value is not None}


def _opened(
    store: Any, batch_size: int, options: LoaderOptions
) -> tuple[BatchSource, Any, SampleFacts]:
    """Return what fills batches, what the user may ask for samples, and what is known of them."""
    if isinstance(store, (str, os.PathLike)):
        store = open_store(store)
    if hasattr(store, "filler") or isinstance(store, NumberedSamples):
        _refuse(options, ("verify", "direct"), "is for stores, which hold checksums and extents")
    elif not hasattr(store, "spec"):
        raise OptionError(
            f"a loader takes a store or the path of one, not a {type(store).__name__}; see "
            "iobench.open_store"
        )
    facts = _facts_of(store)
    processes = options.get("processes")
    transform = options.get("transform") if processes else None
    if isinstance(store, NumberedSamples):
        source = dataset_source(
            store,
            batch_size,
            processes=processes,
            transform=transform,
            changed=lambda whole: composed(whole, options, facts),
        )
        shown = source.source if isinstance(source, ProcessSource) else source
        return source, _asked_for(store, shown), facts
    whole = store
    if not hasattr(store, "filler"):
        whole = StoreSource(
            store, verify=options.get("verify", False), direct=options.get("direct", False)
        )
    made = composed(whole, options, facts)
    source = ProcessSource(made, batch_size, transform=transform) if processes else made
    return source, _asked_for(store, made if hasattr(store, "filler") else source), facts


def _facts_of(store: Any) -> SampleFacts:
    """Return what is known of what was given: a store, samples of a dataset, or a source."""
    if isinstance(store, NumberedSamples):
        return SampleFacts(lambda: store.index, store.numbers, store.numbers)
    if hasattr(store, "filler"):
        return SampleFacts()
    manifest = store.manifest
    return SampleFacts(
        _FileIndex(store),
        range(len(store)),
        manifest.samples,
        manifest.statistics,
        manifest.normalisation,
    )


class _FileIndex:
    """Returns the index of a store, read once; picklable."""

    def __init__(self, store: Any) -> None:
        self._store, self._index = store, None

    def __call__(self) -> Any:
        if self._index is None:
            self._index = self._store.index()
        return self._index


def _asked_for(given: Any, source: BatchSource) -> Any:
    """Return what the user may ask for samples: what was given, unless these are other ones."""
    if isinstance(source, StoreSource):
        return source.store
    is_given = source is given or isinstance(source, PipelineSource)
    if is_given and (hasattr(given, "__getitem__") or isinstance(source, OwnMemory)):
        return given
    return SourceSamples(source)


def _refuse(options: LoaderOptions, names: Sequence[str], why: str) -> None:
    for name in names:
        if options.get(name):
            raise OptionError(f"{name}={options.get(name)!r} {why}")


def loader(
    store: Store | BatchSource | NumberedSamples | str | os.PathLike[str],
    batch_size: int,
    *,
    framework: Framework | None = None,
    shuffle: bool | str = False,
    seed: int = 0,
    transform: Transform | None = None,
    dtype: Any = None,
    device: Any = None,
    drop_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    threads: int | None = None,
    depth: int | None = None,
    max_bytes: int | None = None,
    verify: bool = False,
    direct: bool | Literal["auto"] = False,
    split: str | None = None,
    window: str | Window | WindowPlacement | None = None,
    patch: Mapping[str, int] | None = None,
    patch_at: Literal["random", "tiles", "centre"] = "random",
    normalise: Normalise = False,
    processes: bool | None = None,
) -> RingLoader:
    """Load batches of a store in threads, ahead of the training loop, into memory used again.

    A batch is valid as long as anyone holds it, or a view of it. Iterating again is the next
    epoch; `RingLoader.state_dict` tells where in it the loop is.

    Parameters
    ----------
    store : Store or path
        An open store, or its folder.
    batch_size : int
        Samples a batch.
    framework : {"numpy", "torch", "tensorflow"}, optional
        Of the arrays in a batch. By default NumPy, whatever else is installed; torch where
        ``device`` is given.
    shuffle : bool or str
        Random order over all samples, another one each epoch. ``"blocks:N"``, for cold or remote
        storage, keeps N neighbours together; `BatchOrder.quality` tells how random that is.
    seed : int
        What that order depends on.
    transform : callable, optional
        Given the batch as a dict of NumPy arrays, in a reader thread; what it returns is yielded:
        a dict, tuple or list of arrays. It may change the arrays in place.
    dtype : dtype or str, optional
        Of all floating-point arrays in a batch, after the transform. ``"bfloat16"`` with torch and
        TensorFlow only.
    device : torch.device or str, optional
        Where torch tensors shall be.
    drop_last : bool
        Leave out a last batch of fewer samples, and what does not go round among ranks.
    rank, world_size : int, optional
        Which training process of how many; rank ``r`` takes batches ``r``, ``r + world_size``, ...
        of the order. By default as ``torch.distributed`` says where it is initialised, else the
        environment's ``RANK`` and ``WORLD_SIZE``, else 0 of 1.
    threads : int, optional
        Reader threads; by default one a CPU, at most 4, and more where a store has to come from
        disks or servers whose latency takes more batches at once to hide: that is measured when
        the loader is made. `RingLoader.choice` tells. The batches do not depend on it.
    depth : int, optional
        Buffers; as many batches are kept ready, less those the loop holds. By default 4, with
        TensorFlow 6, which holds two more; and two more than there are threads.
    max_bytes : int, optional
        What buffers may take in all when the loop holds more of them; by default half of the
        memory that is free.
    verify : bool
        Check each sample against the checksum its store holds.
    direct : bool or "auto"
        Read around the page cache (O_DIRECT): for stores larger than memory. ``"auto"`` where a
        short measurement finds it faster.
    split : str, optional
        Samples of one of the store's splits; all by default.
    window : str, Window or WindowPlacement, optional
        A sample is several items, as ``"-1,0:1"`` (see `iobench.samples.Window`); each is read
        once a batch. Windows never reach across a gap, or out of the split. Of a store whose index
        was not kept, a placement: ``iobench.open_dataset(...).windows("-1,0:1")``.
    patch : mapping of str to int, optional
        Samples are patches of so many places along each dimension, as ``{"y": 256, "x": 256}``,
        cut at one place of all variables that have these, and of all items of a window. No more
        is read of a store than a patch touches, where that is cheaper and nothing (``verify``,
        ``direct``, an encoding of whole samples) needs all; `RingLoader.choice` tells.
    patch_at : {"random", "tiles", "centre"}
        Where patches are. ``"random"``: one of each sample, at another place each epoch, all places
        where it fits being equally likely along each dimension; by seed, epoch and sample alone,
        so the same for any threads, ranks and in a run that goes on. Places near the ends of a
        dimension are in fewer patches than others. ``"tiles"``, for validation: all that cover the
        sample, one after another; ``"centre"``: its middle. `RingLoader.coordinates` tells where
        each was.
    normalise : bool, sequence of str, or mapping of str to (mean, std)
        ``(values - mean) / std`` in float32 of all floating-point variables, inputs and targets,
        or of those that are named; done in place by the reader threads, before the transform.
        By the statistics in the store's manifest: of the split ``"train"`` if there is one, else of
        all samples; by channel or level where it keeps these. Where all values are equal they are
        divided by 1; missing ones (NaN) stay so. Whole numbers are left alone unless they are
        named. `RingLoader.normalisation` has what was taken, to undo it. Where samples were
        normalised when the store was made, True is refused: name those that were not.
    processes : bool, optional
        Make batches, ``transform`` included, in processes that share the memory of batches: for
        Python code that holds the interpreter's lock. The transform then has to be importable, and
        its arrays have the samples as their first axis. Processes import the script they are
        started from, whose own work then has to be under ``if __name__ == "__main__":``; so they
        are never started unasked. Where they would help, a warning and `RingLoader.choice` say so.

    Returns
    -------
    RingLoader
        An iterable of batches with a length.

    Raises
    ------
    StoreError
        If the store is unfinished or damaged.
    OptionError
        If an option has a value that cannot be, or buffers do not fit into memory.
    MissingExtraError
        If the framework is not installed.
    """
    options: LoaderOptions = {
        "shuffle": shuffle, "seed": seed, "transform": transform, "dtype": dtype,
        "drop_last": drop_last, "rank": rank, "world_size": world_size, "threads": threads,
        "depth": depth, "max_bytes": max_bytes, "verify": verify, "direct": direct, "split": split,
        "window": window, "patch": patch, "patch_at": patch_at, "normalise": normalise,
        "processes": processes,
    }  # fmt: skip
    if framework is None:
        framework = "numpy" if device is None else "torch"
    if framework not in FRAMEWORKS:
        raise OptionError(f"framework={framework!r}: expected one of {', '.join(FRAMEWORKS)}")
    if framework == "torch":
        from iobench.torch.store_loader import StoreLoader

        return StoreLoader(store, batch_size, device=device, **options)
    if device is not None:
        raise OptionError(f"device={device!r} goes with framework='torch'")
    if framework == "tensorflow":
        from iobench.tensorflow.store_loader import TFStoreLoader

        return TFStoreLoader(store, batch_size, **options)
    return RingLoader(**settle(store, batch_size, options, cast=float_cast))
