"""What ``iobench convert`` does, without the command line: convert, or say what it would take."""

from __future__ import annotations

import math
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.conversion.preparing import prepare
from iobench.datasets.positions import chosen
from iobench.datasets.sample_windows import SampledFiles, requested_samples
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import StoreError
from iobench.files.atomic import free_nbytes, is_local
from iobench.files.urls import remove_tree
from iobench.recording.clocks import now_ns
from iobench.registry import find_converter
from iobench.stores.manifest import MANIFEST_NAME, read_manifest
from iobench.stores.plan import probe_samples
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from iobench.conversion.convert_request import ConvertRequest
    from iobench.datasets.contract import Progress
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Notice
    from iobench.stores.plan import StoreRequest

PROBE_N_SAMPLES: Final = (4, 256)
PROBE_NBYTES: Final = 64 << 20
PROBE_S: Final = 3.0
UNLIMITED: Final = 1 << 30


def run(request: ConvertRequest, screen: Screen) -> dict[str, Any]:
    """Convert what the request asks for, or what is missing of it; return what it took."""
    source, asked = prepare(request, screen)
    tally = Tally()
    watch = stopwatch()
    each = asked.index.spec.nbytes
    has_bars, say = getattr(screen, "has_bars", True), _shard_lines(tally, each, screen.note)
    with screen.progress(f"{asked.dataset.name} to {asked.fmt.name}", in_bytes=True) as move:

        def progress(done: int, total: int) -> None:
            move(done * each, total * each)
            if not has_bars:
                say(done, total)

        store = find_converter()(asked, progress=progress, notice=screen.note, tally=tally)
    wall_s, wrote_nbytes = watch(), tally.nbytes.get("write", 0)
    outcome = {
        "path": str(asked.path),
        "dataset": asked.dataset.name,
        "format": asked.fmt.name,
        "stand_in": source.stand_in,  # whether the source is one
        "is_finished": store is not None,  # other parts may be missing
        "n_samples": 0,
        "out_nbytes": 0,
        "shards": [],
        "lossy": {},
        "was_finished": not (tally.n_written or tally.n_resumed),  # so that nothing was done
        "in_nbytes": source_nbytes(tally),
        "wrote_nbytes": wrote_nbytes,
        "wall_s": wall_s,
        "bytes_per_s": wrote_nbytes / wall_s if wrote_nbytes and wall_s > 0 else None,
        "stages_s": tally.seconds,  # summed over threads, as the bytes are
        "stages_nbytes": dict(tally.nbytes),
        "n_resumed": tally.n_resumed,  # shards that were there already
        "n_written": tally.n_written,
        "memory_nbytes": asked.memory_nbytes,  # what samples that are being made were held to
    }
    if store is not None:
        outcome |= {
            "n_samples": len(store),
            "out_nbytes": store.manifest.nbytes,
            "shards": msgspec.to_builtins(store.manifest.shards),
            "lossy": dict(store.manifest.lossy),
        }
        store.close()
    return outcome


def source_nbytes(tally: Tally) -> int:
    """Return the bytes read from the source, by themselves or together with other steps."""
    return sum(each for name, each in tally.nbytes.items() if name.split("+")[0] == "read")


def _shard_lines(tally: Tally, sample_nbytes: int, say: Notice) -> Progress:
    """Return what says a line for each shard that was written, one a second at the most."""
    watch, first, said_s, n_said = stopwatch(), -1, 0.0, 0

    def look(done: int, total: int) -> None:
        nonlocal first, said_s, n_said
        seconds, n_written = watch(), tally.n_written
        first = done if first < 0 else first
        if n_written == n_said or seconds - said_s < 1:
            return
        said_s, n_said = seconds, n_written
        rate = (done - first) * sample_nbytes / seconds
        left = f", {(total - done) * sample_nbytes / rate:.0f} s left" if rate else ""
        say(f"{n_written} shards written: {done} of {total} samples, {rate / 1e6:.3g} MB/s{left}")

    return look


# ---- the plan: a short probe, times how much there is


def forecast(request: ConvertRequest, screen: Screen) -> tuple[Source, dict[str, Any]]:
    """Return the source of a conversion, and what it would take; nothing is left behind."""
    source, store = prepare(request, screen)
    planned, out = store.plan(), request.out
    if (out / MANIFEST_NAME).exists() and read_manifest(out).plan != planned.digest:
        raise StoreError(
            f"{out}: holds a store made from something else (source files, samples or options "
            "differ); remove it or name another folder"
        )
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
    free = free_nbytes(_existing_folder(out))
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
        "free_nbytes": free,
        "convert_s": probe["start_s"] + probe["growing_s"] * share,
        "unknown_ranges": list(ranges),
        "probe_n_samples": probe["n_samples"],
        "lossy": probe["lossy"],
        "fits": free is None or out_nbytes <= free,
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
