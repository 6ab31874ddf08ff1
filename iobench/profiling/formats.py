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
from iobench.datasets.objects.source import IterableObject
from iobench.datasets.selection import chosen_splits, select_splits
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, StoreClaimedError, StoreError
from iobench.files.atomic import is_local
from iobench.loaders.pipeline import Pipeline, dataset_pipeline, store_pipeline
from iobench.loaders.ring.store_source import REMOTE_THREADS
from iobench.masking import mask_words
from iobench.profiling.config import AUTO_PIPELINES, DEFAULT_PREFETCH, OF_STORES
from iobench.profiling.profiled_samples import SampleSelection, choose_samples
from iobench.registry import SOURCE, find_converter, find_format
from iobench.stores.places import choose_place, conversion_s, note_conversion
from iobench.stores.plan import StoreRequest
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource
    from iobench.profiling.baselines import BaselineSetup
    from iobench.profiling.config import RunConfig
    from iobench.profiling.format_choice import FormatChoice
    from iobench.profiling.profiled_samples import GivenStore, ProfiledSamples
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store

Facts = dict[str, Any]
PROBE_NBYTES: Final = 2 << 30
PROBE_SHARD_NBYTES: Final = 256 << 20
"""What an interrupted probe loses at the most."""
PROBE_S: Final = 60.0
LARGEST_ERRORS: Final = ("max_absolute_error", "max_relative_error")
PROBE_MEMORY_NBYTES: Final = 256 << 20
"""Or as much as a sample needs."""


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
    store: Facts | None = None  # of a store what ``run.json`` says
    # as in ``--framework``; ``stream`` of `SamplePasses`, unless they are a user's DataLoader
    framework: str = "stream"
    workers: int = 0
    threads: int = 0  # reader threads of the ring; 0 where there is none
    prefetch: int = 0  # of the loader; 0 of `SamplePasses`
    described_by: str = ""  # where a baseline is described; empty for our own
    setup_s: Mapping[str, float] = msgspec.field(default_factory=dict)  # spent on this one alone
    # where windows were laid, `WindowPlacement.to_dict`; None where a sample is an item
    windows: Mapping[str, Any] | None = None
    # what the ring fills batches with from a store; None where it runs the steps of ``work``
    extents: BatchSource | None = None
    # samples and files of each shard of a store
    shards: tuple[tuple[int, tuple[Path, ...]], ...] = ()
    ready: IterableObject | None = None  # with a DataLoader of the user's own, run as it is
    # numbers of the samples in their dataset; None where the loader has an order of its own, or a
    # sample is a window of several
    numbers: Sequence[int] | None = None
    # which samples of a store are loaded, in the order of all ways of loading
    taken: NDArray[np.int64] | None = None
    # which samples the evaluation after each epoch is of, as ``taken``; those are not among it
    evaluated: NDArray[np.int64] | None = None
    spelled: str | None = None  # how ``--format`` spells it, where that has options


class ComparedStore(msgspec.Struct, frozen=True):
    """A store to be measured, made for this profile or before."""

    label: str  # its name in reports
    store: Store
    facts: Facts  # what ``run.json`` says of it
    spelled: str | None = None  # how ``--format`` spells it, where that has options


