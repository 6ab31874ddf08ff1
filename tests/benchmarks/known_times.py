"""Exposed time of real loaders beside the truth: python tests/benchmarks/known_times.py.

Samples take known times: a batch is one sample, read in 12 ms, decoded in 6, collated in 2, most
of it asleep. The truth per step is a simulation of the same loader without noise, hand-over or
start (`tests/analysis/support`: a pool of workers, and attribution by plain loops). Measured is
what iobench says of the steady state, per step, by stage: the median of runs that take turns.

A figure holds if it is within 5 % of the truth of its wait, or within three times the A/A spread:
half the range of the same figure over runs that are alike, which is printed beside it.

    --arms fork,spawn,run    torch's loader with either start method, `iobench run`
    --rounds 5               runs of each
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "analysis" / "support"))

READ_MS, DECODE_MS, COLLATE_MS = 12.0, 6.0, 2.0
STEP_MS = {0: 6.0, 1: 8.0, 2: 4.0, 4: 2.0}
N_BATCHES = 40
STAGES = ("read", "decode", "collate")
SPIN_MS = 0.3
MS = 1_000_000
WITHIN = 0.05


def spend(milliseconds: float) -> None:
    """Sleep, and turn in a loop at the end: a sleep alone ends late by the system's slack."""
    end = time.perf_counter() + milliseconds / 1e3
    time.sleep(max(milliseconds - SPIN_MS, 0) / 1e3)
    while time.perf_counter() < end:
        pass


def burn(milliseconds: float) -> None:
    """Take so much CPU time, as Python code does."""
    end = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < end:
        pass


Milliseconds = float | Callable[[int], float]  # of every sample, or by its number


class Samples:
    """A dataset of torch's whose methods take known times."""

    def __init__(
        self,
        n: Any,
        read: Milliseconds,
        decode: Milliseconds = 3,
        take: Callable[[float], None] = spend,
    ) -> None:
        self.n, self.read_ms, self.decode_ms, self.take = n, read, decode, take

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> int:
        return self.decode(self.read(number))

    def read(self, number: int) -> int:
        spend(self.read_ms(number) if callable(self.read_ms) else self.read_ms)
        return number

    def decode(self, number: int) -> int:
        self.take(self.decode_ms(number) if callable(self.decode_ms) else self.decode_ms)
        return number


def collate(samples: list[int]) -> list[int]:
    spend(COLLATE_MS)
    return samples


def train(loader_type: Any, workers: int, context: str | None) -> None:
    """Run a training loop over a loader."""
    options = {"multiprocessing_context": context} if workers else {}
    data = Samples(N_BATCHES, READ_MS, DECODE_MS)
    for _ in loader_type(data, batch_size=1, num_workers=workers, collate_fn=collate, **options):
        spend(STEP_MS[workers])


def drop_in(path: Path, workers: int, context: str | None) -> None:
    import iobench
    from iobench.torch import DataLoader

    with iobench.record(path, detail="sample"):
        train(DataLoader, workers, context)


def script(path: Path, workers: int) -> None:
    """Run this file's training loop under `iobench run`: it imports nothing of iobench."""
    main = "import sys; from iobench.cli import main; sys.exit(main())"
    told = ["run", "--detail", "sample", "--out", str(path), "--"]
    own = [sys.executable, "-W", "ignore", __file__, "--train", str(workers)]
    subprocess.run([sys.executable, "-c", main, *told, *own], check=True, capture_output=True)


def found_ms(path: Path) -> list[float]:
    """Return the exposed time per steady step by stage, and last all of the wait."""
    import iobench

    figures = iobench.exposure(iobench.open_profile(path))
    window = figures.steady
    assert window is not None
    assert sum(window.exposed_ns.values()) == window.wait_ns
    exposed = [window.exposed_ns.get(stage, 0) for stage in STAGES]
    return [ns / window.n_batches / MS for ns in (*exposed, window.wait_ns)]


def truth_ms(workers: int) -> list[float]:
    """Return the truth of a pool of workers, or of none, by a simulation without noise."""
    from reference import reference
    from schedules import pool

    durations = [[round(ms * MS) for ms in (READ_MS, DECODE_MS, COLLATE_MS)]]
    if not workers:
        return [READ_MS, DECODE_MS, COLLATE_MS, READ_MS + DECODE_MS + COLLATE_MS]

    def total(n_batches: int) -> dict[str, Any]:
        step_ns = round(STEP_MS[workers] * MS)
        return reference(pool(durations * n_batches, workers=workers, step_ns=step_ns).data())

    # What further batches add to a run that is long under way, in whole turns of the workers.
    longer, shorter = total(400), total(200)
    each = [float(longer[stage] - shorter[stage]) / 200 / MS for stage in STAGES]
    return [*each, sum(each)]


Arm = tuple[Callable[[Path], None], list[float]]


def arms_of(names: list[str]) -> dict[str, Arm]:
    """Return what runs, and the truth, by name."""
    arms: dict[str, Arm] = {}
    for workers in STEP_MS:
        for name in names:
            if name in ("fork", "spawn") and (workers or name == "fork"):
                arms[f"torch {name}, N={workers}"] = (
                    lambda path, workers=workers, name=name: drop_in(path, workers, name),
                    truth_ms(workers),
                )
            if name == "run":
                arms[f"iobench run, N={workers}"] = (
                    lambda path, workers=workers: script(path, workers),
                    truth_ms(workers),
                )
    return arms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", default="fork,run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", type=int, help="run the loop alone, with so many workers")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if asked.train is not None:
        from torch.utils.data import DataLoader

        train(DataLoader, asked.train, None)
        return 0
    arms = arms_of(asked.arms.split(","))
    found: dict[str, list[list[float]]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for turn in range(asked.rounds):
            for place, (name, (run, _)) in enumerate(arms.items()):
                path = Path(folder) / f"{turn}-{place}"
                run(path)
                found[name].append(found_ms(path))
    return show(arms, found, asked.rounds)


def show(arms: dict[str, Arm], found: dict[str, list[list[float]]], rounds: int) -> int:
    print(f"ms exposed per steady step: median of {rounds} runs (A/A spread), truth")
    print(f"{'':28}" + "".join(f"{name:>26}" for name in (*STAGES, "all of the wait")))
    missed = 0
    for name, (_, truth) in arms.items():
        cells = []
        for column, expected in zip(zip(*found[name], strict=True), truth, strict=True):
            median, spread = statistics.median(column), (max(column) - min(column)) / 2
            holds = abs(median - expected) <= max(WITHIN * truth[-1], 3 * spread)
            missed += not holds
            sign = " " if holds else "!"
            cells.append(f"{median:8.2f} ({spread:5.2f}){sign} {expected:6.2f}")
        print(f"{name:28}" + "".join(f"{cell:>26}" for cell in cells))
    print(f"{missed} of {4 * len(arms)} figures are neither within 5 % nor within 3 spreads (!)")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
