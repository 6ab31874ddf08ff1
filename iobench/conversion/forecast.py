"""What a conversion will take, before it is run: arithmetic on what is known and on a probe."""

from __future__ import annotations

import math
import secrets
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.epoch_cost import BreakEven
from iobench.chunks.file_indexes import chosen
from iobench.chunks.group_plan import SAMPLES_SHARE
from iobench.conversion.memory_bound import Making, nbytes_of_one
from iobench.conversion.preparing import existing_folder
from iobench.datasets.contract import GroupedDataset, VariablesApart
from iobench.datasets.expected_reads import expected_reads
from iobench.datasets.sample_groups import (
    UnitSizes,
    are_as_decoded,
    group_counts,
    is_made_apart,
    may_be_read,
    names_apart,
)
from iobench.datasets.sample_making import TASK_NBYTES, WAITING
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import StoreError
from iobench.files.atomic import is_local, storage_errors
from iobench.files.scratch import free_files, free_nbytes, remove_leftovers, remove_tree
from iobench.loaders.compute import parse_compute
from iobench.loaders.pipeline import Pipeline, dataset_pipeline
from iobench.loaders.ring.options import loader
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.epoch_reads import EpochReads, LoadRates
from iobench.registry import find_converter
from iobench.stores.manifest import MANIFEST_NAME, read_manifest
from iobench.stores.places import FILES_OF_A_SHARD
from iobench.stores.plan import StoreRequest, probe_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.conversion.memory_bound import MemoryBound
    from iobench.conversion.preparing import PreparedConversion
    from iobench.datasets.contract import Where
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store
    from iobench.stores.plan import ConversionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource:
    """What is known of the source without reading its samples."""

    n_samples: int  # samples to convert, at least 1
    sample_nbytes: int  # bytes of one as the dataset makes it
    files_nbytes: int  # bytes of all its files
    # bytes the conversion will read of them; None where only a probe tells
    read_nbytes: int | None = None
    # bytes of all that is stored of these samples, each counted once; None where the dataset does
    # not tell. Then the files' size stands for it where more than that is read
    needed_nbytes: int | None = None
    # most that is in memory of groups of samples, or of their variables, in bytes: of one that is
    # written while the next one is made; None where samples are made one by one
    group_nbytes: int | None = None
    # bytes of samples that are put aside at the most, since memory does not hold them
    spilled_nbytes: int = 0
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

    stored_nbytes: int  # bytes of a sample's arrays as they are stored
    shard_n_samples: int  # samples of a full shard
    memory_nbytes: int
    workers: int  # what may be held of the data at once, and threads
    free_nbytes: int | None  # on the target's file system; None where nobody tells
    free_files: int | None = None  # files that can be made there
    # the memory with which every chunk is decoded once; None where none is enough
    once_nbytes: int | None = None
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
    sample_decoded_nbytes: int  # bytes of the arrays of one sample before preprocessing
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
    peak_nbytes: int  # most of the data that is in memory at once, besides the process itself
    memory_nbytes: int  # what it is held to
    # with how much every chunk that samples share would be read and decoded once; None where
    # ``memory_nbytes`` is enough, or no memory is
    once_memory_nbytes: int | None
    spilled_nbytes: int  # bytes that are put aside beside the store meanwhile, at the most
    free_needed_nbytes: int  # space still needed, that for what is put aside included
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
    """Return what a conversion will take.

    Examples
    --------
    >>> forecast = plan(
    ...     KnownSource(n_samples=100, sample_nbytes=10, files_nbytes=500),
    ...     KnownTarget(
    ...         stored_nbytes=10, shard_n_samples=40, memory_nbytes=1000, workers=2,
    ...         free_nbytes=10**6, step_s=0.0,
    ...     ),
    ...     MeasuredProbe(
    ...         n_samples=10, convert_s=1.0, store_nbytes=120, sample_read_nbytes=10,
    ...         sample_decoded_nbytes=10, source=LoadRates(0.0, 0.0, 0.2), store_sample_s=0.1,
    ...     ),
    ... )
    >>> forecast.n_shards, forecast.in_nbytes, forecast.out_nbytes, forecast.passes
    (3, 1000, 1200, 2)
    >>> forecast.convert_s, forecast.saved_s, forecast.payback_epochs
    (10.0, 10.0, 1.0)
    """
    once = source.read_nbytes
    if once is None:
        once = source.n_samples * probe.sample_read_nbytes
    in_nbytes = once * source.n_looks
    needed = source.needed_nbytes
    if needed is None:
        needed = min(once, source.files_nbytes)
    amplification = in_nbytes / needed if needed else float(source.n_looks)
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
        in_nbytes=in_nbytes,
        out_nbytes=out_nbytes,
        read_amplification=amplification,
        passes=max(1, math.ceil(amplification - 1e-9)),
        peak_nbytes=_peak(source, target, probe),
        memory_nbytes=target.memory_nbytes,
        once_memory_nbytes=(
            target.once_nbytes
            if target.once_nbytes is not None and target.once_nbytes > target.memory_nbytes
            else None
        ),
        spilled_nbytes=source.spilled_nbytes,
        free_needed_nbytes=max(0, out_nbytes - target.nbytes_there) + source.spilled_nbytes,
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


