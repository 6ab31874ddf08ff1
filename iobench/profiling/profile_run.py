"""What ``iobench profile`` does, without the command line: find, prepare, measure, keep.

The result is a run directory (one inside per format when several are compared); everything a
report says is computed from it.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import secrets
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psutil
from msgspec.structs import replace

from iobench.datasets.baseline import SamplePasses
from iobench.datasets.contract import PlannedDataset
from iobench.datasets.expected_reads import expected_reads
from iobench.datasets.objects.values import named_arrays
from iobench.datasets.selection import chosen_splits
from iobench.errors import OptionError
from iobench.files.urls import is_url
from iobench.loaders.batch_plan import BatchPlan, plan_batches, plan_epochs
from iobench.loaders.compute import Compute, parse_compute
from iobench.loaders.device_copies import DeviceCopies
from iobench.loaders.iterable_loader import IterableLoader
from iobench.loaders.measure import MeasuredPipeline, RunProgress, measure
from iobench.loaders.pipeline import Pipeline
from iobench.loaders.planned_ring import PlannedRing
from iobench.loaders.ready_ring import ReadyRing
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.stage_timer import Detail
from iobench.masking import mask_options, mask_words
from iobench.profiling.ahead import with_read_ahead
from iobench.profiling.baselines import open_baselines
from iobench.profiling.chosen_device import AUTO, ChosenDevice, choose_device
from iobench.profiling.config import (
    DEFAULT_BATCHES,
    DEFAULT_PREFETCH,
    DEFAULT_STEADY_S,
    OF_STORES,
    RunConfig,
)
from iobench.profiling.formats import Prepared, prepare
from iobench.profiling.given_stores import check_made_of, open_given
from iobench.profiling.profiled import samples_of_source, samples_of_stores
from iobench.profiling.storage_limits import RunProbes
from iobench.profiling.tracing import ProfileTracing
from iobench.recording.clocks import now_ns
from iobench.recording.digests import DigestLog, load_xxhash
from iobench.recording.machine_head import ENERGY, MONITOR, is_on
from iobench.recording.meter import start_meter
from iobench.recording.process_io import ProcessIo, unit_costs
from iobench.recording.run_directory import RunDirectory, checked_name, next_run_path
from iobench.recording.this_process import machine, package_versions, thread_settings
from iobench.sources.opening import open_source, with_sample_dim
from iobench.staging.staged_copy import staged_copy
from iobench.storage.file_systems import counts_device_reads, near_places
from iobench.storage.page_cache import evict, files_nbytes, residency, warm_up
from iobench.storage.probe import probe_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.datasets.baseline import Baseline
    from iobench.datasets.contract import Progress
    from iobench.loaders.contract import PlannedBatch
    from iobench.loaders.measured_loader import MeasuredLoader
    from iobench.profiling.given_stores import GivenStore
    from iobench.profiling.profiled import ProfiledSamples
    from iobench.recording.recorder import Recorder
    from iobench.sources.request import Screen

GATHERED_EVERY_NS: Final = 10 * 10**9
"""What bringing span files home at the end of a round may not be sooner than: home may be slow."""
LONGEST_NAME: Final = 100
"""Of a folder for one of several runs, whose labels may be longer."""


def profile(config: RunConfig, screen: Screen) -> Path:
    """Measure what the config says and return the run directory."""
    with ProfileTracing(config.darshan, screen) as tracing:
        return _profile(config, screen, tracing)


def _profile(config: RunConfig, screen: Screen, tracing: ProfileTracing) -> Path:
    _import_frameworks(config)
    device = choose_device(config.device)
    if config.device == AUTO and device.accelerator is not None:
        screen.note(f"--device auto: batches are copied to {device.told}")
    given = open_given(config.stores)
    if config.targets:
        config, note = _with_sample_dim(config)
        source = open_source(config, screen)
        if note:
            screen.note(note)
        check_made_of(given, source)
        profiled = samples_of_source(source)
    else:
        source, profiled = None, samples_of_stores(given, config)
    asked = _batch_size(config, profiled)
    baselines: Mapping[str, tuple[Baseline, dict[str, float]]] = {}
    if source is not None:
        baselines = open_baselines(config, source, screen, batch_size=asked)
    batch_size = asked or 1
    prepared = _prepare(config, profiled, given, baselines, batch_size, screen)
    compute = _compute(config, profiled, batch_size, prepared[0].work.spec.nbytes)
    costs = unit_costs()
    out = _new_run_path(config, profiled.name if source is not None else given[0].store.path.stem)
    folders = _folders([one.label for one in prepared])
    runs: list[MeasuredPipeline] = []
    turns = secrets.token_hex(8) if len(prepared) > 1 else None
    probes = RunProbes(probe_seconds(config.limits), len(prepared))
    directories: list[RunDirectory] = []
    try:
        with ExitStack() as stack:
            reasons = []
            for position, one in enumerate(prepared):
                path = out if len(prepared) == 1 else out / folders[position]
                if config.cache == "cold":
                    evict(one.files)
                elif config.cache == "warm":
                    warm_up(one.files)
                one, why = with_read_ahead(config, one, batch_size)
                reasons.append((one, why))
                document = _document(config, profiled, one, compute, batch_size, costs)
                document |= probes.before(one, document["n_samples_all"])
                limit, limit_s = _limits(config, one, batch_size)
                document |= {
                    "position": position,
                    "turns": turns,
                    "darshan": tracing.document(),
                    "detail": Detail.AUTO.value,
                    "asked": {"batches": limit, "steady_s": limit_s, "workers": config.workers},
                }
                directory = RunDirectory.create(path, document)
                stack.callback(directory.gather)
                directories.append(directory)
                run = _make_run(config, one, directory, device, compute, batch_size, costs, stack)
                directory.update(**device.document(run.loader))
                runs.append(run)
            files = [one.files for one, _ in reasons]
            tracing.begin(out, list(zip(directories, files, strict=True)))
            # Workers are forked beside its thread, which holds no lock that a fork would inherit.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            meter = start_meter(
                [directory.path for directory in directories],
                energy=is_on(ENERGY, os.environ),
                machine=is_on(MONITOR, os.environ),
            )
            stack.callback(meter.close)
            with screen.progress("measuring") as move:
                measure(runs, progress=_run_progress(runs, config, move))
            for one, why in reasons:
                if why:
                    screen.note(f"{one.label}: {why}")
    except BaseException as stopped:
        if any(run.n_batches for run in runs):
            stopped.add_note(f"what was measured until then is kept: iobench report {out}")
        raise
    return out


def _with_sample_dim(config: RunConfig) -> tuple[RunConfig, str]:
    """Return it with a sample dimension, named in its command too: what is advised starts there."""
    found, note = with_sample_dim(config)
    if found.sample_dim == config.sample_dim or not config.command:
        return found, note
    return replace(found, command=(*config.command, "--sample-dim", found.sample_dim or "")), note


def _compute(
    config: RunConfig, profiled: ProfiledSamples, batch_size: int, sample_nbytes: int
) -> Compute:
    """Return the emulated training step."""
    return parse_compute(
        config.compute,
        profiled.published,
        batch_size=batch_size,
        sample_nbytes=sample_nbytes,
    )


def _import_frameworks(config: RunConfig) -> None:
    """Import what is measured before anything is made: it may be missing."""
    for name in config.frameworks:
        if name in ("torch", "tensorflow", "dali"):
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            importlib.import_module(f"iobench.{name}")
    if config.digests:
        load_xxhash()


def _folders(labels: Sequence[str]) -> list[str]:
    """Return a plain name for each label, which are as commands spell them, all distinct."""
    names: list[str] = []
    for label in labels:
        name = plain = re.sub(r"[^\w.=,+-]+", "-", label)[:LONGEST_NAME]
        while name in names:
            name = f"{plain}-{names.count(plain) + len(names)}"
        names.append(name)
    return names


def _prepare(
    config: RunConfig,
    profiled: ProfiledSamples,
    given: Sequence[GivenStore],
    baselines: Mapping[str, tuple[Baseline, dict[str, float]]],
    batch_size: int,
    screen: Screen,
) -> list[Prepared]:
    """Return what is to be measured, each format by each framework."""
    prepared: list[Prepared] = []
    for name in config.frameworks:
        of_one = replace(config, framework=name)
        ones = prepare(of_one, profiled, given, baselines, batch_size, screen)
        if len(config.frameworks) > 1:
            labels = [name if len(ones) == 1 else f"{one.label}-{name}" for one in ones]
            ones = [replace(one, label=label) for one, label in zip(ones, labels, strict=True)]
        prepared += ones
    return prepared


def _batch_size(config: RunConfig, profiled: ProfiledSamples) -> int | None:
    """Return the batch size asked for, else the published one; a ready DataLoader has its own."""
    source = profiled.source
    own = None if source is None else getattr(source.dataset, "batch_size", None)
    if own is not None:
        if config.batch_size not in (None, own):
            raise OptionError(
                f"--batch-size {config.batch_size}: {profiled.name} hands out batches of {own}; "
                "leave it out"
            )
        return int(own)
    published = profiled.published.batch_size if profiled.published else None
    return config.batch_size or published


def _make_run(
    config: RunConfig,
    one: Prepared,
    directory: RunDirectory,
    device: ChosenDevice,
    compute: Compute,
    batch_size: int,
    costs: Mapping[str, int | None],
    stack: ExitStack,
) -> MeasuredPipeline:
    """Start nothing yet: workers start with the first round."""
    recorder = directory.recorder(role="consumer")
    stack.callback(recorder.close)
    copies = None
    if device.accelerator is not None:
        copies = DeviceCopies(device.accelerator, recorder)
    loader = _make_loader(config, one, directory, recorder, batch_size, costs, copies, device)
    stack.callback(loader.close)
    digests = DigestLog(directory.path) if config.digests else None
    if digests is not None:
        stack.callback(digests.close)
    limit, limit_s = _limits(config, one, batch_size)
    plan = BatchPlan(
        _planned(one, batch_size, config.seed, _expected_by(one, loader)),
        limit=limit,
        before_epoch=(lambda: evict(one.files)) if config.cache == "cold" else None,
        has_evaluations=one.evaluated is not None,
    )
    return MeasuredPipeline(
        name=one.label,
        loader=loader,
        plan=plan,
        recorder=recorder,
        compute=compute,
        steady_limit_ns=None if limit_s is None else round(limit_s * 1e9),
        process_io=ProcessIo() if loader.workers == 0 else None,
        after_round=_after_round(directory, loader),
        digests=digests,
        device=copies,
    )


def _planned(
    one: Prepared,
    batch_size: int,
    seed: int,
    drawn: Callable[[NDArray[np.int64]], None] | None,
) -> Iterator[PlannedBatch]:
    if one.evaluated is not None and one.taken is not None:
        return plan_epochs(one.evaluated, one.taken, batch_size, seed=seed, drawn=drawn)
    n_samples = max(1, one.n_samples)
    return plan_batches(n_samples, batch_size, seed=seed, drawn=drawn, taken=one.taken)


def _expected_by(
    one: Prepared, loader: MeasuredLoader
) -> Callable[[NDArray[np.int64]], None] | None:
    """Return what tells a dataset the order of an epoch; None where none asks."""
    if isinstance(loader, PlannedRing):
        return loader.expect
    work = one.work
    if one.workers or not isinstance(work, Pipeline) or work.dataset is None:
        return None
    return lambda order: work.expect(order.tolist(), follows=True)


def _limits(config: RunConfig, one: Prepared, batch_size: int) -> tuple[int | None, float | None]:
    """Return after how many batches, and after how many seconds of steady state, a run ends."""
    limit, limit_s = config.batches, config.duration_s
    if config.epochs is not None:
        if not one.n_samples:
            raise OptionError(
                f"--epochs {config.epochs}: {one.label} does not say how many samples an epoch "
                "has; give --batches"
            )
        limit = -(-config.epochs * one.n_samples // batch_size)
        if one.evaluated is not None:
            if batch_size > one.n_samples:
                raise OptionError(
                    f"--batch-size {batch_size}: an epoch that an evaluation follows has whole "
                    f"batches only, and {one.n_samples} samples to make them of; choose from 1 to "
                    f"{one.n_samples}"
                )
            n_evaluated = -(-len(one.evaluated) // batch_size)
            limit = config.epochs * (one.n_samples // batch_size + n_evaluated)
    elif limit is None and limit_s is None:
        limit, limit_s = DEFAULT_BATCHES, DEFAULT_STEADY_S
    return limit, limit_s


def _after_round(directory: RunDirectory, loader: MeasuredLoader) -> Callable[[], None]:
    gathered_ns = 0

    def after_round() -> None:
        nonlocal gathered_ns
        loader.after_round()
        if now_ns() - gathered_ns > GATHERED_EVERY_NS:  # what is left the report gathers
            directory.gather()
            gathered_ns = now_ns()

    return after_round


def _make_loader(
    config: RunConfig,
    one: Prepared,
    directory: RunDirectory,
    recorder: Recorder,
    batch_size: int,
    costs: Mapping[str, int | None],
    copies: DeviceCopies | None,
    device: ChosenDevice,
) -> MeasuredLoader:
    """Return what loads.

    Who copies batches ahead is given ``copies``, a framework that does it itself where the
    ``device`` is; for others the loop does.
    """
    detail = Detail.AUTO
    if one.ready is not None and one.ready.is_ours:
        named = functools.partial(named_arrays, where=f"a batch of {one.label}")
        return ReadyRing(one.ready.loader, named, recorder=recorder)
    if one.ready is not None:
        from iobench.torch.ready_loader import ReadyLoader

        return ReadyLoader(
            one.ready.loader,
            one.ready.passes,
            run=directory,
            recorder=recorder,
            detail=detail,
            unit_costs=costs,
        )
    if isinstance(one.work, SamplePasses):
        return _iterable_loader(one.work)(one.work, batch_size, recorder=recorder)
    if one.framework == "torch":
        from iobench.torch.device import torch_pins
        from iobench.torch.torch_loader import TorchLoader

        return TorchLoader(
            one.work,
            batch_size,
            workers=one.workers,
            prefetch=one.prefetch or DEFAULT_PREFETCH,
            run=directory,
            recorder=recorder,
            detail=detail,
            unit_costs=costs,
            pin=copies is not None and torch_pins(),
        )
    place = device.place_for(one.framework)
    if one.framework in OF_STORES and not (one.framework == "tensorflow" and one.extents):
        return _store_loader(one, batch_size, recorder, place)
    own = {"place": place} if one.framework == "tensorflow" else {"device": copies}
    return _ring(one.framework)(
        one.extents or PipelineSource(one.work, detail=detail, unit_costs=costs),
        batch_size,
        threads=one.threads,
        workers=one.workers,
        prefetch=max(1, one.prefetch),
        recorder=recorder,
        run_directory=directory.path,
        **own,
    )


def _iterable_loader(passes: SamplePasses) -> type[IterableLoader]:
    if passes.framework == "tensorflow":
        from iobench.tensorflow.pipeline_loader import TFPipelineLoader

        return TFPipelineLoader
    return IterableLoader


def _ring(framework: str) -> type[PlannedRing]:
    if framework == "tensorflow":
        from iobench.tensorflow.ring_loader import TFRingLoader

        return TFRingLoader
    return PlannedRing


def _store_loader(
    one: Prepared, batch_size: int, recorder: Recorder, place: str | int | None
) -> MeasuredLoader:
    """Return a framework's own reader of a store."""
    made: dict[str, Any] = {
        "threads": one.threads,
        "prefetch": max(1, one.prefetch),
        "recorder": recorder,
        "place": place,
    }
    if one.framework == "dali":
        from iobench.dali.store_loader import DaliLoader

        files = [files for _, files in one.shards]
        counts = [n_samples for n_samples, _ in one.shards]
        return DaliLoader(files, counts, one.work.spec, batch_size, **made)
    from iobench.tensorflow.example_loader import TFExampleLoader

    return TFExampleLoader([files[0] for _, files in one.shards], one.work.spec, batch_size, **made)


