"""What a profile compares: one `Prepared` for each way of loading the same samples."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.datasets.contract import Baseline, SampleIndex, SamplePasses
from iobench.datasets.python_objects import IterableObject
from iobench.datasets.selection import (
    chosen_splits,
    place_index_windows,
    select_split,
    split_index,
)
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, OptionError
from iobench.files.atomic import is_local
from iobench.files.urls import URL
from iobench.loaders.pipeline import Pipeline, dataset_pipeline, store_pipeline, windowed_pipeline
from iobench.loaders.ring.sample_source import SampleSource
from iobench.loaders.ring.store_source import REMOTE_THREADS, source_of_store
from iobench.profiling.compared_stores import open_probe
from iobench.profiling.config import AUTO_PIPELINES, DEFAULT_BATCHES, DEFAULT_PREFETCH, OF_STORES
from iobench.registry import SOURCE, dataset_names, find_dataset
from iobench.samples import Window
from iobench.stores.plan import probe_samples
from iobench.stores.sample_numbers import places_among, sample_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import PublishedStep
    from iobench.loaders.contract import BatchSource
    from iobench.profiling.compared_stores import ComparedStore
    from iobench.profiling.config import RunConfig
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store


class ProfiledSamples(msgspec.Struct, frozen=True, kw_only=True):
    """The samples that are loaded, whatever they lie in."""

    index: SampleIndex  # the samples, with their splits and what windows are laid over
    published: PublishedStep | None  # the training step published of the dataset
    facts: Mapping[str, Any]  # what ``run.json`` says of them
    source: Source | None = None  # None where all there is are stores
    # what the samples of the index are in the dataset; None where they have the same numbers
    numbers: Sequence[int] | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """One way of loading the same samples, ready to be measured."""

    # its name in reports: the format as it was spelled, a store's name, or the pipeline where that
    # is not our own
    label: str
    work: Pipeline | SamplePasses  # what a loader runs
    n_samples: int  # samples of one epoch
    files: Sequence[Path]  # what is read, for the page cache
    format: str = SOURCE
    pipeline: str = "own"  # as in ``--format`` and ``--pipeline``
    spelled: str | None = None  # how ``--format`` spells it, where that has options
    store: dict[str, Any] | None = None  # of a store what ``run.json`` says
    # as in ``--framework``; ``stream`` of `SamplePasses`
    framework: str = "stream"
    workers: int = 0
    threads: int = 0  # reader threads of the ring; 0 where there is none
    prefetch: int = 0  # of the loader; 0 of `SamplePasses`
    described_by: str = ""  # where a baseline is described; empty for our own
    # where windows were laid, `WindowPlacement.to_dict`; None where a sample is an item
    windows: Mapping[str, Any] | None = None
    # what the ring fills batches with from a store; None where it runs the steps of ``work``
    extents: BatchSource | None = None
    # samples and files of each shard of a store
    shards: tuple[tuple[int, tuple[Path, ...]], ...] = ()
    # which samples of ``work`` are loaded, in the order of all ways of loading; None for all
    taken: NDArray[np.int64] | None = None


class ProfiledItems(msgspec.Struct, frozen=True):
    """The samples that all ways load, by their numbers in the dataset."""

    numbers: NDArray[np.int64]  # (samples, items), ascending; one item but of windows
    window: Window | None = None
    windows: Mapping[str, Any] | None = None  # where they were laid
    # what a probe holds, in an order of which every beginning is spread over the files
    spread: Sequence[int] = ()

    def held_by(self, one: ComparedStore) -> ProfiledItems:
        """Return those that a store holds whole."""
        held = (_places_in(one.store, self.numbers) >= 0).all(axis=1)
        if not held.any():
            of = f"--window={self.window.spelled}: " if self.window else ""
            raise OptionError(
                f"{of}{one.label} holds none of the samples that are to be loaded; take more "
                "batches, another --split, or --format source"
            )
        return replace(self, numbers=self.numbers[held])


def samples_of_source(source: Source) -> ProfiledSamples:
    """Return the samples of a source."""
    dataset = source.dataset
    facts = {
        "dataset": dataset.name,
        "title": dataset.title,
        "source_kind": source.index.provenance.get("kind"),
        "stand_in": source.stand_in,
        "tiny": source.tiny,
        "files_hint": str(source.files[0].parent) if source.files else "",
    }
    return ProfiledSamples(
        index=source.index, published=dataset.published, facts=facts, source=source
    )


def samples_of_stores(given: Sequence[ComparedStore], config: RunConfig) -> ProfiledSamples:
    """Return the samples of stores, those of the first one; their source need not exist."""
    store = given[0].store
    manifest, facts = store.manifest, store.manifest.provenance
    request = facts.get("request", {})
    published, title = None, ""
    if manifest.dataset in dataset_names():
        # It may need options that nobody gave here, or a package that is not installed.
        with suppress(IobenchError):
            dataset = find_dataset(manifest.dataset)
            published, title = dataset.published, dataset.title
    if config.window or config.split or config.split_by:
        index = split_index(store.index(), config.splits_by)
    else:
        index = SampleIndex(store.spec, range(len(store)), provenance=facts)
    tiny = bool(request.get("tiny", False))
    known = {
        "dataset": manifest.dataset,
        "title": title,
        "source_kind": None,
        "stand_in": bool(facts.get("stand_in", False)) or tiny or "scale" in request,
        "tiny": tiny,
        "files_hint": str(store.path),
    }
    return ProfiledSamples(index=index, published=published, facts=known, numbers=manifest.samples)


def prepare(
    config: RunConfig,
    samples: ProfiledSamples,
    given: Sequence[ComparedStore],
    batch_size: int | None,
    screen: Screen,
) -> list[Prepared]:
    """Return what is to be measured, over the same samples; probes are converted first."""
    source = samples.source
    if source is not None and isinstance(source.dataset, IterableObject):
        return [_of_passes(config, source.dataset, source)]
    baseline = None if source is None else _open_baseline(config, source, batch_size, screen)
    items = _choose_items(config, samples, batch_size or 1, screen)
    stores = {}
    if source is not None:
        stores = {
            choice.spelled: open_probe(choice, config, source, items.spread, screen)
            for choice in config.choices
            if choice.name != SOURCE
        }
    # All ways read the samples that every store holds, no more and no fewer.
    for one in (*stores.values(), *given):
        items = items.held_by(one)
    pipelines = config.pipelines
    if pipelines == AUTO_PIPELINES:
        # Ours goes first: what lies in no page cache yet is not on the other's account.
        pipelines = ("own",) if baseline is None else ("own", "upstream")
    result: list[Prepared] = []
    for framework in config.frameworks:
        group: list[Prepared] = []
        for name in config.formats:
            if name in stores:
                group.append(_of_store(stores[name], samples, config, framework, items, screen))
                continue
            assert source is not None  # else there is no format
            group += [
                _of_source(config, framework, source, items, screen)
                if pipeline == "own" or baseline is None
                else _of_baseline(config, source, items, baseline)
                for pipeline in pipelines
            ]
        group += [_of_store(one, samples, config, framework, items, screen) for one in given]
        if len(config.frameworks) > 1:
            is_one = len(group) == 1
            group = [
                replace(one, label=framework if is_one else f"{one.label}-{framework}")
                for one in group
            ]
        result += group
    return result


def _choose_items(
    config: RunConfig, samples: ProfiledSamples, batch_size: int, screen: Screen
) -> ProfiledItems:
    """Return what the runs need, spread evenly over what there is."""
    index, splits = samples.index, chosen_splits(config.split, config.splits_by)
    window = None if config.window is None else Window.parse(config.window)
    windows = None
    if window is not None:
        placement = place_index_windows(index, window, split=splits)
        screen.note(
            f"window {window.spelled}: {len(placement)} samples; none at {placement.n_at_ends} "
            f"ends, {placement.n_at_gaps} gaps and {placement.n_at_split} edges of the split"
        )
        available, windows = placement.items, placement.to_dict()
    elif splits:
        some = select_split(index, *splits)
        available = np.asarray(some, dtype=np.int64)[:, None]
    else:
        available = np.arange(len(index))[:, None]
    count = len(available)
    if config.epochs is None and (config.batches or config.duration_s is None):
        count = min(count, (config.batches or DEFAULT_BATCHES) * batch_size)
    has_probes = samples.source is not None and config.formats != (SOURCE,)
    is_all = count == len(available) and not has_probes  # which may be millions
    chosen = np.arange(count) if is_all else np.array(probe_samples(len(available), count))
    spread = list(dict.fromkeys(available[chosen].ravel().tolist())) if has_probes else ()
    numbers = available[np.sort(chosen)]
    if samples.numbers is not None:
        numbers = np.asarray(samples.numbers, dtype=np.int64)[numbers]
    return ProfiledItems(numbers, window, windows, spread)


# -- the original files ---


def _of_passes(config: RunConfig, dataset: IterableObject, source: Source) -> Prepared:
    """Return an object that cannot be asked for a sample by its number."""
    given = {
        "--format": config.formats != (SOURCE,),
        "--pipeline": config.asks_for_others,
        "--window": config.window is not None,
        "--split": config.split is not None,
        "--split-by": bool(config.split_by),
        "--workers": config.workers is not None,
        "--prefetch": config.prefetch is not None,
    }
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise OptionError(
            f"{', '.join(wrong)}: cannot be combined with an object that is iterable only; a "
            "dataset with __getitem__ is needed"
        )
    assert dataset.passes is not None
    passes = dataset.passes
    return Prepared(label=SOURCE, work=passes, n_samples=passes.n_samples_all, files=source.files)


def _of_source(
    config: RunConfig, framework: str, source: Source, items: ProfiledItems, screen: Screen
) -> Prepared:
    numbers = np.unique(items.numbers)
    work = _pipeline(source.dataset, source.index, numbers)
    if items.window is not None:
        table = np.searchsorted(numbers, items.numbers)
        work = windowed_pipeline(work, table, items.window)
    threads = 0
    if framework == "native" and config.n_workers:
        threads = config.n_workers if getattr(source.dataset, "thread_safe", False) else 0
        if not threads:
            screen.note(
                f"{source.dataset.name}: samples are made by processes, since it may be read by "
                "one thread at a time"
            )
    return Prepared(
        label=SOURCE,
        work=work,
        n_samples=len(work),
        taken=np.arange(len(work)),
        files=source.files,
        framework=framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead,
        windows=items.windows,
        threads=threads,
    )


def _pipeline(dataset: Any, index: SampleIndex, numbers: NDArray[np.int64]) -> Pipeline:
    chosen = sample_numbers(numbers)
    return dataset_pipeline(dataset, index, chosen if isinstance(chosen, range) else [*chosen])


def _open_baseline(
    config: RunConfig, source: Source, batch_size: int | None, screen: Screen
) -> Baseline | None:
    """Return the plain loop that ``--pipeline`` names, if it does."""
    dataset, is_auto = source.dataset, config.pipelines == AUTO_PIPELINES
    is_alone = (
        SOURCE not in config.formats
        or config.window is not None
        or config.cache == "cold"  # one would warm it for the other
        or len(config.frameworks) > 1
        or not getattr(dataset, "has_plain_loop", False)
    )
    if (is_auto and is_alone) or not (is_auto or "upstream" in config.pipelines):
        return None
    if not hasattr(dataset, "upstream"):
        raise OptionError(f"--pipeline upstream: {dataset.name} has none; it has own")
    if url := next((file for file in source.files if isinstance(file, URL)), None):
        raise OptionError(
            f"--pipeline upstream: reads local files only, and {url} is a URL; copy the files "
            "here, or use --pipeline own"
        )
    try:
        with screen.progress("preparing upstream"):
            baseline: Baseline = dataset.upstream(source.files, source.index, batch_size=batch_size)
    except (FileFormatError, MissingExtraError) as error:
        if not is_auto:
            raise
        screen.note(f"iobench's own reader is measured alone: {error}")
        return None
    splits = ", ".join(chosen_splits(config.split, config.splits_by))
    if isinstance(baseline.pipeline, SamplePasses) and splits:
        raise OptionError(
            f"--split {splits}: cannot be combined with --pipeline upstream of {dataset.name}, "
            "which loads all samples in an order of its own"
        )
    return baseline


def _of_baseline(
    config: RunConfig, source: Source, items: ProfiledItems, baseline: Baseline
) -> Prepared:
    running = baseline.pipeline
    shared: dict[str, Any] = {
        "label": "upstream",
        "pipeline": "upstream",
        "files": source.files,
        "described_by": baseline.source,
    }
    if isinstance(running, SamplePasses):
        return Prepared(work=running, n_samples=running.n_samples_all, **shared)
    return Prepared(
        work=_pipeline(running, source.index, np.unique(items.numbers)),
        n_samples=len(items.numbers),
        taken=np.arange(len(items.numbers)),
        framework="workers",
        workers=config.n_workers,
        prefetch=config.n_ahead,
        **shared,
    )


# -- stores ---


def _of_store(
    opened: ComparedStore,
    samples: ProfiledSamples,
    config: RunConfig,
    framework: str,
    items: ProfiledItems,
    screen: Screen,
) -> Prepared:
    store, manifest = opened.store, opened.store.manifest
    places = _places_in(store, items.numbers)
    work = store_pipeline(store)
    uses_ring = framework == "native" or (
        framework == "tensorflow" and manifest.format != "tfrecord"
    )
    taken: NDArray[np.int64] | None = None
    n_samples = len(store)
    if items.window is not None:
        work = windowed_pipeline(work, places, items.window)
        n_samples = len(work)
    elif uses_ring or framework not in OF_STORES:
        # In the order in which other ways of loading have them: a store may have another one.
        taken, n_samples = places[:, 0], len(places)
    elif len(places) < len(store):
        screen.note(
            f"{opened.label}: {framework} reads all {len(store)} samples of it, in its own order"
        )
    threads = 0
    extents: BatchSource | None = None
    if framework in ("native", *OF_STORES):
        threads = config.n_workers or int(framework != "native")
        if uses_ring and config.workers is None and not is_local(store.path):
            threads = max(threads, REMOTE_THREADS)  # as in a script
        if threads and uses_ring:
            extents = source_of_store(store)
            if items.window is not None:
                extents = SampleSource(extents, places, window=items.window)
    shards = tuple(
        (shard.n_samples, tuple(store.path / file.name for file in shard.files))
        for shard in manifest.shards
    )
    return Prepared(
        label=opened.label,
        format=manifest.format,
        work=work,
        n_samples=n_samples,
        taken=taken,
        files=[file for _, files in shards for file in files],
        store=opened.document(None if samples.source is None else len(samples.index)),
        framework=framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead or (DEFAULT_PREFETCH if threads else 0),
        windows=items.windows,
        threads=threads,
        extents=extents,
        shards=shards,
        spelled=opened.spelled,
    )


def _places_in(store: Store, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where samples of these numbers lie in a store; -1 where nowhere."""
    return places_among(store.manifest.samples, numbers.ravel()).reshape(numbers.shape)
