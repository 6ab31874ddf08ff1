"""What ``iobench profile`` does, without the command line: find, prepare, measure, keep.

The result is a run directory (one inside per format when several are compared); everything a
report says is computed from it.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import shlex
import warnings
from contextlib import ExitStack, closing
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psutil
from msgspec.structs import replace

from iobench.datasets.contract import SamplePasses
from iobench.datasets.sample_windows import epoch_reads
from iobench.datasets.selection import chosen_splits
from iobench.errors import IobenchError, OptionError
from iobench.files.urls import is_url
from iobench.loaders.device_copies import DeviceCopies
from iobench.loaders.measure import MeasuredPipeline, measure, parse_compute
from iobench.loaders.pipeline import Pipeline
from iobench.loaders.planned_loaders import IterableLoader, PlannedRing
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.sample_source import SampleSource
from iobench.masking import mask_values, mask_words
from iobench.profiling.chosen_device import AUTO, choose_device
from iobench.profiling.config import (
    DEFAULT_BATCHES,
    DEFAULT_PREFETCH,
    DEFAULT_STEADY_S,
    RunConfig,
)
from iobench.profiling.prepared import (
    check_source,
    open_given,
    prepare,
    samples_of_source,
    samples_of_stores,
)
from iobench.profiling.tracing import ProfileTracing
from iobench.recording.digests import DigestLog, load_xxhash
from iobench.recording.machine_head import ENERGY, MONITOR, is_on
from iobench.recording.meter import start_meter
from iobench.recording.process_io import ProcessIo, unit_costs
from iobench.recording.run_directory import RunDirectory, checked_name, next_run_path
from iobench.recording.this_process import machine, package_versions, thread_settings
from iobench.sources.opening import open_source
from iobench.staging.stage import staged_copy
from iobench.storage.file_systems import counts_device_reads, near_places
from iobench.storage.page_cache import evict, files_nbytes, residency, warm_up
from iobench.storage.probe import probe_run, probe_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from iobench.loaders.contract import BatchSource, MeasuredLoader
    from iobench.loaders.measure import Compute
    from iobench.profiling.chosen_device import ChosenDevice
    from iobench.profiling.prepared import Prepared, ProfiledSamples
    from iobench.recording.recorder import Recorder
    from iobench.sources.request import Screen

LONGEST_NAME: Final = 100
"""Of a folder for one of several runs, whose labels may be longer."""


def profile(config: RunConfig, screen: Screen) -> Path:
    """Measure what the config says and return the run directory."""
    with closing(ProfileTracing(config.darshan, screen)) as tracing:
        return _profile(config, screen, tracing)


def _profile(config: RunConfig, screen: Screen, tracing: ProfileTracing) -> Path:
    _import_frameworks(config)
    device = choose_device(config.device)
    if config.device == AUTO and device.accelerator is not None:
        screen.note(f"--device auto: batches are copied to {device.accelerator.name}")
    given = open_given(config.stores)
    if config.targets:
        source = open_source(config, screen)
        if source.sample_dim != config.sample_dim:  # named in its command: what is advised does so
            dim = source.sample_dim or ""
            command = config.command and (*config.command, "--sample-dim", dim)
            config = replace(config, sample_dim=dim, command=command)
        check_source(given, source)
        samples, name = samples_of_source(source), source.dataset.name
    else:
        samples, name = samples_of_stores(given, config), given[0].store.path.stem
    published = samples.published.batch_size if samples.published else None
    batch_size = config.batch_size or published
    prepared = prepare(config, samples, given, batch_size, screen)
    compute = parse_compute(
        config.compute,
        samples.published,
        batch_size=batch_size or 1,
        sample_nbytes=prepared[0].spec.nbytes,
    )
    settings = Settings(config, samples, device, compute, batch_size or 1, unit_costs())
    out = _new_run_path(config, name)
    runs: list[MeasuredPipeline] = []
    try:
        _measure(settings, prepared, out, runs, screen, tracing)
    except BaseException as stopped:
        if any(run.n_batches for run in runs):
            stopped.add_note(f"what was measured until then is kept: iobench report {out}")
        raise
    return out


def _measure(
    settings: Settings,
    prepared: Sequence[Prepared],
    out: Path,
    runs: list[MeasuredPipeline],
    screen: Screen,
    tracing: ProfileTracing,
) -> None:
    config, is_one = settings.config, len(prepared) == 1
    folders = _folders([one.label for one in prepared])
    turns = None if is_one else secrets.token_hex(8)
    probe_s = probe_seconds(config.limits)
    probe_s = None if probe_s is None else probe_s / len(prepared)
    probes: dict[Any, dict[str, Any]] = {}
    directories: list[RunDirectory] = []
    with ExitStack() as stack:
        for position, (one, folder) in enumerate(zip(prepared, folders, strict=True)):
            if config.cache == "cold":
                evict(one.files)
            elif config.cache == "warm":
                warm_up(one.files)
            document = settings.document(one)
            document |= _probed(one, document["n_samples_all"], probe_s, probes)
            document |= {"position": position, "turns": turns, "darshan": tracing.document}
            directory = RunDirectory.create(out if is_one else out / folder, document)
            stack.callback(directory.gather)
            directories.append(directory)
            runs.append(settings.start(one, directory, stack))
        tracing.begin(out, directories, [one.files for one in prepared])
        # Workers are forked beside its thread, which holds no lock that a fork would inherit.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
        meter = start_meter(
            [directory.path for directory in directories],
            energy=is_on(ENERGY, os.environ),
            machine=is_on(MONITOR, os.environ),
        )
        stack.callback(meter.close)
        expected = (config.batches or DEFAULT_BATCHES) * len(runs)
        with screen.progress("measuring") as move:

            def progress(_: MeasuredPipeline) -> None:
                done = sum(run.n_batches for run in runs)
                move(done, max(expected, done))

            measure(runs, progress=progress)


def _probed(
    one: Prepared,
    n_samples_all: int | None,
    duration_s: float | None,
    known: dict[Any, dict[str, Any]],
) -> dict[str, Any]:
    """Probe the storage of what a run reads, of equal reads once; return what ``run.json`` says."""
    if duration_s is None:
        return {}
    readers, nbytes = max(1, one.threads or one.workers), files_nbytes(one.files)
    n_samples = n_samples_all if one.store is None else one.store.get("n_samples")
    request = -(-nbytes // n_samples) if nbytes and n_samples else 0
    key = tuple(one.files), request, readers
    if key in known:
        return known[key]
    if one.files and not request and not any(map(is_url, one.files)):
        known[key] = {"no_storage_probe": "how much is read at once is not known"}
        return known[key]
    try:
        like = "what the files have of a sample"
        result = probe_run(one.files, request, readers, like=like, duration_s=duration_s)
        limits = [msgspec.to_builtins(result)]
        known[key] = {"storage_limits": limits, "storage_probed": "before"}
    except (IobenchError, OSError) as error:  # the run tells what is wrong with its files
        known[key] = {"no_storage_probe": str(error)}
    return known[key]


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


def _new_run_path(config: RunConfig, dataset: str) -> Path:
    """Return ``--out``, else the first free ``iobench-runs/NAME-N`` below the working folder."""
    if config.out is not None:
        if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
            raise OptionError(f"--out {config.out}: exists already; name a new folder")
        return config.out
    return next_run_path(checked_name(config.name) or dataset)


class Settings(msgspec.Struct, frozen=True):
    """What all runs of a profile have in common."""

    config: RunConfig
    samples: ProfiledSamples
    device: ChosenDevice
    compute: Compute  # the emulated training step
    batch_size: int
    unit_costs: Mapping[str, int | None]  # of recording, measured before

    def limits(self, one: Prepared) -> tuple[int | None, float | None]:
        """Return after how many batches, and after how many seconds of steady state, a run ends."""
        config = self.config
        if config.epochs is None:
            if config.batches is None and config.duration_s is None:
                return DEFAULT_BATCHES, DEFAULT_STEADY_S
            return config.batches, config.duration_s
        if not one.n_samples:
            raise OptionError(
                f"--epochs {config.epochs}: {one.label} does not say how many samples an epoch "
                "has; give --batches"
            )
        return -(-config.epochs * one.n_samples // self.batch_size), config.duration_s

    def start(self, one: Prepared, directory: RunDirectory, stack: ExitStack) -> MeasuredPipeline:
        """Return a run that is ready: workers start with its first round."""
        recorder = directory.recorder(role="consumer")
        stack.callback(recorder.close)
        accelerator = self.device.accelerator
        copies = None if accelerator is None else DeviceCopies(accelerator, recorder)
        loader = self._loader(one, directory, recorder, copies)
        stack.callback(loader.close)
        digests = DigestLog(directory.path) if self.config.digests else None
        if digests is not None:
            stack.callback(digests.close)
        limit, limit_s = self.limits(one)
        batches = plan_batches(
            max(1, one.n_samples),
            self.batch_size,
            taken=one.taken,
            seed=self.config.seed,
            drawn=_expects_order(one, loader),
        )
        is_cold = self.config.cache == "cold"
        directory.update(**self.device.document(loader))
        return MeasuredPipeline(
            name=one.label,
            loader=loader,
            plan=BatchPlan(
                batches,
                limit=limit,
                before_epoch=(lambda: evict(one.files)) if is_cold else None,
            ),
            recorder=recorder,
            compute=self.compute,
            steady_limit_ns=None if limit_s is None else round(limit_s * 1e9),
            process_io=ProcessIo() if loader.workers == 0 else None,
            digests=digests,
            device=copies,
        )

    def _loader(
        self,
        one: Prepared,
        directory: RunDirectory,
        recorder: Recorder,
        copies: DeviceCopies | None,
    ) -> MeasuredLoader:
        """Return what loads."""
        work = one.work
        if isinstance(work, SamplePasses):
            if work.framework == "tensorflow":
                from iobench.tensorflow.measured_pipelines import TFPipelineLoader

                return TFPipelineLoader(work, self.batch_size, recorder=recorder)
            return IterableLoader(work, self.batch_size, recorder=recorder)
        if one.framework == "torch":
            from iobench.torch.measured_loaders import TorchLoader

            return TorchLoader(
                work,
                self.batch_size,
                workers=one.workers,
                prefetch=one.prefetch or DEFAULT_PREFETCH,
                pin=copies is not None,
                run=directory,
                recorder=recorder,
                unit_costs=self.unit_costs,
            )
        ahead: dict[str, Any] = {
            "threads": one.threads,
            "prefetch": max(1, one.prefetch),
            "recorder": recorder,
        }
        if one.framework == "dali":
            from iobench.dali.store_pipelines import DaliLoader

            return DaliLoader(one.shards, work.spec, self.batch_size, **ahead)
        if one.framework == "tensorflow" and one.extents is None:
            from iobench.tensorflow.measured_pipelines import TFExampleLoader

            shards = [files[0] for files in one.shards]
            return TFExampleLoader(shards, work.spec, self.batch_size, **ahead)
        source: BatchSource = one.extents or PipelineSource(work, unit_costs=self.unit_costs)
        if one.window is not None:
            source = SampleSource(source, one.items, window=one.window)
        ahead |= {"workers": one.workers, "run_directory": directory.path}
        return PlannedRing(source, self.batch_size, device=copies, **ahead)

    def document(self, one: Prepared) -> dict[str, Any]:
        """Return what ``run.json`` says of a run: all a report needs besides the spans."""
        config, samples = self.config, self.samples
        published, step = samples.published, asdict(self.compute)
        limit, limit_s = self.limits(one)
        splits = chosen_splits(config.split, config.splits_by)
        return {
            "name": checked_name(config.name),
            **samples.facts,
            "format": one.format,
            "pipeline": one.pipeline,
            "spelled": one.spelled,
            "sources": mask_words([str(target) for target in config.targets]),
            **self._shared_chunks(one),
            "own_order": one.pipeline == "own" and isinstance(one.work, SamplePasses),
            "described_by": one.described_by,
            "framework": one.framework,
            "label": None if one.label in (one.format, one.pipeline) else one.label,
            "workers": one.workers,
            "threads": one.threads,
            "prefetch": one.prefetch,
            "batch_size": self.batch_size,
            "n_samples": one.n_samples,
            "n_samples_all": len(samples.index) or None,
            "sample_nbytes": one.spec.nbytes,
            "batches_per_step": step.pop("batches_per_step"),
            "compute": step,
            "published": published
            and {
                "exposed_io_s": published.exposed_io_s,
                "source": published.source,
                "tables": {source: dict(table) for source, table in published.tables.items()},
            },
            "expected_workers": [f"worker-{number}" for number in range(one.workers)],
            "cache": {
                "asked": config.cache,
                "resident_fraction_before": residency(one.files),
            },
            **near_places(one.files),
            "cold_known": counts_device_reads(one.files),
            "unit_costs": dict(self.unit_costs),
            "store": one.store,
            "staged_copy": _staged_copy(one.store),
            "split": ", ".join(splits) or None,
            "windows": one.windows,
            "machine": {**machine(), "memory_nbytes": psutil.virtual_memory().total},
            "iobench_version": version("iobench"),
            "versions": package_versions(),
            "thread_settings": thread_settings(),
            "command": shlex.join(mask_words(config.command)),
            "files_nbytes": files_nbytes(one.files),
            "options": mask_values(config.options),
            "digests": config.digests,
            "seed": config.seed,
            "asked": {"batches": limit, "steady_s": limit_s, "workers": config.workers},
        }

    def _shared_chunks(self, one: Prepared) -> dict[str, Any]:
        """Return how the original files are cut into chunks, and what epochs read of them."""
        source, dim = self.samples.source, self.config.sample_dim
        if source is None or one.store is not None:
            return {}
        facts: dict[str, Any] = {}
        dataset = source.dataset
        if chunks := getattr(dataset, "shared_chunks", None):
            facts["chunks"] = {
                **chunks,
                "targets": mask_words(self.config.targets),
                "options": ["--sample-dim", dim] if dim else [],
            }
        if one.pipeline == "own" and not one.windows:
            reads = epoch_reads(dataset, self.samples.index.where, max(1, one.workers))
            facts["epoch"] = None if reads is None else msgspec.structs.asdict(reads)
        return facts


def _staged_copy(store: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what the copy that is read says of how it was staged; None of what is no copy."""
    path = None if store is None else store.get("path")
    copy = None if path is None or is_url(path) else staged_copy(path)
    return None if copy is None else copy.to_dict()


def _expects_order(
    one: Prepared, loader: MeasuredLoader
) -> Callable[[NDArray[np.int64]], None] | None:
    """Return what is given the order of an epoch, for datasets that use it."""
    if isinstance(loader, PlannedRing):
        return loader.expect
    work = one.work
    if one.workers or not isinstance(work, Pipeline) or work.chunk_cache is None:
        return None
    return lambda order: work.expect(order.tolist(), follows=True)