def _document(
    config: RunConfig,
    profiled: ProfiledSamples,
    one: Prepared,
    compute: Compute,
    batch_size: int,
    costs: Mapping[str, int | None],
) -> dict[str, Any]:
    """Return what ``run.json`` says of the run: all a report needs besides the spans."""
    published = profiled.published
    resident, step = residency(one.files), asdict(compute)
    return {
        "name": checked_name(config.name),
        "dataset": profiled.name,
        "title": profiled.title,
        "format": one.format,
        "pipeline": one.pipeline,
        "source_kind": profiled.kind,
        "spelled": one.spelled,
        "sources": mask_words([str(target) for target in config.targets]),
        "chunks": _chunks(config, profiled, one),
        "epoch": _epoch(profiled, one),
        "own_order": one.pipeline == "own" and isinstance(one.work, SamplePasses),
        "described_by": one.described_by,
        "framework": one.framework,
        "label": None if one.label in (one.format, one.pipeline) else one.label,
        "stand_in": profiled.stand_in,
        "tiny": profiled.tiny,
        "workers": one.workers,
        "threads": one.threads,
        "gil_share": one.gil_share,
        "prefetch": one.prefetch,
        "batch_size": batch_size,
        "n_samples": one.n_samples,
        "n_samples_all": len(profiled.index) or None,
        "sample_nbytes": one.work.spec.nbytes,
        "batches_per_step": step.pop("batches_per_step"),
        "compute": step,
        "published": None
        if published is None
        else {
            "exposed_io_s": published.exposed_io_s,
            "source": published.source,
            "tables": {source: dict(table) for source, table in published.tables.items()},
        },
        "expected_workers": [f"worker-{number}" for number in range(one.workers)],
        "cache": {
            "asked": config.cache,
            "resident_fraction_before": resident,
        },
        **near_places(one.files),
        "cold_known": counts_device_reads(one.files),
        "setup": {
            what: round(seconds, 6) for what, seconds in {**profiled.setup_s, **one.setup_s}.items()
        },
        "unit_costs": dict(costs),
        "store": one.store,
        "staged_copy": _staged_copy(one.store),
        "split": config.training_split
        if one.evaluated is not None
        else ", ".join(chosen_splits(config.split, config.splits_by)) or None,
        "evaluated": None
        if one.evaluated is None
        else {"split": config.evaluate, "n_samples": len(one.evaluated)},
        "windows": one.windows,
        "machine": {**machine(), "memory_nbytes": psutil.virtual_memory().total},
        "iobench_version": version("iobench"),
        "versions": package_versions(),
        "thread_settings": thread_settings(),
        "command": shlex.join(mask_words(config.command)),
        "files_hint": profiled.files_hint or str(one.files[0].parent if one.files else ""),
        "n_files": len(one.files),
        "files_nbytes": files_nbytes(one.files),
        "options": mask_options(config.options),
        "digests": config.digests,
        "seed": config.seed,
    }