def _peak(source: KnownSource, target: KnownTarget, probe: MeasuredProbe) -> int:
    """Return the bytes held at once, as far as is allowed: of groups, or of samples in threads."""
    beside = PLACE_NBYTES * source.n_samples + HEAP_NBYTES + THREAD_NBYTES * target.workers
    if source.group_nbytes is not None:
        return source.group_nbytes + beside
    read, decoded = probe.sample_read_nbytes, probe.sample_decoded_nbytes
    stored = target.stored_nbytes
    one = max(read + decoded, decoded + source.sample_nbytes, source.sample_nbytes + stored)
    most = _one_by_one_nbytes(one, stored, target.workers)
    return max(one, min(target.memory_nbytes, source.n_samples * one, most)) + beside


PLACE_NBYTES: Final = 256
"""About what is held of each sample beside its data: where it is, its name, its checksums. Of
100,000 to 200,000 short samples 150 to 370 were measured."""
HEAP_NBYTES: Final = 8 << 20
THREAD_NBYTES: Final = 2 << 20
"""About what buffers of files, and heaps of threads for what is short, take beside that."""


PROBE_N_SAMPLES: Final = (4, 256)
PROBE_NBYTES: Final = 64 << 20
PROBE_S: Final = 3.0
LOADED_S: Final = 1.0
READ_BEFORE: Final = 8
"""Samples that are read to see whether threads or processes load."""


def conversion_plan(
    prepared: PreparedConversion, request: ConvertRequest, memory: MemoryBound, screen: Screen
) -> ConversionPlan:
    """Return what decides what the store will hold: its shards among other things."""
    planned = prepared.store_request(request, memory.nbytes).plan()
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
    memory: MemoryBound,
) -> KnownSource:
    """Return what is known of the source without reading samples."""
    where = chosen(prepared.index.where, planned.samples)
    ranges = prepared.encoding.unknown_ranges(prepared.index.spec) if prepared.encoding else ()
    read = needed = group = None
    spilled = 0
    if isinstance(prepared.dataset, GroupedDataset):
        making = Making(
            prepared.dataset,
            planned.shard_n_samples,
            prepared.spill_nbytes(request),
            is_apart=request.scheduler is not None,
            by_variable=prepared.by_variable,
        )
        groups = making.groups(where, memory.nbytes)
        sizes = [prepared.dataset.group_nbytes(some) for some, _ in groups]
        read = sum(nbytes for nbytes, _ in sizes)
        if any(len(some) > 1 for some, _ in groups) or 2 * sum(sizes[0]) > memory.nbytes:
            group = _most_held(prepared, groups, memory.nbytes, request.n_workers)
        pairs = zip(groups, sizes, strict=True)
        aside = sorted(decoded for (_, is_spilled), (_, decoded) in pairs if is_spilled)
        spilled = sum(aside[-2:])  # one is written from while the next one is made
        needed = prepared.dataset.group_nbytes(where)[0]
    return KnownSource(
        n_samples=len(where),
        sample_nbytes=prepared.index.spec.nbytes,
        files_nbytes=_files_nbytes(prepared.source.files),
        read_nbytes=read,
        needed_nbytes=needed,
        group_nbytes=group,
        spilled_nbytes=spilled,
        unknown_ranges=ranges,
    )


