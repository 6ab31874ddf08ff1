"""What a profile compares, each ready to be loaded; missing probes are converted first."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.cpus import available_cpus
from iobench.datasets.baseline import SamplePasses
from iobench.datasets.objects.source import ObjectDataset
from iobench.datasets.selection import chosen_splits, select_splits
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, StoreClaimedError, StoreError
from iobench.loaders.gil import reader_threads
from iobench.loaders.pipeline import Pipeline, dataset_pipeline, store_pipeline
from iobench.masking import as_typed, mask_words
from iobench.profiling.config import AUTO_PIPELINES, DEFAULT_PREFETCH, OF_STORES
from iobench.profiling.given_stores import find_finished
from iobench.profiling.wanted import WantedSamples, find_wanted
from iobench.registry import SOURCE, find_converter, find_format
from iobench.stores.places import choose_place, conversion_s, note_conversion
from iobench.stores.plan import StoreRequest
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.baseline import Baseline
    from iobench.datasets.contract import Dataset
    from iobench.datasets.objects.iterables import ReadyBatches
    from iobench.loaders.ring.contract import BatchSource
    from iobench.profiling.config import RunConfig
    from iobench.profiling.format_choice import FormatChoice
    from iobench.profiling.given_stores import GivenStore
    from iobench.profiling.profiled import ProfiledSamples
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store

Facts = dict[str, Any]
PROBE_NBYTES: Final = 2 << 30
PROBE_SHARD_NBYTES: Final = 256 << 20
"""What an interrupted probe loses at the most."""
PROBE_S: Final = 60.0
USUAL_SHARD_NBYTES: Final = 1 << 30
"""Of a conversion, where nobody says."""
LARGEST_ERRORS: Final = ("max_absolute_error", "max_relative_error")
PROBE_MEMORY_NBYTES: Final = 256 << 20
"""Or as much as a sample needs: nobody asked for a bound here."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """One way of loading the same samples, ready to be measured."""

    # what reports call it: the format as it was spelled, a store's name, or the pipeline where that
    # is not our own
    label: str
    format: str
    pipeline: str  # as in ``--format`` and ``--pipeline``
    work: Pipeline | SamplePasses  # what a loader runs
    n_samples: int  # samples of one epoch
    files: list[Path]  # what is read, for the page cache
    store: dict[str, Any] | None  # of a store what ``run.json`` says
    # as in ``--framework``; ``stream`` of `SamplePasses`, unless they are a user's DataLoader
    framework: str
    workers: int
    prefetch: int  # of the loader; 0 of `SamplePasses`
    described_by: str = ""  # where a baseline is described; empty for our own
    # seconds spent on this one alone
    setup_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    # where windows were laid, `WindowPlacement.to_dict`; None where a sample is an item
    windows: Mapping[str, Any] | None = None
    threads: int = 0  # reader threads of the ring; 0 where there is none
    # of making a sample of the original files, where it was measured
    gil_share: float | None = None
    # what the ring fills batches with from a store; None where it runs the steps of ``work``
    extents: BatchSource | None = None
    # samples and files of each shard of a store
    shards: tuple[tuple[int, tuple[Path, ...]], ...] = ()
    ready: ReadyBatches | None = None  # of a DataLoader of the user's own, which is run as it is
    # what the samples are in their dataset; None where the loader has an order of its own, or a
    # sample is a window of several
    numbers: Sequence[int] | None = None
    # which samples of a store are loaded, in the order of all ways of loading
    taken: NDArray[np.int64] | None = None
    # which samples the evaluation after each epoch is of, as ``taken``; those are not among it
    evaluated: NDArray[np.int64] | None = None
    spelled: str | None = None  # how ``--format`` spells it, where that has options


class StoreAtHand(msgspec.Struct, frozen=True):
    """A store that is ready to be read, made for this profile or there before."""

    label: str  # what reports call it
    store: Store
    facts: Facts  # what ``run.json`` says of it
    spelled: str | None = None  # how ``--format`` spells it, where that has options


def prepare(
    config: RunConfig,
    profiled: ProfiledSamples,
    given: Sequence[GivenStore],
    baselines: Mapping[str, tuple[Baseline, dict[str, float]]],
    batch_size: int,
    screen: Screen,
) -> list[Prepared]:
    """Return what is to be measured, over the same samples; probes are converted first."""
    source = profiled.source
    if source is not None and _passes_of(source.dataset) is not None:
        _refuse_for_passes(config)
        return [_of_source(config, source, WantedSamples([]), [], screen)]
    splits = chosen_splits(config.split, config.splits_by)
    if source is not None and splits:
        _refuse_splits(splits, source, baselines)
    wanted = find_wanted(config, profiled.index, batch_size, screen)
    made = {}
    if source is not None:
        made = {
            choice.spelled: _prepare_store(choice, config, source, wanted.samples, screen)
            for choice in config.choices
            if choice.name != SOURCE
        }
    there = [_given(one, profiled) for one in given]
    # All ways read the samples that every store holds, no more and no fewer.
    chosen = sorted(wanted.samples)
    for one in (*made.values(), *there):
        chosen = profiled.held(chosen, one.store.manifest.samples)
        if not chosen:
            raise OptionError(
                f"{one.label}: holds none of the samples that are to be loaded; take more batches, "
                "or another --split"
            )
    # Ours goes first: what lies in no page cache yet is not on the other's account.
    auto = config.pipelines == AUTO_PIPELINES
    pipelines = ("own", *baselines) if auto else config.pipelines
    prepared: list[Prepared] = []
    for name in config.formats:
        if name in made:
            prepared.append(_of_store(made[name], config, profiled, wanted, chosen, screen))
            continue
        assert source is not None  # else there is no format
        for pipeline in pipelines:
            if pipeline == "own":
                prepared.append(_of_source(config, source, wanted, chosen, screen))
            else:
                prepared.append(
                    _of_baseline(pipeline, config, source, chosen, *baselines[pipeline])
                )
    prepared += [_of_store(one, config, profiled, wanted, chosen, screen) for one in there]
    if config.evaluate is not None:
        prepared = [_with_evaluation(one, profiled, config) for one in prepared]
    return prepared


def _with_evaluation(one: Prepared, profiled: ProfiledSamples, config: RunConfig) -> Prepared:
    """Return the same with some of its samples apart, for the evaluation after each epoch.

    All ways load them in the same order.
    """
    assert config.evaluate is not None
    if one.numbers is None:
        raise OptionError(
            f"--evaluate {config.evaluate}: {one.label} loads in an order of its own; leave it out"
        )
    every = np.arange(one.n_samples) if one.taken is None else one.taken
    found = []
    for split in (config.training_split, config.evaluate):
        places = profiled.places(select_splits(profiled.index, (split,)), one.numbers)
        found.append(places[np.isin(places, every)])
        if not len(found[-1]):
            raise OptionError(
                f"--evaluate {config.evaluate}: {one.label} holds no sample of {split}; convert "
                "all of them, or take --format source"
            )
    taken, evaluated = found
    return replace(one, n_samples=len(taken), taken=taken, evaluated=evaluated)


def _refuse_for_passes(config: RunConfig) -> None:
    """Raise OptionError for what takes samples by their number."""
    given = {
        "--format": config.formats != (SOURCE,),
        "--pipeline": config.asks_for_others,
        "--window": config.window is not None,
        "--split": config.split is not None,
        "--split-by": bool(config.split_by),
        "--evaluate": config.evaluate is not None,
        "--workers": config.workers is not None,
        "--prefetch": config.prefetch is not None,
    }
    wrong = [option for option, is_given in given.items() if is_given]
    if wrong:
        raise OptionError(
            f"{', '.join(wrong)}: this object hands out samples in its own order and by its own "
            "workers; give a dataset with __getitem__, or leave the option out"
        )


def _refuse_splits(
    splits: Sequence[str],
    source: Source,
    baselines: Mapping[str, tuple[Baseline, dict[str, float]]],
) -> None:
    """Raise OptionError for a baseline that loads what it loads, and not samples by number."""
    for name, (baseline, _) in baselines.items():
        if not _has_same_samples(baseline, source):
            raise OptionError(
                f"--split {', '.join(splits)}: --pipeline {name} of {source.dataset.name} loads "
                "all samples, in its own order; leave --split out"
            )


def _has_same_samples(baseline: Baseline, source: Source) -> bool:
    """Tell whether a baseline's samples have the numbers of our own."""
    running = baseline.pipeline
    return not isinstance(running, SamplePasses) and len(running.index) == len(source.index)