def _staged_copy(store: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what the copy that is read says of how it was staged; None of what is no copy."""
    path = None if store is None else store.get("path")
    copy = None if path is None or is_url(path) else staged_copy(path)
    return None if copy is None else copy.to_dict()


def _chunks(config: RunConfig, profiled: ProfiledSamples, one: Prepared) -> dict[str, Any] | None:
    """Return how the original files are cut into chunks that samples share; None of a store."""
    dataset = None if profiled.source is None else profiled.source.dataset
    if one.store is not None or not isinstance(dataset, PlannedDataset):
        return None
    found = dataset.chunking()
    if found is None:
        return None
    named = ["--sample-dim", config.sample_dim] if config.sample_dim else []
    return {
        **msgspec.structs.asdict(found),
        "targets": mask_words(config.targets),
        "options": named,
    }


def _epoch(profiled: ProfiledSamples, one: Prepared) -> dict[str, Any] | None:
    """Return what epochs over all samples read; None of what has no files of its own or windows."""
    if profiled.source is None or one.store is not None or one.pipeline != "own" or one.windows:
        return None
    found = expected_reads(profiled.source.dataset, profiled.index.where, max(1, one.workers))
    return None if found is None else msgspec.structs.asdict(found)


def _new_run_path(config: RunConfig, dataset: str) -> Path:
    """Return ``--out``, else the first free ``iobench-runs/NAME-N`` below the working folder."""
    if config.out is not None:
        if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
            raise OptionError(f"--out {config.out}: is there already; name a new folder")
        return config.out
    return next_run_path(checked_name(config.name) or dataset)


def _run_progress(
    runs: Sequence[MeasuredPipeline], config: RunConfig, move: Progress
) -> RunProgress:
    expected = (config.batches or DEFAULT_BATCHES) * len(runs)

    def progress(_: MeasuredPipeline) -> None:
        done = sum(run.n_batches for run in runs)
        move(done, max(expected, done))

    return progress