def prepare(
    config: RunConfig,
    profiled: ProfiledSamples,
    given: Sequence[GivenStore],
    baselines: Mapping[str, BaselineSetup],
    batch_size: int,
    screen: Screen,
) -> list[Prepared]:
    """Return what is to be measured, over the same samples; probes are converted first."""
    source = profiled.source
    if source is not None and isinstance(source.dataset, IterableObject):
        _refuse_for_passes(config)
        return [_of_passes(source.dataset, source)]
    splits = chosen_splits(config.split, config.splits_by)
    for name, each in baselines.items():
        if splits and source is not None and isinstance(each.baseline.pipeline, SamplePasses):
            raise OptionError(
                f"--split {', '.join(splits)}: cannot be combined with --pipeline {name} of "
                f"{source.dataset.name}, which loads all samples"
            )
    selection = choose_samples(config, profiled.index, batch_size, screen)
    stores = {}
    if source is not None:
        stores = {
            choice.spelled: _probe(choice, config, source, selection.samples, screen)
            for choice in config.choices
            if choice.name != SOURCE
        }
    named = [_given(one, profiled) for one in given]
    # All ways read the samples that every store holds, no more and no fewer.
    chosen = sorted(selection.samples)
    for one in (*stores.values(), *named):
        chosen = profiled.held(chosen, one.store.manifest.samples)
        if not chosen:
            raise OptionError(
                f"{one.label}: holds none of the samples that are to be loaded; take more batches, "
                "or another --split"
            )
    # Ours goes first: what lies in no page cache yet is not on the other's account.
    pipelines = ("own", *baselines) if config.pipelines == AUTO_PIPELINES else config.pipelines
    result: list[Prepared] = []
    for name in config.formats:
        if name in stores:
            result.append(_of_store(stores[name], config, profiled, selection, chosen, screen))
            continue
        assert source is not None  # else there is no format
        result += [
            _of_source(config, source, selection, chosen, screen)
            if pipeline == "own"
            else _of_baseline(pipeline, config, source, chosen, baselines[pipeline])
            for pipeline in pipelines
        ]
    result += [_of_store(one, config, profiled, selection, chosen, screen) for one in named]
    return [_with_evaluation(one, profiled, config) for one in result]


def _with_evaluation(one: Prepared, profiled: ProfiledSamples, config: RunConfig) -> Prepared:
    """Return the same with samples of ``--evaluate`` apart, for the evaluation after each epoch."""
    if config.evaluate is None:
        return one
    if one.numbers is None:
        raise OptionError(f"--evaluate {config.evaluate}: {one.label} loads in an order of its own")
    every = np.arange(one.n_samples) if one.taken is None else one.taken
    parts = []
    for split in (config.training_split, config.evaluate):
        places = profiled.places(select_splits(profiled.index, (split,)), one.numbers)
        parts.append(places[np.isin(places, every)])
        if not len(parts[-1]):
            raise OptionError(
                f"--evaluate {config.evaluate}: {one.label} holds no sample of {split}; convert "
                "all of them, or take --format source"
            )
    taken, evaluated = parts
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
    if wrong := [option for option, is_given in given.items() if is_given]:
        raise OptionError(
            f"{', '.join(wrong)}: cannot be combined with an object that is iterable only; a "
            "dataset with __getitem__ is needed"
        )


def _of_passes(dataset: IterableObject, source: Source) -> Prepared:
    """Return an object that cannot be asked for a sample by its number."""
    assert dataset.passes is not None
    passes, loader = dataset.passes, dataset.loader
    one = Prepared(label=SOURCE, work=passes, n_samples=passes.n_samples_all, files=source.files)
    if loader is None:
        return one
    workers = int(loader.num_workers)
    return replace(
        one,
        ready=dataset,
        framework="torch",
        workers=workers,
        prefetch=int(loader.prefetch_factor or 1) if workers else 0,
    )


def _of_source(
    config: RunConfig,
    source: Source,
    selection: SampleSelection,
    chosen: Sequence[int],
    screen: Screen,
) -> Prepared:
    work = selection.over(dataset_pipeline(source.dataset, source.index, chosen), chosen)
    threads = 0
    if config.framework == "native" and config.n_workers:
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
        files=source.files,
        framework=config.framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead,
        windows=selection.windows,
        threads=threads,
        numbers=chosen if selection.windows is None else None,
    )


def _of_baseline(
    name: str,
    config: RunConfig,
    source: Source,
    chosen: Sequence[int],
    opened: BaselineSetup,
) -> Prepared:
    running = opened.baseline.pipeline
    shared: dict[str, Any] = {
        "label": name,
        "pipeline": name,
        "files": source.files,
        "described_by": opened.baseline.source,
        "setup_s": {"opening": opened.setup_s},
    }
    if isinstance(running, SamplePasses):
        return Prepared(work=running, n_samples=running.n_samples_all, **shared)
    workers = config.n_workers
    return Prepared(
        work=dataset_pipeline(running, source.index, chosen),
        n_samples=len(chosen),
        framework="workers",
        workers=workers,
        prefetch=config.n_ahead if workers else 0,
        numbers=chosen,
        **shared,
    )


