"""What ``iobench profile`` does, without the command line: find, prepare, measure, keep.

The result is a run directory (one inside per format when several are compared); everything a
report says is computed from it.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil

from iobench.cpus import available_cpus
from iobench.datasets import locate_files, user_files
from iobench.errors import OptionError, StorageError
from iobench.loaders.compute import Compute, parse_compute
from iobench.loaders.measure import Run, RunProgress, measure
from iobench.loaders.pipeline import Pipeline, dataset_pipeline, store_pipeline
from iobench.loaders.plan import BatchPlan, plan_batches
from iobench.loaders.serial import SerialLoader
from iobench.loaders.stages import Detail
from iobench.loaders.workers import WorkerLoader
from iobench.recording import SYSTEM_CLOCK, RunDirectory, unit_costs
from iobench.registry import (
    SOURCE,
    dataset_names,
    find_converter,
    find_dataset,
    find_format,
    unknown_name,
)
from iobench.storage import ProcessIo, counts_device_reads, evict, resident_fraction, warm_up
from iobench.stores import MANIFEST_NAME, choose_place, probe_samples, store_name

if TYPE_CHECKING:
    from iobench.datasets import Dataset, Progress, SampleIndex
    from iobench.loaders.contract import Loader
    from iobench.recording import Recorder

__all__ = ["FRAMEWORKS", "RunConfig", "Screen", "profile"]

FRAMEWORKS: Final = ("workers", "torch")
CACHES: Final = ("as-is", "warm", "cold")
DEFAULT_BATCHES: Final = 200
DEFAULT_STEADY_S: Final = 60.0
PROBE_NBYTES: Final = 2 << 30
PROBE_SHARD_NBYTES: Final = 256 << 20
"""What an interrupted probe loses at the most."""
PROBE_S: Final = 60.0
PREFETCH: Final = 2


class Screen(Protocol):
    """Where notes and progress go."""

    def note(self, text: str) -> None:
        """Say one line."""
        ...

    def progress(self, title: str) -> AbstractContextManager[Progress]:
        """Return a context that yields a function of (done, total)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What to profile and how; field for field the options of ``iobench profile``.

    Parameters
    ----------
    targets : tuple of str
        The name of a dataset, or paths of the user's own files.
    formats : tuple of str
        ``source`` for the original files, else store formats; several are interleaved.
    framework : str
        ``workers`` for our worker processes, ``torch`` for torch's DataLoader.
    workers : int or None
        Loading processes; None for one per usable CPU.
    batch_size : int or None
        Samples a batch; None for the published one, else 1.
    batches, duration_s, epochs : int, float, int or None
        What ends the run; all None for 200 batches or 60 s of steady state.
    compute : str
        ``published``, ``none`` or a time such as ``25ms``.
    cache : str
        ``as-is``, ``warm`` or ``cold``.
    data_dir, store_dir, out, spool : Path or None
        Where the dataset's files, the stores, the run and unfinished span files lie.
    options : mapping of str to str
        The dataset's own.
    sample_dim, variables : str, tuple of str
        For the user's own files.
    tiny, scale, seed : bool, float or None, int
        Of the stand-in; ``seed`` also of the order of samples.
    detail : str
        ``auto``, ``sample`` or ``batch``.
    """

    targets: tuple[str, ...]
    formats: tuple[str, ...] = (SOURCE,)
    framework: str = "workers"
    workers: int | None = None
    batch_size: int | None = None
    batches: int | None = None
    duration_s: float | None = None
    epochs: int | None = None
    compute: str = "published"
    cache: str = "as-is"
    data_dir: Path | None = None
    store_dir: Path | None = None
    out: Path | None = None
    spool: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    sample_dim: str | None = None
    variables: tuple[str, ...] = ()
    tiny: bool = False
    scale: float | None = None
    seed: int = 0
    detail: str = "auto"
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.framework not in FRAMEWORKS:
            raise unknown_name("framework", self.framework, FRAMEWORKS)
        if self.cache not in CACHES:
            raise unknown_name("--cache", self.cache, CACHES)
        Detail.parse(self.detail)
        parse_compute(self.compute, None, batch_size=1, sample_nbytes=1)
        for name in self.formats:
            if name != SOURCE:
                find_format(name)
        if len(set(self.formats)) != len(self.formats) or not self.formats:
            raise OptionError(f"--format {','.join(self.formats)}: expected distinct names")
        for option, value in (
            ("--batches", self.batches),
            ("--duration", self.duration_s),
            ("--epochs", self.epochs),
            ("--batch-size", self.batch_size),
        ):
            if value is not None and value <= 0:
                raise OptionError(f"{option} {value}: expected more than 0")
        if self.workers is not None and self.workers < 0:
            raise OptionError(f"--workers {self.workers}: expected 0 or more")


@dataclass(frozen=True, slots=True)
class _Source:
    """The dataset, its files and samples, ready to be loaded."""

    dataset: Dataset
    files: list[Path]
    index: SampleIndex
    place: Path
    stand_in: bool
    tiny: bool
    setup_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One format, ready to be measured."""

    format: str
    pipeline: Pipeline
    samples: tuple[int, ...]
    files: list[Path]
    store: dict[str, Any] | None


