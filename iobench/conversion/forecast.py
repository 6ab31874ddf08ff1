"""What a conversion will take, before it is run: a short probe, times how much there is."""

from __future__ import annotations

import math
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.analysis.epoch_cost import BreakEven
from iobench.chunks.file_indexes import chosen
from iobench.conversion.conversion_run import source_nbytes
from iobench.conversion.preparing import existing_folder, prepare
from iobench.datasets.sample_windows import SampledFiles
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import StoreError
from iobench.files.atomic import free_nbytes
from iobench.files.urls import remove_tree
from iobench.loaders.compute import parse_compute
from iobench.loaders.pipeline import Pipeline, dataset_pipeline
from iobench.loaders.ring.framework_loader import loader
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.clocks import now_ns
from iobench.registry import find_converter
from iobench.stores.manifest import MANIFEST_NAME, read_manifest
from iobench.stores.plan import probe_samples
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.conversion.preparing import PreparedConversion
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store

PROBE_N_SAMPLES: Final = (4, 256)
PROBE_NBYTES: Final = 64 << 20
PROBE_S: Final = 3.0
UNLIMITED: Final = 1 << 30


def forecast(request: ConvertRequest, screen: Screen) -> tuple[PreparedConversion, dict[str, Any]]:
    """Return what a conversion would take, from a short probe; nothing is left behind."""
    prepared = prepare(request, screen)
    memory_nbytes = prepared.memory_nbytes(request)
    planned = prepared.store_request(request, memory_nbytes).plan()
    if (request.out / MANIFEST_NAME).exists():
        if read_manifest(request.out).plan != planned.digest:
            raise StoreError(
                f"{request.out}: holds a store made from something else (source files, samples or "
                "options differ); remove it or name another folder"
            )
        screen.note(f"{request.out}: is finished; this plan says what it took")
    n_samples, n_shards = len(planned.samples), planned.n_shards
    where = chosen(prepared.index.where, planned.samples)
    files, encoding = SampledFiles(prepared.dataset, where), prepared.encoding
    with prepared.producer(request, memory_nbytes) as producer:
        windows = producer.plan([planned.shard(number) for number in range(n_shards)])
    # Variables whose range for int16 a first pass over all samples finds.
    ranges = encoding.unknown_ranges(prepared.index.spec) if encoding else ()
    amplification = windows.times * (2 if ranges else 1)

    probed, others = _probe_samples(prepared)
    source_s = _source_s(prepared, request, others)
    probe = _measure_probe(prepared, request, memory_nbytes, screen, probed)
    share = n_samples / probe["n_samples"]
    read_nbytes = amplification * files.nbytes()[0] if files else share * probe["read_nbytes"]
    out_nbytes = round(probe["nbytes"] * share)
    there = _nbytes_below(request.out) if request.out.is_dir() else 0
    left = max(0.0, 1 - there / out_nbytes) if out_nbytes else 1.0
    convert_s = left and probe["start_s"] + probe["growing_s"] * share * left
    load_source_s, load_store_s = n_samples * source_s, n_samples * probe["load_s"]
    saved_s = None
    if (step_s := _step_s(prepared, request)) is not None:  # loading hides behind the steps
        steps_s = n_samples * step_s
        saved_s = max(load_source_s, steps_s) - max(load_store_s, steps_s)
    free = free_nbytes(existing_folder(request.out))
    free_needed = max(0, out_nbytes - there)
    return prepared, {
        "n_samples": n_samples,
        "n_shards": n_shards,
        "shard_n_samples": planned.shard_n_samples,
        "in_nbytes": round(read_nbytes),
        "out_nbytes": out_nbytes,
        "read_amplification": amplification,  # 1.0 reads each chunk once
        "passes": max(1, math.ceil(amplification - 1e-9)),
        "memory_nbytes": memory_nbytes,
        "scratch_nbytes": windows.scratch_nbytes,
        "free_needed_nbytes": free_needed,
        "free_nbytes": free,
        "convert_s": convert_s,
        # Seconds of a pass over all samples in order with these workers, and what the store saves
        # of it beside a training whose step is known.
        "load_source_s": load_source_s,
        "load_store_s": load_store_s,
        "saved_s": saved_s,
        "payback_epochs": BreakEven.of(convert_s, None, saved_s, saved_s).epochs,
        "unknown_ranges": list(ranges),
        "probe_n_samples": probe["n_samples"],
        "lossy": probe["lossy"],
        "fits": free is None or free_needed <= free,
    }


