"""What a conversion will take, before it is run: a short probe, times how much there is."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.conversion.conversion_run import source_nbytes
from iobench.conversion.preparing import prepare
from iobench.datasets.positions import chosen
from iobench.datasets.sample_windows import SampledFiles, requested_samples
from iobench.errors import StoreError
from iobench.files.atomic import free_nbytes, is_local
from iobench.files.urls import remove_tree
from iobench.recording.clocks import now_ns
from iobench.registry import find_converter
from iobench.stores.manifest import MANIFEST_NAME, read_manifest
from iobench.stores.plan import probe_samples
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.plan import StoreRequest

PROBE_N_SAMPLES: Final = (4, 256)
PROBE_NBYTES: Final = 64 << 20
PROBE_S: Final = 3.0
UNLIMITED: Final = 1 << 30


def forecast(request: ConvertRequest, screen: Screen) -> tuple[Source, dict[str, Any]]:
    """Return the source of a conversion, and what it would take; nothing is left behind."""
    source, store = prepare(request, screen)
    planned = store.plan()
    if (request.out / MANIFEST_NAME).exists():
        if read_manifest(request.out).plan != planned.digest:
            raise StoreError(
                f"{request.out}: holds a store made from something else (source files, samples or "
                "options differ); remove it or name another folder"
            )
        screen.note(f"{request.out}: is finished; this plan says what it took")
    n_samples = len(planned.samples)
    files = SampledFiles(store.dataset, chosen(store.index.where, planned.samples))
    with requested_samples(store) as producer:
        windows = producer.plan([planned.shard(number) for number in range(planned.n_shards)])
    # Variables whose range for int16 a first pass over all samples finds.
    ranges = store.encoding.unknown_ranges(store.index.spec) if store.encoding else ()
    amplification = windows.times * (2 if ranges else 1)

    probe = _measure_probe(store, screen)
    share = n_samples / probe["n_samples"]
    read_nbytes = amplification * files.nbytes()[0] if files else share * probe["read_nbytes"]
    out_nbytes = round(probe["nbytes"] * share)
    there = _nbytes_below(request.out) if request.out.is_dir() else 0
    left = max(0.0, 1 - there / out_nbytes) if out_nbytes else 1.0
    free = free_nbytes(_existing_folder(request.out))
    free_needed = max(0, out_nbytes - there)
    return source, {
        "n_samples": n_samples,
        "n_shards": planned.n_shards,
        "shard_n_samples": planned.shard_n_samples,
        "in_nbytes": round(read_nbytes),
        "out_nbytes": out_nbytes,
        "read_amplification": amplification,  # 1.0 reads each chunk once
        "passes": max(1, math.ceil(amplification - 1e-9)),
        "memory_nbytes": store.memory_nbytes,
        "scratch_nbytes": windows.scratch_nbytes,
        "free_needed_nbytes": free_needed,
        "free_nbytes": free,
        "convert_s": left and probe["start_s"] + probe["growing_s"] * share * left,
        "unknown_ranges": list(ranges),
        "probe_n_samples": probe["n_samples"],
        "lossy": probe["lossy"],
        "fits": free is None or free_needed <= free,
    }


def _measure_probe(store: StoreRequest, screen: Screen) -> dict[str, Any]:
    """Convert a few samples beside the target, and remove them."""
    folder = _existing_folder(store.path) / f".iobench-probe-{secrets.token_hex(4)}"
    probed = replace(
        store,
        path=folder / "store",
        samples=_probe_samples(store),
        files=(),
        passes=UNLIMITED,
        limit_s=PROBE_S,
        part=(1, 1),
        scheduler=None,
    )
    tally, began_ns, last_ns = Tally(), now_ns(), 0
    try:
        with screen.progress("converting a probe") as move:

            def progress(done: int, total: int) -> None:
                nonlocal last_ns
                last_ns = now_ns()
                move(done, total)

            made = find_converter()(probed, progress=progress, tally=tally)
        convert_s = (now_ns() - began_ns) / 1e9
        assert made is not None, "a probe has one part"
        made.close()
    finally:
        remove_tree(folder)
    # What more samples add to (a first pass for ranges, too), and what goes before the first and
    # comes behind the last.
    growing_s = (last_ns - tally.first_ns) / 1e9
    return {
        "n_samples": len(made),
        "growing_s": growing_s,
        "start_s": convert_s - growing_s,
        "nbytes": made.manifest.nbytes,
        "read_nbytes": source_nbytes(tally),
        "lossy": made.manifest.lossy,
    }


def _probe_samples(store: StoreRequest) -> list[int]:
    """Return samples to convert: of whole rows of chunks, or spread."""
    every = range(len(store.index)) if store.samples is None else store.samples
    nbytes = max(1, store.index.spec.nbytes)
    fewest, most = PROBE_N_SAMPLES
    n = min(most, max(fewest, PROBE_NBYTES // nbytes), len(every))
    files = SampledFiles(store.dataset, chosen(store.index.where, every))
    ends = np.flatnonzero(files.shared_nbytes()[0][1:] == 0) + 1 if files else np.zeros(0, int)
    ranks: list[int] | range = probe_samples(len(every), n)
    if len(ends) and ends[0] > 1:
        ranks = range(int(ends[ends * nbytes <= PROBE_NBYTES].max(initial=ends[0])))
    return [every[rank] for rank in ranks]


def _existing_folder(out: Path) -> Path:
    """Return the folder the store will be in, or the nearest there is above it."""
    if not is_local(out):
        return out.parent
    return next(folder for folder in out.absolute().parents if folder.is_dir())


def _nbytes_below(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
