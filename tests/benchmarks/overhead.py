"""What recording costs a training script's CPUs: python tests/benchmarks/overhead.py.

The same samples go through torch's DataLoader with two worker processes: plain, plain once more
(the difference between these two is the noise of this machine), and observed by iobench without an
edit of the dataset. Each is a process of its own that lives throughout. They take turns, a stretch
of batches each, and rest meanwhile; a stretch begins and ends with workers that have nothing left
to do. What counts is the CPU time of the process and its workers for a stretch, by the kernel's
clock of each, beside that of the plain one in the same round. The same work takes half as much CPU
time again from one second to the next on a machine that is shared; so the samples tell what their
own computing took, in all arms alike, and what is left is compared. What computing loses by colder
caches is in the figure of all CPU time only. What happens once (imports, starting workers, opening
files) stands apart.

    --sample-us 1000 --batch-size 32     samples of 1 ms (the default)
    --sample-us 20 --batch-size 512      columns of radiation: 512 samples in a batch
    --sample-us 20 --batch-size 1        the worst case: what a batch costs, for every sample

Another table holds what a report prints against an A/B, for ``iobench run --no-report`` of a script
whose samples take next to nothing: python tests/benchmarks/overhead.py --tiny
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from harness import Served, last_line, median_interval, orders, print_table, rotated, spread, tell

PLAIN, AGAIN = "plain", "plain, again"
ARMS = {
    PLAIN: "torch's DataLoader",
    AGAIN: "the same: what this machine's noise makes of it",
    "iobench": "iobench.torch.DataLoader, detail auto",
    "iobench sample": "the same, detail sample: every sample's stages",
}
WORKERS = 2
TINY_SAMPLES, TINY_BATCH, TINY_EPOCHS = 20_000, 32, 7
WARM_STRETCHES = 2
REST_S = 0.02
GOAL_PERCENT = 1.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Columns:
    """Samples that take a fixed amount of computing, a third in each of three stages.

    ``own_ns`` is the CPU time of that computing, of all processes that share the samples by a
    fork, each in a place of its own.
    """

    def __init__(self, n_samples: int, turns: int) -> None:
        self.n_samples, self.turns = n_samples, turns
        self.data = np.linspace(0, 1, 512)
        self.own_ns = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        self.place = 0

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> Any:
        if not self.place:
            from torch.utils.data import get_worker_info

            worker = get_worker_info()
            self.place = 1 if worker is None else 2 + worker.id
        return self.preprocess(self.decode(self.read(number)))

    def read(self, number: int) -> Any:
        return self._spin(number)

    def decode(self, raw: Any) -> Any:
        return self._spin(raw)

    def preprocess(self, value: Any) -> Any:
        return np.float32(self._spin(value))

    def _spin(self, value: float) -> float:
        start_ns = time.thread_time_ns()
        for _ in range(self.turns):
            value = float(self.data @ self.data) + 0 * value
        self.own_ns[self.place] += time.thread_time_ns() - start_ns
        return value


def calibrated_turns(sample_us: float) -> int:
    """Return the turns of each stage that make a sample take so long."""
    samples, took = Columns(1, 20), []
    for _ in range(50):  # a machine in common has slow moments
        start = time.process_time()
        for _ in range(20):
            samples[0]
        took.append((time.process_time() - start) / 20 * 1e6 / 20)
    return max(1, round(sample_us / min(took)))


def run_arm(arm: str, samples: Columns, n_batches: int, batch_size: int, folder: Path) -> None:
    """Load a stretch of batches, and tell what it took, for each order."""
    before = cpu_s([])
    from torch.utils.data import DataLoader

    loader_class: Any = DataLoader
    around: AbstractContextManager[Any] = nullcontext()
    if arm.startswith("iobench"):
        import iobench
        import iobench.torch

        loader_class = iobench.torch.DataLoader
        around = iobench.record(folder / "run", detail="sample" if "sample" in arm else "auto")
    with around as recording:
        batches = iter(loader_class(samples, batch_size=batch_size, num_workers=WORKERS))
        pids = [process.pid for process in multiprocessing.active_children()]
        for _ in range(WARM_STRETCHES):
            stretch(batches, n_batches, pids)
        tell({"cpu_s": cpu_s(pids) - before})
        for order in orders():
            if "end" in order:
                break
            before, own_ns = cpu_s(pids), sum(samples.own_ns)
            stretch(batches, n_batches, pids)
            used_s, own_s = cpu_s(pids) - before, (sum(samples.own_ns) - own_ns) / 1e9
            tell({"cpu_s": used_s, "rest_s": used_s - own_s})
        used_s = cpu_s(pids)
        del batches
    recorded = arm.startswith("iobench")
    tell(spans_of(folder / "run", recording.facts.unit_costs, used_s) if recorded else {"": ""})


def stretch(batches: Iterator[Any], n_batches: int, pids: list[int]) -> None:
    """Take so many batches and wait until the workers rest."""
    for _ in range(n_batches):
        next(batches)
    used = [-1.0, -2.0]
    while len(set(used[-3:])) > 1:
        time.sleep(REST_S)
        used.append(sum(map(process_cpu_s, pids)))


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of this process and others."""
    return time.process_time() + sum(map(process_cpu_s, pids))


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process that lives, of which `getrusage` tells nothing.

    The number of its clock is what clock_getcpuclockid(3) makes of the pid on Linux.
    """
    return time.clock_gettime(~pid << 3 | 2)


def spans_of(run: Path, costs: dict[str, int | None], used_s: float) -> dict[str, Any]:
    """Return how many spans were written, and what that costs by counting."""
    import iobench
    from iobench.recording.span_file import Flag

    profile = iobench.open_profile(run)
    spans = profile.spans
    is_io = (spans["flags"] & Flag.IO) != 0
    full = ~is_io & (spans["cpu_ns"] >= 0)
    counts = {"io_ns": is_io.sum(), "full_ns": full.sum(), "light_ns": (~is_io & ~full).sum()}
    spent_ns = sum(int(number) * (costs[name] or 0) for name, number in counts.items())
    return {
        "n_spans": len(spans), "lost": profile.lost_spans, "costs": costs,
        "by_counts": 100 * spent_ns / 1e9 / used_s,
    }  # fmt: skip


class Arm:
    """The process of one arm, and what it answered."""

    def __init__(self, name: str, turns: int, arguments: Any) -> None:
        options = ["--arm", name, "--turns", turns]
        for option in ("sample_us", "batch_size", "seconds", "rounds"):
            options += [f"--{option.replace('_', '-')}", getattr(arguments, option)]
        self.name = name
        self.served = Served([__file__, *options], ONE_THREAD)
        self.once_s = float(self.served.answer()["cpu_s"])
        self.rows: list[dict[str, Any]] = []
        self.told: dict[str, Any] = {}

    def finish(self) -> None:
        """Let it end and tell what there is to tell."""
        self.told = self.served.ask({"end": True})
        self.served.close()
        # What a warm stretch took is no cost of a start.
        self.once_s -= WARM_STRETCHES * statistics.median(row["cpu_s"] for row in self.rows)


def compare(arguments: Any, n_batches: int) -> None:
    """Let the arms take turns and print CPU time of each beside the plain one of its round."""
    turns = calibrated_turns(arguments.sample_us)
    arms = [Arm(name, turns, arguments) for name in arguments.only]
    for number in range(arguments.rounds):
        for arm in rotated(arms, number):
            arm.rows.append(arm.served.ask({"go": number}))
    for arm in arms:
        arm.finish()
    plain = arms[0].rows
    plain_s = statistics.median(row["cpu_s"] for row in plain)
    own_us = (plain_s - statistics.median(row["rest_s"] for row in plain)) * 1e6
    own_us /= n_batches * arguments.batch_size
    print(
        f"samples of {own_us:.1f} us, batches of {arguments.batch_size}, {WORKERS} workers; "
        f"{arguments.rounds} rounds of {n_batches} batches for each; plain takes "
        f"{plain_s / n_batches * 1e6:.0f} us of CPU time for a batch, in per cent of that:"
    )
    table, intervals = [], {}
    for arm in arms:
        pairs = list(zip(arm.rows, plain, strict=True))
        more = [100 * (row["rest_s"] - base["rest_s"]) / plain_s for row, base in pairs]
        whole = [100 * (row["cpu_s"] / base["cpu_s"] - 1) for row, base in pairs]
        median, *intervals[arm.name] = median_interval(more)
        in_all, *bounds = median_interval(whole)
        table.append([
            arm.name, f"{median:+.2f}", _spelled(intervals[arm.name]), spread(more, "+.2f"),
            f"{median * plain_s / n_batches * 1e4:+.1f}", f"{in_all:+.2f}", _spelled(bounds),
            f"{arm.once_s:.2f}", ARMS[arm.name],
        ])  # fmt: skip
    heads = ["", "outside samples", "95 %", "rounds", "us/batch", "all", "95 %", "once, s", ""]
    print_table(heads, table)
    for arm in arms:
        if "n_spans" in arm.told:
            print(
                f"{arm.name}: {arm.told['n_spans']} spans, {arm.told['lost']} lost; by spans x "
                f"unit cost {arm.told['by_counts']:.3f} % of the CPU time ({arm.told['costs']})"
            )
            print(f"{arm.name}: {_verdict(intervals[arm.name], intervals.get(AGAIN))}")


def _spelled(interval: list[float]) -> str:
    return f"{interval[0]:+.2f} .. {interval[1]:+.2f}"


def _verdict(found: list[float], noise: list[float] | None) -> str:
    if noise is None:
        return "without the second plain arm nothing is known of the noise"
    band = f"plain beside plain is {_spelled(noise)} %"
    if noise[1] - noise[0] > GOAL_PERCENT:
        return f"this run cannot tell {GOAL_PERCENT:g} %: {band}"
    if not noise[0] <= 0 <= noise[1]:
        return f"this run is not to be trusted: {band}"
    if found[1] <= GOAL_PERCENT:
        return f"costs at most {GOAL_PERCENT:g} %; {band}"
    if found[0] > GOAL_PERCENT:
        return f"costs more than {GOAL_PERCENT:g} %; {band}"
    return f"around {GOAL_PERCENT:g} %, this run does not tell on which side; {band}"


# -- what a report prints, against an A/B ---------------------------------------------------------


def run_tiny(workers: int, step_us: float) -> None:
    """Be the script: tell CPU and wall time of each epoch, and at the end what all took."""
    ends: list[tuple[float, ...]] = []
    # The first one to be registered is the last one to be called.
    atexit.register(lambda: tell({"ends": ends, "cpu_s": sum(os.times()[:4])}))
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    data: Any = torch.arange(4 * TINY_SAMPLES).reshape(TINY_SAMPLES, 4)
    loader: Any = DataLoader(
        data, batch_size=TINY_BATCH, num_workers=workers, persistent_workers=workers > 0
    )
    pids: list[int] = []
    for _ in range(TINY_EPOCHS):
        for _batch in loader:
            ended = time.perf_counter() + step_us / 1e6
            while time.perf_counter() < ended:
                pass
        pids = pids or [process.pid or 0 for process in multiprocessing.active_children()]
        ends.append((time.process_time(), sum(map(process_cpu_s, pids)), time.perf_counter()))


def tiny_figures(workers: int, step_us: float, run: Path | None) -> dict[str, float]:
    """Return what one process with its workers took; with what its report says, if recorded."""
    iobench = ["-m", "iobench"]
    script = [__file__, "--tiny-script", str(workers), "--step-us", str(step_us)]
    if run is not None:
        script = [*iobench, "run", "--no-report", "--out", str(run), "--", sys.executable, *script]
    told = last_line(script, env=os.environ | ONE_THREAD)
    loop_s, workers_s, wall_s = np.median(np.diff(np.array(told["ends"]), axis=0), axis=0)
    found = {"loop_s": loop_s, "workers_s": workers_s, "wall_s": wall_s}
    found["cpu_s"] = loop_s + workers_s
    found["once_s"] = told["cpu_s"] - TINY_EPOCHS * found["cpu_s"]
    if run is not None:
        command = [sys.executable, *iobench, "report", "--json", str(run)]
        printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        report = json.loads(printed)["runs"][0]
        found["printed"] = report["overhead_fraction"]
        found["printed_once_s"] = report["overhead_once_ns"] / 1e9
    return found


def compare_tiny(arguments: Any) -> None:
    """Print what an A/B shows beside what reports print, each line medians and ranges of rounds."""
    n_batches = math.ceil(TINY_SAMPLES / TINY_BATCH)
    print(
        f"{TINY_SAMPLES} samples in batches of {TINY_BATCH}, {TINY_EPOCHS} epochs a process, "
        f"{arguments.rounds} processes each, in turns; CPU time of a process and its workers.\n"
        "once: ms more for each process; after: per cent more in an epoch after the first; share: "
        "what is more,\nof the loop's or its workers' time, the larger; printed: the same by the "
        "report; factor: printed / share"
    )
    table = []
    for workers in arguments.tiny:
        rows: list[list[float]] = []
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                a = tiny_figures(workers, arguments.step_us, None)
                b = tiny_figures(workers, arguments.step_us, Path(folder) / "run")
            loop = (b["loop_s"] - a["loop_s"]) / b["wall_s"]
            theirs = (b["workers_s"] - a["workers_s"]) / max(workers, 1) / b["wall_s"]
            share = 100 * max(loop, theirs)
            rows.append([
                a["cpu_s"] / n_batches * 1e6, 1e3 * (b["once_s"] - a["once_s"]) / (1 + workers),
                100 * (b["cpu_s"] / a["cpu_s"] - 1), 100 * (b["wall_s"] / a["wall_s"] - 1), share,
                100 * b["printed"], 100 * b["printed"] / share,
                1e3 * b["printed_once_s"],
            ])  # fmt: skip
        table.append([workers, *(spread(column, ".3g") for column in zip(*rows, strict=True))])
    heads = ["workers", "plain us/batch", "once", "after", "wall", "share", "printed", "factor"]
    print_table([*heads, "printed once"], [[str(row[0]), *row[1:]] for row in table])


def main() -> None:
    """Print one of the tables, or be one of the processes that they are of."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sample-us", type=float, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU time of a plain stretch")
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument(
        "--tiny", nargs="*", type=int, metavar="WORKERS", help="tiny samples under iobench run"
    )
    parser.add_argument("--step-us", type=float, default=0, help="a step, with --tiny")
    parser.add_argument("--tiny-script", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    n_samples = arguments.seconds * 1e6 / arguments.sample_us
    n_batches = max(2 * WORKERS, round(n_samples / arguments.batch_size))
    if arguments.tiny_script is not None:
        run_tiny(arguments.tiny_script, arguments.step_us)
    elif arguments.tiny is not None:
        arguments.tiny = arguments.tiny or [0, WORKERS]
        compare_tiny(arguments)
    elif arguments.arm:
        n_stretches = arguments.rounds + WARM_STRETCHES + 1
        samples = Columns(n_batches * arguments.batch_size * n_stretches, arguments.turns)
        with tempfile.TemporaryDirectory() as folder:
            run_arm(arguments.arm, samples, n_batches, arguments.batch_size, Path(folder))
    else:
        compare(arguments, n_batches)


if __name__ == "__main__":
    main()
