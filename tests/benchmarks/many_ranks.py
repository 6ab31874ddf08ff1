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
from iobench.recording import span_file as layout
from iobench.recording.facts import LoaderFacts, ProcessFacts, facts_path
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import SPAN_DTYPE, Flag, Identity
from iobench.recording.span_writer import SpanWriter
from iobench.report.json_report import to_json

Integers = NDArray[np.int64]
US = 1_000
PREFETCH = 2
STAGES = (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
BATCH_US = (7200, 4800, 2400)
LOOP_KINDS = (Kind.WAIT, Kind.UNPICKLE, Kind.FORWARD, Kind.BACKWARD, Kind.COMM)
FORWARD, BACKWARD, COMM, SERIALISE, UNPICKLE = 700 * US, 1500 * US, 100 * US, 80 * US, 60 * US
GOAL_NBYTES = 4 << 30
STRINGS = ("", "round", "loader-0", "startup", "shutdown")


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


def write_file(
    folder: Path, rank: int, worker: int, lanes: list[NDArray[np.void]], end_ns: int
) -> None:
    """Write a span file with one array of spans for each thread."""
    role = "consumer" if worker < 0 else "worker"
    pid = 10_000 + rank * 100 + worker + 1
    identity = Identity(pid, 10_000 + rank * 100, rank, worker, role, "node", "boot", 0, 10**18)
    writer = SpanWriter(folder / f"{rank}-{worker}.spans", identity)
    for number, text in enumerate((*STRINGS, f"worker-{worker}")):
        if number:
            writer.string(number, text)
    for lane, spans in enumerate(lanes, 1):
        spans["sequence"] = np.arange(1, len(spans) + 1)
        for first in range(0, len(spans), layout.SPANS_PER_CHUNK):
            part = spans[first : first + layout.SPANS_PER_CHUNK]
            mapping, offset = writer.chunk(layout.SPANS, lane, first + 1, (pid, f"thread-{lane}"))
            mapping[offset : offset + part.nbytes] = part.tobytes()
    writer.close(end_ns, 10**18 + end_ns)


def blank(n_spans: int) -> NDArray[np.void]:
    spans = np.zeros(n_spans, SPAN_DTYPE)
    for name in ("nbytes", "cpu_ns", "sample", "batch", "epoch"):
        spans[name] = -1
    spans["pieces"] = 1
    return spans


def rows(kind: Kind, start: Integers, end: Integers, batch: Integers, **more: int) -> NDArray:
    spans = blank(len(start))
    spans["kind"], spans["start_ns"], spans["end_ns"] = kind, start, end
    spans["batch"], spans["epoch"] = batch, 0
    for name, value in more.items():
        spans[name] = value
    return spans


def by_end(*parts: NDArray[np.void]) -> NDArray[np.void]:
    spans = np.concatenate(parts)
    return spans[np.argsort(spans["end_ns"], kind="stable")]


def worker_lanes(
    worker: int, times: dict[str, Integers], spent: Integers, workers: int
) -> list[NDArray[np.void]]:
    """Return the spans of a loading process: its own thread, and the one that feeds the queue."""
    batch = np.arange(worker, len(spent), workers)
    flat = spent[batch].reshape(len(batch), -1)
    ends = times["begun"][batch, None] + np.cumsum(flat, axis=1)
    sample = blank(flat.size)
    sample["start_ns"], sample["end_ns"] = (ends - flat).ravel(), ends.ravel()
    sample["kind"] = np.tile(STAGES, flat.size // len(STAGES))
    sample["batch"], sample["epoch"] = np.repeat(batch, flat.shape[1]), 0
    sample["nbytes"], sample["cpu_ns"] = 65536, flat.ravel() // 2
    finished = times["finished"][batch]
    own = by_end(
        sample,
        rows(Kind.SUBMIT_QUEUE, times["submitted"][batch], times["begun"][batch], batch),
        rows(Kind.COLLATE, finished, finished, batch, nbytes=10**6),
        rows(Kind.READ, finished, finished, batch, flags=Flag.IO, nbytes=10**6, cpu_ns=4096),
    )
    return [own, rows(Kind.SERIALISE, finished, finished + SERIALISE, batch)]


def loop_lane(times: dict[str, Integers], left: Integers) -> NDArray[np.void]:
    batch = np.arange(len(left))
    asked, delivered = times["asked"], times["delivered"]
    forward = delivered + FORWARD
    waits = rows(Kind.WAIT, asked, delivered, batch, sample=0, nbytes=10**6)
    waits["detail"] = len(STRINGS)
    end = int(left[-1])
    mark = rows(Kind.OTHER, np.zeros(1, np.int64), np.array([end]), np.array([-1]), sample=0)
    mark["label"], mark["detail"] = STRINGS.index("round"), STRINGS.index("loader-0")
    return by_end(
        waits,
        rows(Kind.UNPICKLE, delivered - UNPICKLE, delivered, batch),
        rows(Kind.FORWARD, delivered, forward, batch),
        rows(Kind.BACKWARD, forward, times["entered"], batch),
        rows(Kind.COMM, times["entered"], left, batch),
        mark,
    )


def write_run(path: Path, ranks: int, workers: int, n_batches: int, batch_size: int) -> None:
    config = {"kind": "script", "command": "made up", "job": "job", "world_size": ranks}
    run = RunDirectory.create(path, config)
    times = schedule(ranks, workers, n_batches, batch_size)
    left = np.repeat(times["entered"].max(axis=1, keepdims=True) + COMM, ranks, axis=1)
    for rank in range(ranks):
        own = {name: np.ascontiguousarray(value[:, rank]) for name, value in times.items()}
        spent = samples_of(rank, n_batches, batch_size)
        end_ns = int(left[-1, rank])
        for worker in range(workers):
            lanes = worker_lanes(worker, own, spent, workers)
            write_file(run.spans_path, rank, worker, lanes, end_ns)
        write_file(run.spans_path, rank, -1, [loop_lane(own, left[:, rank])], end_ns)
        loader = LoaderFacts(
            0, "torch", "torch.utils.data.DataLoader", "MadeUp", workers, PREFETCH,
            batch_size=batch_size, start_method="fork",
            worker_pids=[10_000 + rank * 100 + worker + 1 for worker in range(workers)],
        )  # fmt: skip
        told = ProcessFacts(
            10_000 + rank * 100, 1, "node", "consumer", rank, ranks, "torchrun",
            loaders=[loader], ended="closed", unit_costs={"light_ns": 600, "full_ns": 2000,
            "io_ns": 1500},
        )  # fmt: skip
        told.write(facts_path(run.processes_path, host="node", rank=rank, start_ns=0))


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
        if free < 2 * n_spans * layout.RECORD_NBYTES:
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
        document = to_json(open_runs(folder / "run"))
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
        assert run["missing_workers"] == []
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