def _most_held(
    prepared: PreparedConversion,
    groups: Sequence[tuple[Sequence[Where], bool]],
    memory_nbytes: int,
    workers: int,
) -> int:
    """Return the most of the data in memory, where samples are made in these groups.

    The arrays of the unit that is made, and of the one before, which is written; what was read of
    it, and of the next one as far as there is room; and what decoding takes.
    """
    dataset = prepared.dataset
    way = dataset.on_the_way_nbytes if isinstance(dataset, VariablesApart) else 0
    every: list[UnitSizes] = []
    for some, is_spilled in groups:
        if is_spilled:
            every.append(_aside_sizes(prepared, some, memory_nbytes, workers))
        else:
            every += _unit_sizes(prepared, some, memory_nbytes)
    most = 0
    for place, unit in enumerate(every):
        near = every[max(0, place - 1) : place + 2]
        before = every[place - 1].held_nbytes if place else 0
        if unit.is_spilled:  # pages that were bands stay for whoever asks for as many
            most = max(most, unit.aside_nbytes + max(before, unit.held_nbytes))
            continue
        two = unit.held_nbytes + before
        read = min(unit.read_nbytes, max(0, memory_nbytes - way - two))
        if place + 1 < len(every) and may_be_read(near, 2, memory_nbytes):
            read += near[-1].read_nbytes
        most = max(most, two + read + way)
    return most


