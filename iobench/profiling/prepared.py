"""What a profile compares: one `Prepared` for each way of loading the same samples."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.cpus import available_cpus
from iobench.datasets.contract import Baseline, SampleIndex, SamplePasses
from iobench.datasets.python_objects import IterableObject
from iobench.datasets.selection import (
    chosen_splits,
    place_index_windows,
    select_split,
    split_index,
)
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingExtraError,
    OptionError,
    StoreClaimedError,
    StoreError,
)
from iobench.files.atomic import is_local
from iobench.files.urls import URL, as_path
from iobench.loaders.pipeline import Pipeline, dataset_pipeline, store_pipeline, windowed_spec
from iobench.loaders.ring.store_source import REMOTE_THREADS, source_of_store
from iobench.masking import mask_values, mask_words
from iobench.profiling.config import AUTO_PIPELINES, DEFAULT_BATCHES, DEFAULT_PREFETCH, OF_STORES
from iobench.registry import SOURCE, dataset_names, find_converter, find_dataset, find_format
from iobench.samples import Window
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import canonical_json
from iobench.stores.places import choose_place, conversion_s, note_conversion
from iobench.stores.plan import StoreRequest, fingerprint, probe_samples
from iobench.stores.sample_numbers import places_among, sample_numbers
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import PublishedStep
    from iobench.loaders.contract import BatchSource
    from iobench.profiling.config import FormatChoice, RunConfig
    from iobench.samples import SampleSpec
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store

NOT_COMPARED: Final = {"request", "files", "normalisation", "terms_of_use", "citation"}
"""Facts of a source that are compared otherwise, or do not change samples."""
PROBE_NBYTES: Final = 2 << 30
PROBE_SHARD_NBYTES: Final = 256 << 20
"""What an interrupted probe loses at the most."""
PROBE_S: Final = 60.0
PROBE_MEMORY_NBYTES: Final = 256 << 20
"""Or as much as a sample needs."""
LARGEST_ERRORS: Final = ("max_absolute_error", "max_relative_error")


class ComparedStore(msgspec.Struct, frozen=True):
    """A store to be measured."""

    label: str  # its name in reports; as it was named where several have one name
    store: Store
    target: str | None = None  # as it was named; None of one made for the profile
    spelled: str | None = None  # how ``--format`` spells it, where that has options
    facts: Mapping[str, Any] = {}  # of a probe, for ``run.json``

    def document(self, n_samples_all: int | None) -> dict[str, Any]:
        """Return what ``run.json`` says of it."""
        manifest = self.store.manifest
        return {
            "path": str(self.store.path),
            "target": None if self.target is None else mask_words([self.target])[0],
            "probe": False,
            "convert_s": None,
            "nbytes": manifest.nbytes,
            "n_samples": len(self.store),
            "options": dict(manifest.options),
            "lossy": {
                name: {key: errors[key] for key in LARGEST_ERRORS if key in errors}
                for name, errors in manifest.lossy.items()
            },
            "n_samples_all": len(self.store) if n_samples_all is None else n_samples_all,
            **self.facts,
        }


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
    window: Window | None = None
    items: NDArray[np.int64] | None = None  # of ``work``, that each window has
    # what the ring fills batches with from a store; None where it runs the steps of ``work``
    extents: BatchSource | None = None
    # files of each shard of a store
    shards: tuple[tuple[Path, ...], ...] = ()
    # which samples of ``work`` are loaded, in the order of all ways of loading; None for all
    taken: NDArray[np.int64] | None = None

    @property
    def spec(self) -> SampleSpec:
        """What a sample is."""
        spec = self.work.spec
        return spec if self.window is None else windowed_spec(spec, self.window)


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
        "stand_in": bool(facts.get("stand_in", False)) or tiny,
        "tiny": tiny,
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
            choice.spelled: _open_probe(choice, config, source, items.spread, screen)
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
    n_samples, threads = len(items.numbers), 0
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
        n_samples=n_samples,
        taken=np.arange(n_samples),
        files=source.files,
        framework=framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead,
        windows=items.windows,
        window=items.window,
        items=np.searchsorted(numbers, items.numbers),
        threads=threads,
    )


def _pipeline(dataset: Any, index: SampleIndex, numbers: NDArray[np.int64]) -> Pipeline:
    return dataset_pipeline(dataset, index, sample_numbers(numbers))


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


def open_given(targets: Sequence[str]) -> tuple[ComparedStore, ...]:
    """Return stores, opened, of which all hold samples of the same data."""
    stores = [open_store(as_path(target)) for target in targets]
    if len({str(store.path) for store in stores}) < len(stores):
        raise OptionError(f"{stores[0].path}: is named twice; name each store once")
    names = [store.path.name for store in stores]
    labels = names if len({*names}) == len(names) else targets
    for target, store in zip(targets, stores, strict=True):
        if not len(store):
            raise StoreError(f"{target}: holds no sample")
        if why := _difference(_identity_of(store), _identity_of(stores[0])):
            raise StoreError(
                f"{target}: holds other samples than {targets[0]}: {why}; stores that take turns "
                "hold the same"
            )
    return tuple(map(ComparedStore, labels, stores, targets))


def check_source(given: Sequence[ComparedStore], source: Source) -> None:
    """Check that stores hold samples of the source beside them."""
    if not given:
        return
    index = source.index
    facts = json.loads(canonical_json(mask_values(index.provenance)))
    facts["fingerprints"] = list(map(fingerprint, source.files))
    now = _identity(source.dataset.name, index.spec, facts, facts.get("normalisation", {}))
    for one in given:
        why = _difference(_identity_of(one.store), now)
        if not why and (last := int(np.max(one.store.manifest.samples))) >= len(index):
            why = f"it holds sample {last}, and there are {len(index)} now"
        if why:
            raise StoreError(
                f"{one.target}: was not made of {source.dataset.name} as it is named here: {why}; "
                "name its own source, with the options it was converted with, or the store alone"
            )


def _identity_of(store: Store) -> dict[str, Any]:
    manifest = store.manifest
    spec = manifest.spec.unpacked
    return _identity(manifest.dataset, spec, manifest.provenance, manifest.normalisation)


def _identity(
    dataset: str, spec: SampleSpec, facts: Mapping[str, Any], normalisation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what tells samples of one source from those of another, by name."""
    return {
        # Of files, and of objects, the facts tell which they are, wherever they lie.
        **({} if "kind" in facts else {"dataset": dataset}),
        "variables": {variable.name: list(variable.shape) for variable in spec},
        "normalisation": dict(normalisation),
        **{
            name: value
            for name, value in facts.items()
            if name not in NOT_COMPARED and not name.endswith(("version", "versions"))
        },
    }


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first difference of two identities, in words; empty where there is none."""
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            mine, theirs = (json.dumps(each.get(name))[:60] for each in (one, other))
            return f"{name}: {mine}, not {theirs}"
    return ""


def _open_probe(
    choice: FormatChoice, config: RunConfig, source: Source, samples: Sequence[int], screen: Screen
) -> ComparedStore:
    """Return the store of some samples that an item of ``--format`` asks for, converted if need be.

    ``samples`` are in an order of which every beginning is spread over the files.
    """
    request = StoreRequest(
        source.dataset,
        source.index,
        find_format(choice.name),
        source.place,
        samples=samples[: max(1, PROBE_NBYTES // max(1, source.index.spec.nbytes))],
        options=choice.format_options,
        files=source.files,
        shard_nbytes=choice.shard_nbytes or PROBE_SHARD_NBYTES,
        limit_s=PROBE_S,
        encoding=choice.encoding,
        workers=available_cpus(),
        memory_nbytes=max(PROBE_MEMORY_NBYTES, 3 * source.index.spec.nbytes),
    )
    request.check_container()
    path = source.place / "stores" / request.plan().name
    notice = choose_place(store_dir=config.store_dir).notice
    if notice and not source.stand_in and not path.exists():
        screen.note(notice)
    tally, watch = Tally(), stopwatch()
    try:
        with screen.progress(f"converting a probe to {choice.spelled}") as move:
            store = find_converter()(
                replace(request, path=path), progress=move, notice=screen.note, tally=tally
            )
    except StoreClaimedError:
        raise
    except StoreError as error:  # the same command makes it anew
        raise StoreError(f"{error} (to have it made again: rm -r {path})") from error
    assert store is not None, "a probe has one part"
    took_s = watch()
    if tally.n_written and not tally.n_resumed:  # one run made it all
        note_conversion(path, took_s)
    facts = {
        "convert_s": took_s if tally.n_written else conversion_s(path),
        "probe": len(store) < len(source.index),
    }
    spelled = choice.spelled if choice.options else None
    return ComparedStore(choice.spelled, store, spelled=spelled, facts=facts)


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
        n_samples = len(places)
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
    shards = tuple(
        tuple(store.path / file.name for file in shard.files) for shard in manifest.shards
    )
    return Prepared(
        label=opened.label,
        format=manifest.format,
        work=work,
        n_samples=n_samples,
        taken=taken,
        files=[file for files in shards for file in files],
        store=opened.document(None if samples.source is None else len(samples.index)),
        framework=framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead or (DEFAULT_PREFETCH if threads else 0),
        windows=items.windows,
        window=items.window,
        items=places,
        threads=threads,
        extents=extents,
        shards=shards,
        spelled=opened.spelled,
    )


def _places_in(store: Store, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where samples of these numbers lie in a store; -1 where nowhere."""
    return places_among(store.manifest.samples, numbers.ravel()).reshape(numbers.shape)