def _measure_probe(
    prepared: PreparedConversion,
    request: ConvertRequest,
    memory_nbytes: int,
    screen: Screen,
    samples: list[int],
) -> dict[str, Any]:
    """Convert a few samples beside the target, load them, and remove it all."""
    with _temporary_folder(existing_folder(request.out)) as folder:
        tally, began_ns, last_ns = Tally(), now_ns(), 0
        with screen.progress("converting a probe") as move:

            def progress(done: int, total: int) -> None:
                nonlocal last_ns
                last_ns = now_ns()
                move(done, total)

            probed = replace(
                prepared.store_request(request, memory_nbytes),
                path=folder / "store",
                samples=samples,
                files=(),
                passes=UNLIMITED,
                limit_s=PROBE_S,
                part=(1, 1),
                scheduler=None,
            )
            store = find_converter()(probed, progress=progress, tally=tally)
        convert_s = (now_ns() - began_ns) / 1e9
        assert store is not None, "a probe has one part"
        _load_s(store, request.n_workers)  # imports, opens files
        growing_s = (last_ns - tally.first_ns) / 1e9
        probe = {
            "n_samples": len(store),
            # What more samples add to (a first pass for ranges, too), and what goes before the
            # first and comes behind the last.
            "growing_s": growing_s,
            "start_s": convert_s - growing_s,
            "nbytes": store.manifest.nbytes,
            "read_nbytes": source_nbytes(tally),
            "load_s": _load_s(store, request.n_workers),
            "lossy": store.manifest.lossy,
        }
        store.close()
        return probe


def _probe_samples(prepared: PreparedConversion) -> tuple[list[int], list[int]]:
    """Return samples to convert, and as many others to load: of rows of chunks, or spread."""
    every, nbytes = prepared.samples, max(1, prepared.index.spec.nbytes)
    fewest, most = PROBE_N_SAMPLES
    n = min(most, max(fewest, PROBE_NBYTES // nbytes), len(every))
    files = SampledFiles(prepared.dataset, chosen(prepared.index.where, every))
    shared = files.shared_nbytes()[0] if files else np.zeros(0)
    ends = np.flatnonzero(shared[1:] == 0) + 1
    ranks: list[int] | range = probe_samples(len(every), 2 * n)
    if len(ends) and ends[0] > 1:
        n = int(ends[ends * nbytes <= PROBE_NBYTES].max(initial=ends[0]))
        ranks = range(min(2 * n, len(every)))
    samples = [every[rank] for rank in ranks]
    return samples[:n], samples[n:] or samples


def _source_s(prepared: PreparedConversion, request: ConvertRequest, samples: list[int]) -> float:
    """Return the seconds that all workers take for a sample of the source."""
    workers = request.n_workers
    threads = max(1, workers) if getattr(prepared.dataset, "thread_safe", False) else 1
    pipeline = dataset_pipeline(prepared.dataset, prepared.index, samples)
    return _load_s(pipeline, threads) / (workers // threads)


def _load_s(source: Pipeline | Store, threads: int) -> float:
    """Load samples one by one for a while; return the seconds of one."""
    watch, n = stopwatch(), 1
    batches = PipelineSource(source) if isinstance(source, Pipeline) else source
    for n, _ in enumerate(loader(batches, 1, threads=threads), 1):  # noqa: B007 - of the last
        if watch() > PROBE_S:
            break
    return watch() / n


def _nbytes_below(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield the name of a new folder, and remove it with all that is in it."""
    folder = parent / f".iobench-probe-{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        remove_tree(folder)


def _step_s(prepared: PreparedConversion, request: ConvertRequest) -> float | None:
    """Return the seconds of the training step for one of its samples; None where unknown."""
    published = prepared.dataset.published
    if request.compute == "published" and published is None:
        return None
    batch_size = published.batch_size if published else 1
    nbytes = prepared.index.spec.nbytes
    step = parse_compute(request.compute, published, batch_size=batch_size, sample_nbytes=nbytes)
    return step.total_ns / batch_size / 1e9
