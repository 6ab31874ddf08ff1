"""What a conversion will take, before it is run: a short probe, times how much there is."""

from __future__ import annotations

import math
import secrets
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.epoch_cost import BreakEven
from iobench.chunks.file_indexes import chosen
from iobench.conversion.preparing import existing_folder
from iobench.datasets.expected_reads import expected_reads
from iobench.datasets.sample_producer import nbytes_of_one
from iobench.datasets.sample_windows import SampledFiles
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import StoreError
from iobench.files.atomic import free_files, free_nbytes, is_local, storage_errors
from iobench.files.uploads import remove_leftovers, remove_tree
from iobench.loaders.compute import parse_compute
from iobench.loaders.pipeline import Pipeline, dataset_pipeline
from iobench.loaders.ring.framework_loader import loader
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.clocks import now_ns
from iobench.recording.epoch_reads import EpochReads, LoadRates
from iobench.registry import find_converter
from iobench.stores.manifest import MANIFEST_NAME, read_manifest
from iobench.stores.places import FILES_OF_A_SHARD
from iobench.stores.plan import StoreRequest, probe_samples
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.conversion.preparing import PreparedConversion
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store
    from iobench.stores.plan import ConversionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource:
    """What is known of the source without reading its samples."""

    n_samples: int  # samples to convert, at least 1
    # bytes of all chunks of these samples, each counted once; None where only a probe tells
    read_nbytes: int | None = None
    times: float = 1.0  # how often chunks are decoded in the mean
    scratch_nbytes: int = 0  # of windows that memory does not hold, at the most
    # variables whose range for int16 is found by making all samples once before the first can be
    # written
    unknown_ranges: tuple[str, ...] = ()

    @property
    def n_looks(self) -> int:
        """Times that all samples have to be made."""
        return 2 if self.unknown_ranges else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTarget:
    """What is asked for and what is there of it."""

    shard_n_samples: int  # samples of a full shard
    memory_nbytes: int  # what may be held of the data at once
    free_nbytes: int | None  # on the target's file system; None where nobody tells
    free_files: int | None = None  # files that can be made there
    nbytes_there: int = 0  # bytes of the store that an earlier run left
    # seconds of the training step for each sample of its batch; None where unknown
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProbe:
    """A short conversion of a few samples."""

    n_samples: int  # samples it converted, at least 1
    convert_s: float  # seconds it took
    # of these, what more samples would not have added to: what went before the first and came
    # behind the last
    start_s: float = 0.0
    store_nbytes: int  # bytes of all files it wrote
    sample_read_nbytes: int  # bytes read from the source for one sample by itself
    source: LoadRates  # seconds that loading the source takes with all workers
    store_sample_s: float  # seconds that they take for a sample of the store
    # what epochs over all samples read; None where each sample is made by itself
    epoch: EpochReads | None = None
    # what fewer bits did to the values of the probe, by variable (`Manifest.lossy`)
    lossy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionForecast:
    """What `plan` says."""

    n_samples: int
    n_shards: int
    shard_n_samples: int  # of the finished store
    in_nbytes: int
    out_nbytes: int  # bytes read from the source, and bytes of the finished store
    read_amplification: float  # bytes read over the bytes that are needed: 1.0 reads each once
    passes: int  # times the samples' bytes are gone through: the read amplification, rounded up
    memory_nbytes: int  # what windows of samples, and what is decoded, are held to
    scratch_nbytes: int  # of windows that memory does not hold, at the most
    free_needed_nbytes: int  # space still needed for the store
    free_nbytes: int | None  # what there is; None where nobody tells
    free_files: int | None  # files that can be made there; None where nobody tells
    convert_s: float  # seconds for what is still to be done, at the probe's rate
    # seconds of loading in an epoch with that many workers, were there no training; from the source
    # in epochs after the first, which have decoded chunks in memory as far as they fit
    load_source_s: float
    load_store_s: float
    # seconds of the first epoch from the source, and of later ones, with the step if it is known
    first_epoch_s: float
    epoch_s: float
    # seconds later epochs get shorter, below 0 where they get longer; None without a step time
    saved_s: float | None
    # epochs after which the conversion has paid for itself; None where unknown or never
    payback_epochs: float | None
    # variables whose range for int16 a first pass over all samples finds
    unknown_ranges: tuple[str, ...]
    probe_n_samples: int  # samples of the probe
    # what fewer bits do to the values, of the samples of the probe; by variable as in
    # `Manifest.lossy`, empty where nothing is lossy
    lossy: Mapping[str, Any]

    @property
    def least_files(self) -> int:
        """Files that are there at once at the least, while it is written."""
        return FILES_OF_A_SHARD * self.n_shards

    @property
    def files_fit(self) -> bool:
        """Whether so many files can be made, as far as is known."""
        return self.free_files is None or self.least_files <= self.free_files

    @property
    def fits(self) -> bool:
        """Whether there is room for the store, as far as is known."""
        enough = self.free_nbytes is None or self.free_needed_nbytes <= self.free_nbytes
        return enough and self.files_fit

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values."""
        return {**asdict(self), "least_files": self.least_files, "fits": self.fits}


def plan(source: KnownSource, target: KnownTarget, probe: MeasuredProbe) -> ConversionForecast:
    """Return what a conversion will take: the probe times how much there is."""
    needed = source.read_nbytes
    if needed is None:
        needed = source.n_samples * probe.sample_read_nbytes
    amplification = source.times * source.n_looks
    share = source.n_samples / probe.n_samples
    out_nbytes = round(probe.store_nbytes * share)
    left = max(0.0, 1 - target.nbytes_there / out_nbytes) if out_nbytes else 1.0
    growing_s = (probe.convert_s - probe.start_s) * share
    convert_s = probe.start_s + growing_s * left * source.n_looks if left else 0.0
    epoch, step_s = probe.epoch or EpochReads(source.n_samples, 0, 0), target.step_s or 0.0
    load_store_s = source.n_samples * probe.store_sample_s
    # Loading hides behind the steps as far as they last.
    first_epoch_s, epoch_s = epoch.epochs_s(probe.source, step_s)
    with_store_s = max(load_store_s, source.n_samples * step_s)
    saved_s = None if target.step_s is None else epoch_s - with_store_s
    return ConversionForecast(
        n_samples=source.n_samples,
        n_shards=-(-source.n_samples // target.shard_n_samples),
        shard_n_samples=target.shard_n_samples,
        in_nbytes=round(needed * amplification),
        out_nbytes=out_nbytes,
        read_amplification=amplification,
        passes=max(1, math.ceil(amplification - 1e-9)),
        memory_nbytes=target.memory_nbytes,
        scratch_nbytes=source.scratch_nbytes,
        free_needed_nbytes=max(0, out_nbytes - target.nbytes_there),
        free_nbytes=target.free_nbytes,
        free_files=target.free_files,
        convert_s=convert_s,
        load_source_s=epoch.epochs_s(probe.source, 0.0)[1],
        load_store_s=load_store_s,
        first_epoch_s=first_epoch_s,
        epoch_s=epoch_s,
        saved_s=saved_s,
        payback_epochs=BreakEven.of(convert_s, None, saved_s, first_epoch_s - with_store_s).epochs,
        unknown_ranges=source.unknown_ranges,
        probe_n_samples=probe.n_samples,
        lossy=probe.lossy,
    )


PROBE_N_SAMPLES: Final = (4, 256)
PROBE_NBYTES: Final = 64 << 20
PROBE_S: Final = 3.0
LOADED_S: Final = 1.0
UNLIMITED: Final = 1 << 30
READ_BEFORE: Final = 8
"""Samples that are read to see whether threads or processes load."""


def conversion_plan(
    prepared: PreparedConversion, request: ConvertRequest, memory_nbytes: int, screen: Screen
) -> ConversionPlan:
    """Return what decides what the store will hold: its shards among other things."""
    planned = prepared.store_request(request, memory_nbytes).plan()
    if (request.out / MANIFEST_NAME).exists():
        if read_manifest(request.out).plan != planned.digest:
            raise StoreError(
                f"{request.out}: holds a store made from something else (source files, samples or "
                "options differ); remove it or name another folder"
            )
        screen.note(f"{request.out}: is finished; this plan says what it took")
    return planned


def known_source(
    prepared: PreparedConversion,
    planned: ConversionPlan,
    request: ConvertRequest,
    memory_nbytes: int,
) -> KnownSource:
    """Return what is known of the source without reading samples."""
    where = chosen(prepared.index.where, planned.samples)
    ranges = prepared.encoding.unknown_ranges(prepared.index.spec) if prepared.encoding else ()
    files = SampledFiles(prepared.dataset, where)
    with prepared.producer(request, memory_nbytes) as producer:
        windows = producer.plan([planned.shard(number) for number in range(planned.n_shards)])
    return KnownSource(
        n_samples=len(where),
        read_nbytes=files.nbytes()[0] if files else None,
        times=windows.times,
        scratch_nbytes=windows.scratch_nbytes,
        unknown_ranges=ranges,
    )


def known_target(
    prepared: PreparedConversion,
    planned: ConversionPlan,
    request: ConvertRequest,
    memory_nbytes: int,
) -> KnownTarget:
    """Return what is asked for, and the room there is."""
    return KnownTarget(
        shard_n_samples=planned.shard_n_samples,
        memory_nbytes=memory_nbytes,
        free_nbytes=free_nbytes(existing_folder(request.out)),
        free_files=free_files(existing_folder(request.out)),
        nbytes_there=_nbytes_below(request.out) if request.out.is_dir() else 0,
        step_s=_step_s(prepared, request),
    )


def measure_probe(
    prepared: PreparedConversion, request: ConvertRequest, memory_nbytes: int, screen: Screen
) -> MeasuredProbe:
    """Convert a few samples beside the target, load some from both ends, and remove it all."""
    epoch, source = _loaded(prepared, request)  # first: then what is in no page cache still is not
    samples = _probed(prepared)
    with _folder_that_goes(existing_folder(request.out)) as folder:
        tally, began_ns, last_ns = Tally(), now_ns(), 0
        with screen.progress("converting a probe") as move:

            def progress(done: int, total: int) -> None:
                nonlocal last_ns
                last_ns = now_ns()
                move(done, total)

            store = find_converter()(
                StoreRequest(
                    prepared.dataset,
                    prepared.index,
                    prepared.fmt,
                    folder / "store",
                    samples=samples,
                    options=request.format_options,
                    encoding=prepared.encoding,
                    workers=request.n_workers,
                    memory_nbytes=memory_nbytes,
                    scratch=request.scratch,
                    passes=UNLIMITED,
                    limit_s=PROBE_S,
                ),
                progress=progress,
                tally=tally,
            )
        convert_s = (now_ns() - began_ns) / 1e9
        assert store is not None, "a probe has one part"
        where = chosen(prepared.index.where, store.manifest.samples)
        _load_s(store, request.n_workers)  # imports, opens files
        _, store_s = _load_s(store, request.n_workers)
        probe = MeasuredProbe(
            n_samples=len(store),
            convert_s=convert_s,
            start_s=convert_s - (last_ns - tally.first_ns) / 1e9,
            store_nbytes=store.manifest.nbytes,
            sample_read_nbytes=nbytes_of_one(prepared.dataset, prepared.index, where[0])[0],
            epoch=epoch,
            source=source,
            store_sample_s=store_s / max(1, len(store) - 1),
            lossy=store.manifest.lossy,
        )
        store.close()
        return probe


def _probed(prepared: PreparedConversion) -> list[int]:
    """Return the samples of a probe: of a row of chunks or some, or spread evenly."""
    every, nbytes = prepared.samples, max(1, prepared.index.spec.nbytes)
    fewest, most = PROBE_N_SAMPLES
    wanted = min(most, max(fewest, PROBE_NBYTES // nbytes), len(every))
    files = SampledFiles(prepared.dataset, chosen(prepared.index.where, every))
    shared = files.shared_nbytes()[0] if files else np.zeros(0)
    ends = np.flatnonzero(shared[1:] == 0) + 1
    if len(ends) and ends[0] > 1:
        within = ends[ends * nbytes <= PROBE_NBYTES].max(initial=ends[0])
        return list(every[: int(within)])
    return [every[rank] for rank in probe_samples(len(every), wanted)]


def _loaded(
    prepared: PreparedConversion, request: ConvertRequest
) -> tuple[EpochReads | None, LoadRates]:
    """Load a few samples twice; return what epochs read, and what all workers take for it."""
    dataset, where, workers = prepared.dataset, prepared.index.where, request.n_workers
    every = prepared.samples
    few = [every[rank] for rank in probe_samples(len(every), PROBE_N_SAMPLES[1])]
    threads = max(1, workers) if getattr(dataset, "thread_safe", False) else 1
    lanes = workers // threads
    epoch = expected_reads(dataset, chosen(where, every), lanes)
    few, n, first_s, last_s = few[:-READ_BEFORE] or few, 0, 0.0, 0.0
    # As many again each time, all to their end; the first ones may decode what is of all.
    while n < len(few) and (n < 4 * threads or last_s < LOADED_S / 2):
        some = few[n : max(2 * n, 2 * threads)]
        last_s, _ = _load_s(dataset_pipeline(dataset, prepared.index, some), threads)
        n, first_s = n + len(some), first_s + last_s
    pipeline = dataset_pipeline(dataset, prepared.index, few[:n])
    reads = expected_reads(dataset, pipeline.where)
    if reads is None or not reads.first_nbytes:
        return None, LoadRates(0.0, 0.0, first_s / n / lanes)
    again_s, after_first_s = _load_s(pipeline, threads)
    # Of what stays decoded, starting to load is no part: it counts once an epoch.
    sample_s = 0.0 if reads.later_nbytes else after_first_s / max(1, n - 1)
    nbytes = reads.first_nbytes * lanes
    first = max(0.0, first_s - n * sample_s) / nbytes
    again = again_s / nbytes if reads.later_nbytes else first
    return epoch, LoadRates(first, again, sample_s / lanes)


def _load_s(source: Pipeline | Store, threads: int) -> tuple[float, float]:
    """Load all samples one by one; return the seconds, and those after the first one."""
    watch, until_first_s = stopwatch(), None
    batches = PipelineSource(source) if isinstance(source, Pipeline) else source
    for _ in loader(batches, 1, threads=threads):
        until_first_s = until_first_s or watch()
    return watch(), watch() - (until_first_s or 0.0)


def _nbytes_below(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


@contextmanager
def _folder_that_goes(parent: Path) -> Iterator[Path]:
    """Yield a new folder, and remove it with all that is in it."""
    if is_local(parent):
        with (
            storage_errors(parent),
            tempfile.TemporaryDirectory(prefix=".iobench-probe-", dir=parent) as temporary,
        ):
            yield Path(temporary)
        return
    folder = parent / f".iobench-probe-{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        remove_leftovers(folder)
        remove_tree(folder)


def _step_s(prepared: PreparedConversion, request: ConvertRequest) -> float | None:
    """Return the seconds of the training step for one of its samples; None where unknown."""
    published = prepared.dataset.published
    if request.compute == "published" and published is None:
        return None
    batch_size = published.batch_size if published else 1
    step = parse_compute(
        request.compute,
        published,
        batch_size=batch_size,
        sample_nbytes=prepared.index.spec.nbytes,
    )
    return step.total_ns / batch_size / 1e9
