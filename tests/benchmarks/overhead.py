"""What recording costs a training script's CPUs: python tests/benchmarks/overhead.py --install.

The same samples go through torch's DataLoader with two worker processes: plain, plain once more
(the difference between these two is the noise of this machine), observed by iobench without an edit
of the dataset, and timed by what others annotate by hand. Every turn is a fresh process; all take
turns in each round; what counts is the CPU time of the process and its workers for one epoch. What
a first batch costs once (imports, opening of files) stands apart.

    --sample-us 1000 --batch-size 8      samples of 1 ms (the default)
    --sample-us 20 --batch-size 512      columns of radiation: 512 samples in a batch
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

PLAIN, AGAIN = "plain", "plain, again"
ARMS = {
    PLAIN: "torch's DataLoader",
    AGAIN: "the same: what this machine's noise makes of it",
    "iobench": "iobench.torch.DataLoader, detail auto",
    "iobench sample": "the same, detail sample: every sample's stages",
    "record_function": "torch.profiler.record_function around three stages, profiler on",
    "dftracer": "DFTracer 2's dft_fn(...).log on three stages",
    "deep500": "a Deep500-style timer in the loop: I/O and batch only",
}
PACKAGES = {"dftracer": ["dftracer", "pydftracer"]}
WORKERS = 2


class Columns:
    """Samples that take a fixed amount of computing, a third in each of three stages."""

    def __init__(self, n_samples: int, turns: int) -> None:
        self.n_samples, self.turns = n_samples, turns
        self.data = np.linspace(0, 1, 512)

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> Any:
        return self.preprocess(self.decode(self.read(number)))

    def read(self, number: int) -> Any:
        return self._spin(number)

    def decode(self, raw: Any) -> Any:
        return self._spin(raw)

    def preprocess(self, value: Any) -> Any:
        return np.float32(self._spin(value))

    def _spin(self, value: float) -> float:
        for _ in range(self.turns):
            value = float(self.data @ self.data) + 0 * value
        return value


def annotated(samples: Columns, wrap: Callable[[str, Callable[..., Any]], Any]) -> type[Columns]:
    """Return a class whose three stages are wrapped, as its author would annotate them."""
    stages = {name: wrap(name, getattr(Columns, name)) for name in ("read", "decode", "preprocess")}
    annotated_class = type("AnnotatedColumns", (Columns,), stages)
    globals()["AnnotatedColumns"] = annotated_class
    return annotated_class


def calibrated_turns(sample_us: float) -> int:
    """Return the turns of each stage that make a sample take so long."""
    samples = Columns(1, 20)
    samples[0]
    start = time.process_time()
    for _ in range(200):
        samples[0]
    each_us = (time.process_time() - start) / 200 * 1e6 / 20
    return max(1, round(sample_us / each_us))


def run_arm(arm: str, turns: int, n_samples: int, batch_size: int, folder: Path) -> dict[str, Any]:
    """Load all samples once, in this process; return CPU and wall seconds and spans written."""
    from torch.utils.data import DataLoader

    samples: Columns = Columns(n_samples, turns)
    loader_class: Any = DataLoader
    around: AbstractContextManager[Any] = nullcontext()
    start_worker = None
    if arm.startswith("iobench"):
        import iobench
        from iobench.torch import DataLoader as Observed

        loader_class = Observed
        around = iobench.record(folder / "run", detail="sample" if "sample" in arm else "auto")
    elif arm == "record_function":
        from torch.profiler import ProfilerActivity, profile, record_function

        def with_function(name: str, stage: Callable[..., Any]) -> Any:
            def timed(self: Columns, value: Any) -> Any:
                with record_function(name):
                    return stage(self, value)

            return timed

        samples = annotated(samples, with_function)(n_samples, turns)
        around = profile(activities=[ProfilerActivity.CPU])
    elif arm == "dftracer":
        from dftracer.python import dft_fn, dftracer

        log = str(folder / "trace")
        tracer = dftracer.initialize_log(f"{log}-main.pfw", str(folder), -1)
        samples = annotated(samples, lambda name, stage: dft_fn(name).log(stage))(n_samples, turns)
        del tracer

        def start_worker(number: int) -> None:
            dftracer.initialize_log(f"{log}-{number}.pfw", str(folder), number)

    def make_loader(dataset: Any) -> Any:
        return loader_class(
            dataset, batch_size=batch_size, num_workers=WORKERS, worker_init_fn=start_worker
        )

    times: dict[str, list[float]] = {"io": [], "batch": []}
    with around:
        before = _cpu_s()
        for _ in make_loader(type(samples)(batch_size, 1)):
            pass  # what is imported or opened once is no cost of samples
        once_s = _cpu_s() - before
        before, began = _cpu_s(), time.perf_counter()
        batches: Iterator[Any] = iter(make_loader(samples))
        while True:
            start = time.perf_counter()
            if next(batches, None) is None:
                break
            if arm == "deep500":
                times["io"].append(time.perf_counter() - start)
                times["batch"].append(time.perf_counter() - start)
        del batches  # ends and reaps the workers, whose CPU time counts only then
        wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - before
    told: dict[str, Any] = {"cpu_s": cpu_s, "wall_s": wall_s, "once_s": once_s}
    if arm.startswith("iobench"):
        told |= _spans_of(folder / "run")
    return told


def _spans_of(run: Path) -> dict[str, Any]:
    import iobench

    profile = iobench.open_profile(run)
    whole = iobench.exposure(profile).whole
    return {"n_spans": len(profile.spans), "lost": profile.lost_spans,
            "by_unit_costs": whole.overhead_fraction}  # fmt: skip


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def interpreter(arm: str, folder: Path, *, install: bool) -> tuple[str, str] | None:
    """Return a Python and what its path needs for an arm; None where it is not installed."""
    packages = PACKAGES.get(arm)
    if packages is None:
        return sys.executable, ""
    if not subprocess.run([sys.executable, "-c", f"import {packages[0]}"], check=False,
                          capture_output=True).returncode:  # fmt: skip
        return sys.executable, ""
    target = folder / f"packages-{arm}"
    if not target.exists():
        if not install:
            return None
        venv.create(folder / "pip", with_pip=True)
        ran = subprocess.run(
            [folder / "pip" / "bin" / "pip", "install", "-q", "--no-deps", "--target", target,
             *packages], check=False, capture_output=True, text=True,
        )  # fmt: skip
        if ran.returncode:
            print(f"left out: {arm} ({ran.stderr.strip().splitlines()[-1]})")
            return None
    return sys.executable, str(target)


def main() -> None:
    """Let the arms take turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sample-us", type=float, default=1000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3, help="CPU time of a plain turn")
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--install", action="store_true", help="install peers, for this only")
    parser.add_argument("--packages-dir", type=Path, help="where peers stay installed")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    n_samples = max(arguments.batch_size, round(arguments.seconds * 1e6 / arguments.sample_us))
    if arguments.arm:
        with tempfile.TemporaryDirectory() as folder:
            told = run_arm(
                arguments.arm, arguments.turns, n_samples, arguments.batch_size, Path(folder)
            )
        print(json.dumps(told))
        return
    turns = calibrated_turns(arguments.sample_us)
    with tempfile.TemporaryDirectory() as scratch:
        home = arguments.packages_dir or Path(scratch)
        homes = {arm: interpreter(arm, home, install=arguments.install) for arm in arguments.only}
        told: dict[str, list[dict[str, Any]]] = {arm: [] for arm, at in homes.items() if at}
        for number in range(arguments.rounds):
            order = list(told)
            for arm in order[number % len(order) :] + order[: number % len(order)]:
                told[arm].append(_turn(arm, turns, homes[arm] or ("", ""), arguments))
    print_table(told, arguments, n_samples)


