"""What ``iobench profile`` does, without the command line: find, prepare, measure, keep.

The result is a run directory (one inside per format when several are compared); everything a
report says is computed from it.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.errors import OptionError
from iobench.loaders.measure import MeasuredPipeline, measure, parse_compute
from iobench.profiling.chosen_device import AUTO, choose_device
from iobench.profiling.compared_stores import check_source, open_given
from iobench.profiling.config import DEFAULT_BATCHES, RunConfig
from iobench.profiling.measured_runs import Settings
from iobench.profiling.prepared import prepare, samples_of_source, samples_of_stores
from iobench.profiling.storage_limits import RunProbes
from iobench.profiling.tracing import ProfileTracing
from iobench.recording.digests import load_xxhash
from iobench.recording.machine_head import ENERGY, MONITOR, is_on
from iobench.recording.meter import start_meter
from iobench.recording.process_io import unit_costs
from iobench.recording.run_directory import RunDirectory, checked_name, next_run_path
from iobench.sources.opening import open_source
from iobench.storage.page_cache import evict, warm_up
from iobench.storage.probe import probe_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.profiling.prepared import Prepared, ProfiledSamples
    from iobench.sources.request import Screen

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
        screen.note(f"--device auto: batches are copied to {device.description}")
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
    batch_size = _batch_size(config, samples)
    prepared = prepare(config, samples, given, batch_size, screen)
    compute = parse_compute(
        config.compute,
        samples.published,
        batch_size=batch_size or 1,
        sample_nbytes=prepared[0].work.spec.nbytes,
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
    probes = RunProbes(probe_seconds(config.limits), len(prepared))
    directories: list[RunDirectory] = []
    with ExitStack() as stack:
        for position, (one, folder) in enumerate(zip(prepared, folders, strict=True)):
            if config.cache == "cold":
                evict(one.files)
            elif config.cache == "warm":
                warm_up(one.files)
            document = settings.document(one)
            document |= probes.before(one, document["n_samples_all"])
            document |= {"position": position, "turns": turns, "darshan": tracing.document()}
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


def _batch_size(config: RunConfig, samples: ProfiledSamples) -> int | None:
    """Return the batch size asked for, else the published one."""
    published = samples.published.batch_size if samples.published else None
    return config.batch_size or published


def _new_run_path(config: RunConfig, dataset: str) -> Path:
    """Return ``--out``, else the first free ``iobench-runs/NAME-N`` below the working folder."""
    if config.out is not None:
        if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
            raise OptionError(f"--out {config.out}: exists already; name a new folder")
        return config.out
    return next_run_path(checked_name(config.name) or dataset)