def _of_source(
    config: RunConfig,
    source: Source,
    wanted: WantedSamples,
    chosen: Sequence[int],
    screen: Screen,
) -> Prepared:
    running = _passes_of(source.dataset)
    if running is not None:
        ready = source.dataset.ready if isinstance(source.dataset, ObjectDataset) else None
        return Prepared(
            label=SOURCE,
            format=SOURCE,
            pipeline="own",
            work=running,
            n_samples=running.n_samples_all,
            files=source.files,
            store=None,
            framework="stream" if ready is None else "native" if ready.is_ours else "torch",
            workers=0 if ready is None else ready.workers,
            threads=0 if ready is None else ready.threads,
            prefetch=0 if ready is None else ready.prefetch,
            ready=ready,
        )
    work = wanted.over(dataset_pipeline(source.dataset, source.index, chosen), chosen)
    threads, gil_share = 0, None
    if config.framework == "native" and config.n_workers:
        threads, gil_share = reader_threads(source.dataset, work, config.n_workers)
        if not threads:
            screen.note(_why_processes(source.dataset.name, gil_share))
    return Prepared(
        label=SOURCE,
        format=SOURCE,
        pipeline="own",
        work=work,
        n_samples=len(work),
        files=source.files,
        store=None,
        framework=config.framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead,
        windows=wanted.windows,
        threads=threads,
        gil_share=gil_share,
        numbers=chosen if wanted.windows is None else None,
    )