def profile(config: RunConfig, screen: Screen) -> Path:
    """Measure what the config says and return the run directory.

    Raises
    ------
    IobenchError
        One line saying what is missing or wrong. What had been recorded by then is kept in the
        run directory.
    """
    source = _open_source(config, screen)
    batch_size = config.batch_size or _published_batch_size(source.dataset)
    compute = parse_compute(
        config.compute,
        source.dataset.published,
        batch_size=batch_size,
        sample_nbytes=source.index.spec.nbytes,
    )
    pipelines = _prepare(config, source, batch_size, screen)
    costs = unit_costs()
    out = _new_run_path(config, source.dataset.name)
    with ExitStack() as stack:
        runs = []
        for one in pipelines:
            path = out if len(pipelines) == 1 else out / one.format
            document = _document(config, source, one, compute, batch_size, costs)
            directory = RunDirectory.create(path, document, spool=config.spool)
            stack.callback(directory.gather)
            runs.append(_make_run(config, one, directory, compute, batch_size, costs, stack))
        with screen.progress("measuring") as move:
            measure(runs, progress=_run_progress(runs, config, move))
    return out


def _published_batch_size(dataset: Dataset) -> int:
    return dataset.published.batch_size if dataset.published else 1


def _open_source(config: RunConfig, screen: Screen) -> _Source:
    """Find the files, or make a stand-in, and index their samples."""
    names_files = len(config.targets) > 1 or _is_path(config.targets[0])
    dataset = _user_dataset(config) if names_files else _named_dataset(config)
    data_dir = Path(config.targets[0]).parent if names_files else config.data_dir
    place = choose_place(data_dir, store_dir=config.store_dir)
    if place.notice:
        screen.note(place.notice)
    started_ns = SYSTEM_CLOCK.now_ns()
    with screen.progress(f"files of {dataset.name}") as move:
        files, locator = locate_files(
            dataset,
            store_root=place.path,
            cache_dir=place.path / "indexes",
            data_dir=None if names_files else config.data_dir,
            seed=config.seed,
            scale=config.scale,
            tiny=config.tiny,
            progress=move,
            notice=screen.note,
        )
    setup_s = {}
    if locator.stand_in:
        setup_s["stand-in"] = _seconds_since(started_ns)
        screen.note(f"no files of {dataset.name} at hand: running on a stand-in in {place.path}")
    started_ns = SYSTEM_CLOCK.now_ns()
    with screen.progress(f"indexing {dataset.name}") as move:
        locator.progress = move
        index = dataset.samples(files, locator)
    setup_s["index"] = _seconds_since(started_ns) - sum(index.setup.values())
    return _Source(
        dataset=dataset,
        files=files,
        index=index,
        place=place.path,
        stand_in=locator.stand_in,
        tiny=locator.tiny,
        setup_s=setup_s | dict(index.setup),
    )


def _is_path(target: str) -> bool:
    return target not in dataset_names() and (
        Path(target).exists() or os.sep in target or Path(target).suffix != ""
    )