def _of_store(
    opened: ComparedStore,
    config: RunConfig,
    profiled: ProfiledSamples,
    selection: SampleSelection,
    chosen: Sequence[int],
    screen: Screen,
) -> Prepared:
    store, manifest = opened.store, opened.store.manifest
    places = profiled.places(chosen, manifest.samples)
    work = selection.over(store_pipeline(store), chosen, places)
    uses_ring = in_ring(config.framework, manifest.format)
    follows_plan = uses_ring or config.framework not in OF_STORES
    if not follows_plan and selection.windows is None and len(chosen) < len(store):
        screen.note(
            f"{opened.label}: {config.framework} reads all {len(store)} samples of it, in its own "
            "order"
        )
    threads = 0
    if config.framework in ("native", *OF_STORES):
        threads = config.n_workers or int(config.framework != "native")
        if uses_ring and config.workers is None and not is_local(store.path):
            threads = max(threads, REMOTE_THREADS)  # as in a script
    # In the order in which other ways of loading have them: a store may hold them in another one.
    in_order = selection.windows is None and follows_plan and len(chosen) <= len(store)
    shards = tuple(
        (shard.n_samples, tuple(store.path / file.name for file in shard.files))
        for shard in manifest.shards
    )
    return Prepared(
        label=opened.label,
        format=manifest.format,
        work=work,
        n_samples=len(chosen) if in_order else len(work),
        files=[file for _, files in shards for file in files],
        store=opened.facts,
        framework=config.framework,
        workers=0 if threads else config.n_workers,
        prefetch=config.n_ahead or (DEFAULT_PREFETCH if threads else 0),
        windows=selection.windows,
        threads=threads,
        extents=selection.over_store(store, chosen, places) if threads and uses_ring else None,
        shards=shards,
        numbers=manifest.samples if follows_plan and selection.windows is None else None,
        taken=places if in_order else None,
        spelled=opened.spelled,
    )


def in_ring(framework: str, name: str) -> bool:
    """Tell whether the ring reads a store of this format for a framework."""
    return framework == "native" or (framework == "tensorflow" and name != "tfrecord")


def _probe(
    choice: FormatChoice, config: RunConfig, source: Source, samples: list[int], screen: Screen
) -> ComparedStore:
    """Return a probe of an item of ``--format``."""
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
        encoding=choice.encoding,
        workers=available_cpus(),
        memory_nbytes=max(PROBE_MEMORY_NBYTES, 3 * source.index.spec.nbytes),
    )
    request.check_container()
    spelled = choice.spelled if choice.options else None
    path = source.place / "stores" / request.plan().name
    notice = choose_place(store_dir=config.store_dir).notice
    if notice and not source.stand_in and not path.exists():
        screen.note(notice)
    wrote, tally, watch = False, Tally(), stopwatch()
    with _removable(path), screen.progress(f"converting a probe to {choice.spelled}") as move:

        def advance(done: int, total: int) -> None:
            nonlocal wrote
            wrote = True  # not set where the store exists, or another process makes it
            move(done, total)

        store = find_converter()(
            replace(request, path=path), progress=advance, notice=screen.note, tally=tally
        )
    assert store is not None, "a probe has one part"
    if tally.n_written and not tally.n_resumed:  # one run made it all
        note_conversion(path, watch())
    facts = _facts_of(
        store,
        len(source.index),
        path=str(path),
        reused=not wrote,
        convert_s=watch() if wrote else conversion_s(path),
        probe=len(store) < len(source.index),
    )
    return ComparedStore(choice.spelled, store, facts, spelled)


def _given(one: GivenStore, profiled: ProfiledSamples) -> ComparedStore:
    n_samples_all = len(one.store if profiled.source is None else profiled.index)
    facts = _facts_of(one.store, n_samples_all, target=mask_words([one.target])[0])
    return ComparedStore(one.label, one.store, facts)


def _facts_of(store: Store, n_samples_all: int, **others: Any) -> Facts:
    """Return what ``run.json`` says of a store; if nothing else is said, it was finished before."""
    manifest = store.manifest
    return {
        "path": str(store.path),
        "target": None,
        "probe": False,
        "reused": True,
        "convert_s": None,
        "nbytes": manifest.nbytes,
        "n_samples": len(store),
        "options": dict(manifest.options),
        "lossy": {
            name: {key: errors[key] for key in LARGEST_ERRORS if key in errors}
            for name, errors in manifest.lossy.items()
        },
        "n_samples_all": n_samples_all,
        **others,
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
