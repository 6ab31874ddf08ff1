"""Ranks that share a throttled storage, simulated and real: python tests/benchmarks/scaling.py.

One to four training processes run in step, each with torch's DataLoader, and read from a storage
that gives all of them together so many bytes a second and no more: a queue in shared memory that
hands out pieces of 100 kB in turn, each reader having three under way. Decoding and the step
are sleeps, so that two cores are enough for all of them; batches differ in bytes and in decoding.

For each loader a job of one rank is recorded and gives `iobench simulate`'s model all it knows;
then jobs of 1 to 4 ranks run, twice each and in turns. Printed are samples/s and exposed share as
predicted and as measured, their errors, and how far the two runs of the same job differ: the noise
of this machine. Takes about three minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Lock
from pathlib import Path
from typing import Any

import numpy as np

import iobench
from iobench.analysis.run import Run
from iobench.findings.scaling import SharedStorage, rank_demand, scaling_curve

PIECE_NBYTES, WINDOW = 100_000, 3
"""What is asked for at once, and how many of these: a sleep that is late leaves storage busy."""
BYTES_PER_S = 60e6
"""Of the storage, for all ranks together."""
READER_BYTES_PER_S = 40e6
"""Of one reader alone."""
MEAN_NBYTES = 800_000
DECODE_S = 0.006
AHEAD = 2
RANKS = (1, 2, 3, 4)
LOADERS = {"no workers": (0, 0.020), "1 worker": (1, 0.032), "2 workers": (2, 0.024)}
"""Loading processes of a rank, and seconds of a step."""


class Throttle:
    """A storage that all readers of all processes share.

    ``free`` is when it has served all that was asked for so far.
    """

    def __init__(self, context: Any) -> None:
        self.lock: Lock = context.Lock()
        self.free = context.RawValue("d", 0.0)

    def read(self, nbytes: int) -> None:
        """Return when so many bytes are here."""
        own, under_way = time.perf_counter(), deque[float]()
        for start in range(0, nbytes, PIECE_NBYTES):
            if len(under_way) == WINDOW:
                sleep_until(under_way.popleft())
            size = min(PIECE_NBYTES, nbytes - start)
            with self.lock:
                given = max(self.free.value, time.perf_counter()) + size / BYTES_PER_S
                self.free.value = given
            own = max(own + size / READER_BYTES_PER_S, given)
            under_way.append(own)
        sleep_until(own)


def sleep_until(moment: float) -> None:
    """Return then, or at once where that is over."""
    rest = moment - time.perf_counter()
    if rest > 0:
        time.sleep(rest)


class Samples:
    """Samples that are read from the throttled storage, a batch each."""

    def __init__(self, storage: Throttle, n: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.storage = storage
        self.nbytes = (MEAN_NBYTES * random.gamma(16, 1 / 16, n)).astype(int)
        self.decode_s = DECODE_S * random.gamma(4, 1 / 4, n)

    def __len__(self) -> int:
        return len(self.nbytes)

    def __getitem__(self, number: int) -> int:
        with iobench.stage("read", int(self.nbytes[number])):
            self.storage.read(int(self.nbytes[number]))
        with iobench.stage("decode"):
            time.sleep(self.decode_s[number])
        return number


@dataclass(frozen=True)
class Loader:
    """What is the same in all jobs of a loader."""

    workers: int
    step_s: float
    n_batches: int


def train(
    rank: int,
    loader: Loader,
    storage: Throttle,
    seed: int,
    step: Barrier,
    run: Path | None,
    told: Any,
) -> None:
    """Train in step with all other ranks; tell when each batch was asked for and held."""
    from contextlib import nullcontext

    from iobench.torch import DataLoader

    samples = Samples(storage, loader.n_batches, 1000 * seed + rank)
    more = {"prefetch_factor": AHEAD} if loader.workers else {}
    with iobench.record(run) if run is not None else nullcontext():
        asked, held = [], []
        batches = iter(DataLoader(samples, batch_size=1, num_workers=loader.workers, **more))
        for _ in range(loader.n_batches):
            asked.append(time.perf_counter())
            next(batches)
            held.append(time.perf_counter())
            time.sleep(loader.step_s)
            step.wait()
        asked.append(time.perf_counter())
        del batches
    told.put((asked, held))


@dataclass(frozen=True)
class Measured:
    """What a job came to in steady state."""

    samples_per_s: float
    exposed_fraction: float


def run_job(ranks: int, loader: Loader, seed: int, run: Path | None = None) -> Measured:
    """Run a job of so many ranks."""
    context = multiprocessing.get_context("fork")
    storage, step, told = Throttle(context), context.Barrier(ranks), context.SimpleQueue()
    processes = [
        context.Process(target=train, args=(rank, loader, storage, seed, step, run, told))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    times = [told.get() for _ in processes]
    for process in processes:
        process.join()
    lead = AHEAD * max(1, loader.workers) + 4
    asked = np.min([each[0] for each in times], axis=0)
    held = np.max([each[1] for each in times], axis=0)
    wall = asked[-1] - asked[lead]
    waited = (held - asked[:-1])[lead:].sum()
    return Measured(ranks * (loader.n_batches - lead) / wall, waited / wall)


def main() -> None:
    """Calibrate, run all jobs in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=110, help="of each rank in a job")
    parser.add_argument("--rounds", type=int, default=2, help="how often each job runs")
    arguments = parser.parse_args()
    import torch  # noqa: F401, once for all processes that are forked

    print(f"storage {BYTES_PER_S / 1e6:g} MB/s, a reader {READER_BYTES_PER_S / 1e6:g} MB/s, "
          f"samples of {MEAN_NBYTES / 1e6:g} MB")  # fmt: skip
    head = ("loader", "ranks", "samples/s", "predicted", "error", "exposed", "predicted", "error",
            "A/A rate", "A/A exposed")  # fmt: skip
    print("".join(f"{text:>12}" for text in head))
    rows: list[tuple[float, float, float, float, int]] = []
    for name, (workers, step_s) in LOADERS.items():
        loader = Loader(workers, step_s, arguments.batches)
        with tempfile.TemporaryDirectory() as folder:
            run_job(1, loader, 99, Path(folder) / "run")
            demand = rank_demand(Run(Path(folder) / "run"))
        storage = SharedStorage(bytes_per_s=BYTES_PER_S)
        curve = scaling_curve(demand, storage, RANKS)
        measured: dict[int, list[Measured]] = {ranks: [] for ranks in RANKS}
        for _ in range(arguments.rounds):
            for ranks in RANKS:
                measured[ranks].append(run_job(ranks, loader, 0))
        rows += [print_row(name, point, measured[point.ranks]) for point in curve.points]
        print(f"{name}: saturation {curve.saturation}")
    held_out = [row for row in rows if row[4] > 1]
    for title, chosen in (("2 to 4 ranks", held_out), ("all", rows)):
        print(
            f"{title}: median error {100 * statistics.median(row[0] for row in chosen):.1f} % of "
            f"samples/s (largest {100 * max(row[0] for row in chosen):.1f} %), "
            f"{100 * statistics.median(row[1] for row in chosen):.1f} points of exposed share "
            f"(largest {100 * max(row[1] for row in chosen):.1f}); A/A "
            f"{100 * statistics.median(row[2] for row in chosen):.1f} % (largest "
            f"{100 * max(row[2] for row in chosen):.1f} %), "
            f"{100 * statistics.median(row[3] for row in chosen):.1f} points"
        )


def print_row(
    name: str, point: Any, measured: list[Measured]
) -> tuple[float, float, float, float, int]:
    """Print a job; return errors of rate and share, the same of A/A, and its ranks."""
    rates = [one.samples_per_s for one in measured]
    shares = [one.exposed_fraction for one in measured]
    rate, share = statistics.mean(rates), statistics.mean(shares)
    rate_error = point.samples_per_s / rate - 1
    share_error = point.exposed_fraction - share
    noise, share_noise = max(rates) / min(rates) - 1, max(shares) - min(shares)
    cells = (name, point.ranks, f"{rate:.1f}", f"{point.samples_per_s:.1f}",
             f"{100 * rate_error:+.1f} %", f"{100 * share:.1f} %",
             f"{100 * point.exposed_fraction:.1f} %", f"{100 * share_error:+.1f}",
             f"{100 * noise:.1f} %", f"{100 * share_noise:.1f}")  # fmt: skip
    print("".join(f"{cell:>12}" for cell in cells), flush=True)
    return abs(rate_error), abs(share_error), noise, share_noise, point.ranks


if __name__ == "__main__":
    main()