def _named_dataset(config: RunConfig) -> Dataset:
    if config.sample_dim or config.variables:
        raise OptionError(
            f"--sample-dim and --variables are for files of your own; {config.targets[0]} says "
            "itself what a sample is (its options are given as --option NAME=VALUE)"
        )
    return find_dataset(config.targets[0], **config.options)


def _user_dataset(config: RunConfig) -> Dataset:
    if config.options or config.tiny or config.scale is not None or config.data_dir:
        raise OptionError(
            "--option, --tiny, --scale and --data-dir are for named datasets, not for files"
        )
    return user_files(
        [Path(target) for target in config.targets],
        sample_dim=config.sample_dim,
        variables=config.variables or None,
    )


def _prepare(
    config: RunConfig, source: _Source, batch_size: int, screen: Screen
) -> list[_Prepared]:
    """Return the pipeline of each format, over the same samples; probes are converted first."""
    wanted = len(source.index)
    if config.epochs is None and (config.batches or config.duration_s is None):
        wanted = min(wanted, (config.batches or DEFAULT_BATCHES) * batch_size)
    samples = probe_samples(len(source.index), wanted)
    prepared = {
        name: _prepare_store(name, config, source, samples, screen)
        for name in config.formats
        if name != SOURCE
    }
    if SOURCE in config.formats:
        # The original files are read for the samples the stores hold, no more and no fewer.
        held = [one.samples for one in prepared.values()]
        chosen = min(held, key=len) if held else sorted(samples)
        pipeline = dataset_pipeline(source.dataset, source.index, chosen)
        prepared[SOURCE] = _Prepared(SOURCE, pipeline, tuple(chosen), source.files, None)
    return [prepared[name] for name in config.formats]


def _prepare_store(
    name: str, config: RunConfig, source: _Source, samples: list[int], screen: Screen
) -> _Prepared:
    fmt = find_format(name)
    arguments: dict[str, Any] = {
        "samples": samples,  # in an order of which every beginning is spread over the files
        "files": source.files,
        "shard_nbytes": PROBE_SHARD_NBYTES,
        "limit_nbytes": PROBE_NBYTES,
        "limit_s": PROBE_S,
    }
    path = source.place / "stores" / store_name(source.dataset, source.index, fmt, **arguments)
    reused = (path / MANIFEST_NAME).exists()
    started_ns = SYSTEM_CLOCK.now_ns()
    with screen.progress(f"converting a probe to {name}") as move:
        store = find_converter()(
            source.dataset,
            source.index,
            fmt,
            path,
            workers=available_cpus(),
            progress=move,
            notice=screen.note,
            **arguments,
        )
    facts = {
        "path": str(path),
        "probe": len(store) < len(source.index),
        "reused": reused,
        "convert_s": None if reused else _seconds_since(started_ns),
        "nbytes": store.manifest.nbytes,
        "n_samples": len(store),
    }
    files = [path / file.name for shard in store.manifest.shards for file in shard.files]
    return _Prepared(name, store_pipeline(store), store.manifest.samples, files, facts)