def _aside_sizes(
    prepared: PreparedConversion, some: Sequence[Where], memory_nbytes: int, workers: int
) -> UnitSizes:
    """Return what is held of a group that is put aside, and of its samples that are taken back."""
    dataset, stored = prepared.dataset, prepared.stored_nbytes
    aside = memory_nbytes
    if isinstance(dataset, VariablesApart):
        aside = dataset.banded_nbytes(some, memory_nbytes=memory_nbytes)
    held = _one_by_one_nbytes(prepared.index.spec.nbytes, stored, workers)
    held = min(held, max(memory_nbytes // SAMPLES_SHARE, 2 * stored), len(some) * stored)
    return UnitSizes(0, held, is_spilled=True, aside_nbytes=aside)


def _one_by_one_nbytes(one_nbytes: int, stored_nbytes: int, workers: int) -> int:
    """Return what is held where threads make samples one by one: those and what waits."""
    together = max(1, TASK_NBYTES // max(1, stored_nbytes))
    waiting = WAITING * workers + 1  # and those that are written
    return together * (workers * one_nbytes + waiting * stored_nbytes)


def _unit_sizes(
    prepared: PreparedConversion, some: Sequence[Where], memory_nbytes: int
) -> list[UnitSizes]:
    """Return what is read and held of what is made at once of a group."""
    dataset, spec = prepared.dataset, prepared.index.spec
    assert isinstance(dataset, GroupedDataset)
    nbytes = len(some) * spec.nbytes
    names = names_apart(dataset, spec) if prepared.by_variable else ()
    if names and is_made_apart(nbytes, len(names), memory_nbytes):
        assert isinstance(dataset, VariablesApart)
        return [
            UnitSizes(dataset.group_nbytes(some, name)[0], len(some) * spec[name].nbytes)
            for name in names
        ]
    read, decoded = dataset.group_nbytes(some)
    if are_as_decoded(dataset) and prepared.encoding is None:
        return [UnitSizes(read, min(decoded, nbytes))]  # chunks may go beyond the samples
    return [UnitSizes(read, decoded + len(some) * prepared.stored_nbytes)]


def known_target(
    prepared: PreparedConversion,
    planned: ConversionPlan,
    request: ConvertRequest,
    memory: MemoryBound,
) -> KnownTarget:
    """Return what is asked for, and the room there is."""
    return KnownTarget(
        stored_nbytes=prepared.stored_nbytes,
        shard_n_samples=planned.shard_n_samples,
        memory_nbytes=memory.nbytes,
        once_nbytes=memory.once_nbytes,
        workers=request.n_workers,
        free_nbytes=free_nbytes(existing_folder(request.out)),
        free_files=free_files(existing_folder(request.out)),
        nbytes_there=_files_nbytes([request.out]) if request.out.is_dir() else 0,
        step_s=_step_s(prepared, request),
    )


def measure_probe(
    prepared: PreparedConversion, request: ConvertRequest, memory: MemoryBound, screen: Screen
) -> MeasuredProbe:
    """Convert a few samples beside the target, load some from both ends, and remove it all."""
    epoch, source = _loaded(prepared, request)  # first: then what is in no page cache still is not
    samples, ends = _probed(prepared, memory)
    with _folder_that_goes(existing_folder(request.out)) as folder:
        watch = stopwatch()
        with screen.progress("converting a probe") as move:
            moments: list[tuple[float, int]] = []

            def progress(done: int, total: int) -> None:
                moments.append((watch(), done))
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
                    memory_nbytes=memory.nbytes,
                    limit_s=None if isinstance(prepared.dataset, GroupedDataset) else PROBE_S,
                ),
                progress=progress,
            )
        convert_s = watch()
        where = chosen(prepared.index.where, store.manifest.samples)
        _load_s(store, request.n_workers)  # imports, opens files
        _, store_s = _load_s(store, request.n_workers)
        read_nbytes, decoded_nbytes = nbytes_of_one(prepared.dataset, prepared.index, where[0])
        probe = MeasuredProbe(
            n_samples=len(store),
            convert_s=convert_s,
            start_s=_start_s(moments, ends) + convert_s - moments[-1][0] if moments else 0.0,
            store_nbytes=store.manifest.nbytes,
            sample_read_nbytes=read_nbytes,
            sample_decoded_nbytes=decoded_nbytes,
            epoch=epoch,
            source=source,
            store_sample_s=store_s / max(1, len(store) - 1),
            lossy=store.manifest.lossy,
        )
        store.close()
        return probe


def _probed(prepared: PreparedConversion, memory: MemoryBound) -> tuple[list[int], list[int]]:
    """Return the samples of a probe and where groups of them end: two, or spread evenly."""
    nbytes = max(1, prepared.index.spec.nbytes)
    fewest, most = PROBE_N_SAMPLES
    wanted = min(most, max(fewest, PROBE_NBYTES // nbytes), len(prepared.samples))
    if isinstance(prepared.dataset, GroupedDataset):
        where = chosen(prepared.index.where, prepared.samples)
        counts = group_counts(
            prepared.dataset, where, memory_nbytes=memory.nbytes, apart=prepared.by_variable
        )
        ends = list(accumulate(counts))
        if ends[0] > 1:
            count = max(2, sum(end * nbytes <= PROBE_NBYTES for end in ends))
            return list(prepared.samples[: ends[:count][-1]]), ends[:count]
    ranks = probe_samples(len(prepared.samples), wanted)
    return [prepared.samples[rank] for rank in ranks], list(range(1, len(ranks) + 1))


def _start_s(moments: Sequence[tuple[float, int]], ends: Sequence[int]) -> float:
    """Return the seconds until a probe began to make samples; 0 where nothing tells."""
    if len(ends) < 2 or not moments:
        return 0.0
    first = moments[0]
    before = [end for end in ends if end < moments[-1][1]]
    last = next((seconds for seconds, done in moments if before and done > before[-1]), first[0])
    each_s = (last - first[0]) / before[-1] if before else 0.0
    return max(0.0, first[0] - each_s * ends[0]) if each_s > 0 else 0.0


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


def _files_nbytes(files: Sequence[Path]) -> int:
    every = [
        below
        for file in files
        for below in (file.rglob("*") if file.is_dir() else (file,))
        if below.is_file()
    ]
    return sum(below.stat().st_size for below in every)


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