def _why_processes(name: str, gil_share: float | None) -> str:
    if gil_share is None:
        return f"{name} may be read by one thread at a time: worker processes make its samples"
    return (
        f"two threads make samples of {name} {2 / (1 + gil_share):.1f} times as fast as one: "
        "worker processes make them"
    )


def _passes_of(dataset: Dataset) -> SamplePasses | None:
    """Return what to run of an object that cannot be asked for a sample by its number."""
    return dataset.passes if isinstance(dataset, ObjectDataset) else None


def _of_baseline(
    name: str,
    config: RunConfig,
    source: Source,
    chosen: Sequence[int],
    baseline: Baseline,
    setup_s: Mapping[str, float],
) -> Prepared:
    running = baseline.pipeline
    if isinstance(running, SamplePasses):
        return Prepared(
            label=name,
            format=SOURCE,
            pipeline=name,
            work=running,
            n_samples=running.n_samples_all,
            files=source.files,
            store=None,
            framework="stream",
            workers=0,
            prefetch=0,
            described_by=baseline.source,
            setup_s=setup_s,
        )
    same = chosen if _has_same_samples(baseline, source) else None
    work = dataset_pipeline(running.dataset, running.index, same)
    # As many as ours, unless it comes with a number: processes are not compared with none.
    workers = running.workers if config.workers is None and running.workers else config.n_workers
    return Prepared(
        label=name,
        format=SOURCE,
        pipeline=name,
        work=work,
        n_samples=len(work),
        files=source.files,
        store=None,
        framework=running.framework,
        workers=workers,
        prefetch=(running.prefetch or config.n_ahead) if workers else 0,
        described_by=baseline.source,
        setup_s=setup_s,
        numbers=same,
    )


def _of_store(
    at_hand: StoreAtHand,
    config: RunConfig,
    profiled: ProfiledSamples,
    wanted: WantedSamples,
    chosen: Sequence[int],
    screen: Screen,
) -> Prepared:
    store, label = at_hand.store, at_hand.label
    path, name = store.path, store.manifest.format
    places = profiled.places(chosen, store.manifest.samples)
    work = wanted.over(store_pipeline(store), chosen, places)
    in_threads = config.framework in ("native", *OF_STORES)
    follows_plan = config.framework not in OF_STORES or in_ring(config.framework, name)
    threads = (config.n_workers or int(config.framework != "native")) if in_threads else 0
    is_part = wanted.windows is None and len(chosen) < len(store)
    if is_part and not follows_plan:
        screen.note(
            f"{label}: {config.framework} reads all {len(store)} samples of it, in its own order"
        )
    # In the order in which other ways of loading have them: a store may hold them in another one.
    in_order = wanted.windows is None and follows_plan and len(chosen) <= len(store)
    n_samples = len(chosen) if in_order else len(work)
    return Prepared(
        label=label,
        format=name,
        pipeline="own",
        work=work,
        n_samples=n_samples,
        files=[path / file.name for shard in store.manifest.shards for file in shard.files],
        store=at_hand.facts,
        framework=config.framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead or (DEFAULT_PREFETCH if threads else 0),
        windows=wanted.windows,
        threads=threads,
        extents=wanted.over_store(store, chosen, places)
        if threads and in_ring(config.framework, name)
        else None,
        shards=tuple(
            (shard.n_samples, tuple(path / file.name for file in shard.files))
            for shard in store.manifest.shards
        ),
        numbers=store.manifest.samples if follows_plan and wanted.windows is None else None,
        taken=places if in_order else None,
        spelled=at_hand.spelled,
    )