def _make_run(
    config: RunConfig,
    one: _Prepared,
    directory: RunDirectory,
    compute: Compute,
    batch_size: int,
    costs: Mapping[str, int | None],
    stack: ExitStack,
) -> Run:
    """Start nothing yet: workers start with the first round."""
    recorder = directory.recorder(role="consumer")
    stack.callback(recorder.close)
    loader = _make_loader(config, one, directory, recorder, batch_size, costs)
    stack.callback(loader.close)
    if config.cache == "warm":
        warm_up(one.files)
    limit = config.batches
    if config.epochs is not None:
        limit = -(-config.epochs * len(one.pipeline) // batch_size)
    elif limit is None and config.duration_s is None:
        limit = DEFAULT_BATCHES
    limit_s = config.duration_s
    if limit_s is None and config.batches is None and config.epochs is None:
        limit_s = DEFAULT_STEADY_S
    plan = BatchPlan(
        plan_batches(len(one.pipeline), batch_size, seed=config.seed),
        limit=limit,
        before_epoch=(lambda: evict(one.files)) if config.cache == "cold" else None,
    )
    return Run(
        name=one.format,
        loader=loader,
        plan=plan,
        recorder=recorder,
        compute=compute,
        steady_limit_ns=None if limit_s is None else round(limit_s * 1e9),
        process_io=ProcessIo() if loader.workers == 0 else None,
    )


def _make_loader(
    config: RunConfig,
    one: _Prepared,
    directory: RunDirectory,
    recorder: Recorder,
    batch_size: int,
    costs: Mapping[str, int | None],
) -> Loader:
    workers = _workers(config)
    detail = Detail.parse(config.detail)
    if config.framework == "torch":
        from iobench.torch import TorchLoader

        return TorchLoader(
            one.pipeline,
            batch_size,
            workers=workers,
            prefetch=PREFETCH,
            run_directory=directory.path,
            recorder=recorder,
            detail=detail,
            unit_costs=costs,
        )
    if workers == 0:
        return SerialLoader(
            one.pipeline, batch_size, recorder=recorder, detail=detail, unit_costs=costs
        )
    return WorkerLoader(
        one.pipeline,
        batch_size,
        workers=workers,
        prefetch=PREFETCH,
        run_directory=directory.path,
        detail=detail,
        unit_costs=costs,
    )


def _workers(config: RunConfig) -> int:
    return available_cpus() if config.workers is None else config.workers


def _document(
    config: RunConfig,
    source: _Source,
    one: _Prepared,
    compute: Compute,
    batch_size: int,
    costs: Mapping[str, int | None],
) -> dict[str, Any]:
    """Return what ``run.json`` says of the run: all a report needs besides the spans."""
    if config.cache == "cold":
        evict(one.files)
    workers = _workers(config)
    published = source.dataset.published
    return {
        "dataset": source.dataset.name,
        "title": source.dataset.title,
        "format": one.format,
        "position": config.formats.index(one.format),
        "framework": config.framework,
        "stand_in": source.stand_in,
        "tiny": source.tiny,
        "workers": workers,
        "prefetch": PREFETCH if workers else 0,
        "batch_size": batch_size,
        "n_samples": len(one.pipeline),
        "sample_nbytes": one.pipeline.spec.nbytes,
        "compute": asdict(compute),
        "published": None
        if published is None
        else {"exposed_io_s": published.exposed_io_s, "source": published.source},
        "expected_workers": [f"worker-{number}" for number in range(workers)],
        "cache": {
            "asked": config.cache,
            "resident_fraction_before": resident_fraction(one.files),
        },
        "cold_known": counts_device_reads(one.files),
        "setup": {what: round(seconds, 6) for what, seconds in source.setup_s.items()},
        "unit_costs": dict(costs),
        "store": one.store,
        "machine": _machine(),
        "iobench_version": version("iobench"),
        "command": shlex.join(config.command),
        "files_hint": str(source.files[0].parent) if source.files else "",
        "n_files": len(one.files),
        "options": dict(config.options),
        "seed": config.seed,
    }


def _machine() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpus": available_cpus(),
        "memory_nbytes": psutil.virtual_memory().total,
    }


def _new_run_path(config: RunConfig, dataset: str) -> Path:
    """Return ``--out``, else the first free ``iobench-runs/NAME-N`` below the working folder."""
    if config.out is not None:
        if config.out.exists() and (not config.out.is_dir() or any(config.out.iterdir())):
            raise OptionError(f"--out {config.out}: is there already; name a new folder")
        return config.out
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset).strip("-.") or "run"
    parent = Path("iobench-runs")
    for number in itertools.count(1):
        path = parent / f"{name}-{number}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be made ({error.strerror}); name a writable folder with --out"
            ) from error
        break
    return path


def _run_progress(runs: Sequence[Run], config: RunConfig, move: Progress) -> RunProgress:
    expected = (config.batches or DEFAULT_BATCHES) * len(runs)

    def progress(_: Run) -> None:
        done = sum(run.n_batches for run in runs)
        move(done, max(expected, done))

    return progress


def _seconds_since(start_ns: int) -> float:
    return (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
