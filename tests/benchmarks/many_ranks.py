"""A job of many ranks, merged and attributed: python tests/benchmarks/many_ranks.py.

Writes the span files of a made-up training (64 ranks with 8 loading processes each, 50 million
spans, 3.3 GB, in a temporary folder), then makes of them what ``iobench report --json`` makes, and
prints the time and the most memory that took. ``--spans 5000000`` is a tenth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.run import open_runs
from iobench.cpus import available_cpus
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import RECORD_NBYTES, Flag
from iobench.recording.span_reader import Anchor
from iobench.report.report_document import report_document
from iobench.testing import CONSUMER, SketchedRun

Integers = NDArray[np.int64]
US = 1_000
PREFETCH = 2
STAGES = (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
BATCH_US = (7200, 4800, 2400)
LOOP_KINDS = (Kind.WAIT, Kind.UNPICKLE, Kind.FORWARD, Kind.BACKWARD, Kind.COMM)
FORWARD, BACKWARD, COMM, SERIALISE, UNPICKLE = 700 * US, 1500 * US, 100 * US, 80 * US, 60 * US
GOAL_NBYTES = 4 << 30


def spans_per_batch(batch_size: int) -> int:
    """Return the spans of a batch: four of its worker beside the stages, five of the loop."""
    return len(STAGES) * batch_size + 4 + len(LOOP_KINDS)


def samples_of(rank: int, n_batches: int, batch_size: int) -> Integers:
    """Return the time of every stage of every sample of a rank; the same at every call."""
    random = np.random.default_rng(rank)
    shape = (n_batches, batch_size, len(STAGES))
    spread = random.gamma(4.0, 0.25, shape) * np.array(BATCH_US) * (US / batch_size)
    spread[random.random(n_batches) < 0.0005] *= 8  # now and then storage is slow
    return (spread * (1.0 + 0.2 * (rank % 7 == 3))).astype(np.int64)


def schedule(ranks: int, workers: int, n_batches: int, batch_size: int) -> dict[str, Integers]:
    """Return when batches were submitted, begun, ready and delivered: (n_batches, ranks)."""
    spent = np.stack(
        [samples_of(rank, n_batches, batch_size).sum(axis=(1, 2)) for rank in range(ranks)], 1
    )
    names = ("submitted", "begun", "finished", "asked", "delivered", "entered")
    found = {name: np.zeros((n_batches, ranks), np.int64) for name in names}
    free = np.zeros((workers, ranks), np.int64)
    now = np.zeros(ranks, np.int64)
    for batch in range(n_batches):
        worker, earlier = batch % workers, batch - workers * PREFETCH
        submitted = found["delivered"][earlier] if earlier >= 0 else np.zeros(ranks, np.int64)
        begun = np.maximum(submitted + 20 * US, free[worker])
        free[worker] = begun + spent[batch]
        delivered = np.maximum(now, free[worker] + SERIALISE) + UNPICKLE
        entered = delivered + FORWARD + BACKWARD
        for name, value in zip(
            names, (submitted, begun, free[worker], now, delivered, entered), strict=True
        ):
            found[name][batch] = value
        now = np.full(ranks, int(entered.max()) + COMM)
    return found


def add_worker(
    run: SketchedRun, worker: int, times: dict[str, Integers], spent: Integers, workers: int
) -> None:
    """Add the spans of a loading process, of its own thread and of the one that feeds the queue."""
    lane, batch = ("worker", worker, 0), np.arange(worker, len(spent), workers)
    submitted, begun, finished, asked, delivered = (
        times[name][batch] for name in ("submitted", "begun", "finished", "asked", "delivered")
    )
    flat = spent[batch].reshape(len(batch), -1)
    ends = begun[:, None] + np.cumsum(flat, axis=1)
    of = {"batch": batch, "epoch": 0}
    run.add(
        lane, np.tile(STAGES, flat.size // len(STAGES)), (ends - flat).ravel(), ends.ravel(),
        nbytes=65536, cpu_ns=flat.ravel() // 2, batch=np.repeat(batch, flat.shape[1]), epoch=0,
    )  # fmt: skip
    run.add(lane, Kind.SUBMIT_QUEUE, submitted, begun, **of)
    run.add(lane, Kind.COLLATE, finished, finished, nbytes=10**6, **of)
    run.add(lane, Kind.READ, finished, finished, flags=Flag.IO, nbytes=10**6, cpu_ns=4096, **of)
    run.add(lane, Kind.SERIALISE, finished, finished + SERIALISE, thread=1, **of)
    run.wait(batch, asked, delivered, f"worker-{worker}", sample=0, nbytes=10**6, epoch=0)


def add_loop(run: SketchedRun, times: dict[str, Integers], left: Integers) -> None:
    """Add the spans of a training loop, but for its waits."""
    of = {"batch": np.arange(len(left)), "epoch": 0}
    delivered, entered = times["delivered"], times["entered"]
    run.add(CONSUMER, Kind.UNPICKLE, delivered - UNPICKLE, delivered, **of)
    run.add(CONSUMER, Kind.FORWARD, delivered, delivered + FORWARD, **of)
    run.add(CONSUMER, Kind.BACKWARD, delivered + FORWARD, entered, **of)
    run.add(CONSUMER, Kind.COMM, entered, left, **of)
    run.add(CONSUMER, Kind.OTHER, 0, left[-1], label="round", detail="loader-0", sample=0, epoch=0)


def write_run(path: Path, ranks: int, workers: int, n_batches: int, batch_size: int) -> None:
    times = schedule(ranks, workers, n_batches, batch_size)
    left = times["entered"].max(axis=1) + COMM
    ended = Anchor(int(left[-1]), 10**18 + int(left[-1]))
    for rank in range(ranks):
        run = SketchedRun(kind="script", command="made up", job="job", world_size=ranks)
        run.process = {"rank": rank, "host": "node", "anchors": (Anchor(0, 10**18), ended)}
        run.facts = {
            "world_size": ranks,
            "unit_costs": {"light_ns": 600, "full_ns": 2000, "io_ns": 1500},
        }
        kind = "torch.utils.data.DataLoader"
        run.loaders = [
            LoaderFacts(0, "torch", kind, "MadeUp", workers, PREFETCH, batch_size=batch_size)
        ]
        own = {name: np.ascontiguousarray(value[:, rank]) for name, value in times.items()}
        spent = samples_of(rank, n_batches, batch_size)
        for worker in range(workers):
            add_worker(run, worker, own, spent, workers)
        add_loop(run, own, left)
        run.write(path)


def peak_nbytes() -> int:
    """Return the most memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def main() -> None:
    """Make the files, the report, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--spans", type=int, default=50_000_000)
    parser.add_argument("--samples", type=int, default=8, help="of a batch; less is harder")
    parser.add_argument("--dir", type=Path, help="where to put the span files, then removed")
    options = parser.parse_args()
    n_batches = max(1, options.spans // (options.ranks * spans_per_batch(options.samples)))
    n_spans = options.ranks * (n_batches * spans_per_batch(options.samples) + 1)
    folder = Path(tempfile.mkdtemp(prefix="many-ranks-", dir=options.dir))
    try:
        free = shutil.disk_usage(folder).free
        if free < 2 * n_spans * RECORD_NBYTES:
            sys.exit(f"{folder}: {free / 1e9:.1f} GB free, expected twice what is written")
        print(f"{n_spans:,} spans of {options.ranks} ranks with {options.workers} workers each")
        start = time.perf_counter()
        # In a process of its own: its memory is none of the report's.
        arguments = (
            folder / "run",
            options.ranks,
            options.workers,
            n_batches,
            options.samples,
        )
        writer = multiprocessing.get_context("spawn").Process(target=write_run, args=arguments)
        writer.start()
        writer.join()
        if writer.exitcode:
            sys.exit(writer.exitcode)
        written = time.perf_counter()
        nbytes = sum(file.stat().st_size for file in (folder / "run" / "spans").iterdir())
        print(f"written: {nbytes / 1e9:.2f} GB in {written - start:.0f} s")
        cpu = time.process_time()
        document = report_document(open_runs(folder / "run")).figures()
        text = json.dumps(document, allow_nan=False)
        spent, cpu = time.perf_counter() - written, time.process_time() - cpu
        check(document, options.ranks, n_batches)
        print(
            f"merged and attributed: {spent:.0f} s ({cpu:.0f} s of CPU time, one thread of "
            f"{available_cpus()} CPUs; {cpu / n_spans * 1e6:.2f} s per million spans), "
            f"{len(text) / 1e6:.1f} MB of JSON"
        )
        verdict = "within" if peak_nbytes() <= GOAL_NBYTES else "ABOVE"
        print(f"most memory: {peak_nbytes() / (1 << 30):.2f} GiB, {verdict} the goal of 4 GiB")
    finally:
        shutil.rmtree(folder)


def check(document: dict, ranks: int, n_batches: int) -> None:
    """Refuse figures that cannot be."""
    assert len(document["runs"]) == ranks
    for run in document["runs"]:
        assert run["batches"] == n_batches
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]
        assert run["missing_workers"] == ()
        assert run["lost_spans"] == 0
    job = document["job"]
    assert job["steps"] == n_batches
    assert job["missing"] == {}
    print(
        f"the job waits {job['wait_ns'] / job['steps_wall_ns']:.0%} of the time of its steps; "
        f"the largest wait of a rank is {job['imbalance']:.2f} times the mean"
    )


if __name__ == "__main__":
    main()