def in_ring(framework: str, name: str) -> bool:
    """Tell whether the ring reads a store of this format for a framework."""
    return framework == "native" or (framework == "tensorflow" and name != "tfrecord")


def _prepare_store(
    choice: FormatChoice, config: RunConfig, source: Source, samples: list[int], screen: Screen
) -> StoreAtHand:
    encoding, spec = choice.encoding, source.index.spec
    request = StoreRequest(
        source.dataset,
        source.index,
        find_format(choice.name),
        source.place,
        samples=samples,  # in an order of which every beginning is spread over the files
        options=choice.format_options,
        files=source.files,
        shard_nbytes=choice.shard_nbytes or PROBE_SHARD_NBYTES,
        limit_nbytes=PROBE_NBYTES,
        limit_s=PROBE_S,
        encoding=encoding,
        workers=available_cpus(),
        memory_nbytes=max(PROBE_MEMORY_NBYTES, 3 * spec.nbytes),
    )
    request.check_container()
    all_of_it = replace(
        request, samples=None, shard_nbytes=choice.shard_nbytes or USUAL_SHARD_NBYTES,
        limit_nbytes=None, limit_s=None,
    )  # fmt: skip
    of_format = [each for each in config.choices if each.name == choice.name]
    # Where sizes of shards are compared, usual ones are what is meant without one.
    any_shards = all(each.shard_nbytes is None for each in of_format)
    spelled = choice.spelled if choice.options else None
    finished = find_finished(all_of_it, source, any_shards=any_shards, notice=screen.note)
    if finished is not None:
        there = as_typed(finished.path)
        screen.note(f"{choice.spelled}: the finished store {there} is measured, no probe")
        facts = _facts_of(finished, len(source.index), str(finished.path))
        return StoreAtHand(choice.spelled, finished, facts, spelled)
    path = source.place / "stores" / request.plan().name
    notice = choose_place(store_dir=config.store_dir).notice
    if notice and not source.stand_in and not path.exists():
        screen.note(notice)
    wrote, tally, watch = False, Tally(), stopwatch()
    with _removable(path), screen.progress(f"converting a probe to {choice.spelled}") as move:

        def advance(done: int, total: int) -> None:
            nonlocal wrote
            wrote = True  # not set where the store is there, or another process makes it
            move(done, total)

        store = find_converter()(
            replace(request, path=path), progress=advance, notice=screen.note, tally=tally
        )
    if tally.n_written and not (tally.n_resumed or tally.n_elsewhere):  # one run made it all
        note_conversion(path, watch())
    facts = {
        "path": str(path),
        "target": None,
        "probe": len(store) < len(source.index),
        "reused": not wrote,
        "convert_s": watch() if wrote else conversion_s(path),
        **_store_facts(store),
        "n_samples_all": len(source.index),
    }
    return StoreAtHand(choice.spelled, store, facts, spelled)


def _given(one: GivenStore, profiled: ProfiledSamples) -> StoreAtHand:
    n_samples_all = len(one.store if profiled.source is None else profiled.index)
    return StoreAtHand(one.label, one.store, _facts_of(one.store, n_samples_all, one.target))


def _facts_of(store: Store, n_samples_all: int, target: str) -> Facts:
    """Return what ``run.json`` says of a store that was there before, whole."""
    return {
        "path": str(store.path),
        "target": mask_words([target])[0],
        "probe": False,
        "reused": True,
        "convert_s": None,
        **_store_facts(store),
        "n_samples_all": n_samples_all,
    }


def _store_facts(store: Store) -> Facts:
    manifest = store.manifest
    return {
        "nbytes": manifest.nbytes,
        "n_samples": len(store),
        "options": dict(manifest.options),
        "lossy": {
            name: {key: errors[key] for key in LARGEST_ERRORS if key in errors}
            for name, errors in manifest.lossy.items()
        },
    }


@contextmanager
def _removable(path: Path) -> Iterator[None]:
    """Say of a damaged store how to be rid of it, so that the same command makes it anew."""
    try:
        yield
    except StoreClaimedError:
        raise
    except StoreError as error:
        raise StoreError(f"{error} ('iobench cache --remove {path}' removes it)") from error