def _turn(arm: str, turns: int, home: tuple[str, str], arguments: Any) -> dict[str, Any]:
    python, path = home
    environment = {**os.environ, "PYTHONPATH": path, "DFTRACER_ENABLE": "1",
                   "DFTRACER_INIT": "FUNCTION", "OMP_NUM_THREADS": "1"}  # fmt: skip
    ran = subprocess.run(
        [python, __file__, "--arm", arm, "--turns", str(turns),
         "--sample-us", str(arguments.sample_us), "--batch-size", str(arguments.batch_size),
         "--seconds", str(arguments.seconds)],
        env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if ran.returncode:
        raise SystemExit(f"{arm}: {ran.stderr.strip()}")
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def print_table(told: dict[str, list[dict[str, Any]]], arguments: Any, n_samples: int) -> None:
    """Print CPU time of each arm beside the plain one of its round."""
    print(
        f"{n_samples} samples of {arguments.sample_us:g} us, batches of {arguments.batch_size}, "
        f"{WORKERS} workers, {arguments.rounds} rounds; CPU time beside plain, in per cent"
    )
    print(f"{'':18}{'CPU, s':>8}{'median':>9}{'lowest':>9}{'highest':>9}{'wall':>9}{'once, s':>9}")
    plain = told[PLAIN]
    for arm, rows in told.items():
        more = [
            100 * (row["cpu_s"] / base["cpu_s"] - 1) for row, base in zip(rows, plain, strict=True)
        ]
        wall = [
            100 * (row["wall_s"] / base["wall_s"] - 1)
            for row, base in zip(rows, plain, strict=True)
        ]
        cpu = statistics.median(row["cpu_s"] for row in rows)
        print(
            f"{arm:18}{cpu:8.2f}{statistics.median(more):+9.2f}{min(more):+9.2f}{max(more):+9.2f}"
            f"{statistics.median(wall):+9.2f}"
            f"{statistics.median(row['once_s'] for row in rows):9.2f}   {ARMS[arm]}"
        )
    for arm, rows in told.items():
        if "n_spans" in rows[0]:
            share = rows[0]["by_unit_costs"]
            print(
                f"{arm}: {rows[0]['n_spans']} spans, {rows[0]['lost']} lost; by spans x unit cost "
                f"{'unknown' if share is None else f'{100 * share:.3f} %'} of the time of all lanes"
            )


if __name__ == "__main__":
    main()
