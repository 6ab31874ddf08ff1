"""What recording costs a training script's CPUs: python tests/benchmarks/overhead.py --install.

The same samples go through torch's DataLoader with two worker processes: plain, plain once more
(the difference between these two is the noise of this machine), observed by iobench without an
edit of the dataset, and timed by what others annotate by hand. Each is a process of its own that
lives throughout. They take turns, a stretch of batches each, and rest meanwhile; a stretch begins
and ends with workers that have nothing left to do. What counts is the CPU time of the process and
its workers for a stretch, by the kernel's clock of each, beside that of the plain one in the same
round. The same work takes half as much CPU time again from one second to the next on a machine that
is shared; so the samples tell what their own computing took, in all arms alike, and what is left is
compared. What computing loses by colder caches is in the figure of all CPU time only. What happens
once (imports, starting workers, opening files) stands apart.

    --sample-us 1000 --batch-size 32     samples of 1 ms (the default)
    --sample-us 20 --batch-size 512      columns of radiation: 512 samples in a batch
    --sample-us 20 --batch-size 1        the worst case: what a batch costs, for every sample

Another table holds what a report prints against an A/B, for ``iobench run --no-report`` of a script
whose samples take next to nothing: python tests/benchmarks/overhead.py --tiny

What timing the parts of a step costs is in a third one, of a tiny model in one process, with hooks
and without in turns: python tests/benchmarks/overhead.py --parts
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
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
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
TINY_SAMPLES, TINY_BATCH, TINY_EPOCHS = 20_000, 32, 7
WARM_STRETCHES = 2
REST_S = 0.02
GOAL_PERCENT = 1.0


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


def annotated(samples: Columns, wrap: Callable[[str, Callable[..., Any]], Any]) -> None:
    """Wrap the three stages of the samples' class, as its author would annotate them."""
    for name in ("read", "decode", "preprocess"):
        setattr(type(samples), name, wrap(name, getattr(Columns, name)))


def calibrated_turns(sample_us: float) -> int:
    """Return the turns of each stage that make a sample take so long."""
    samples, took = Columns(1, 20), []
    for _ in range(50):  # a machine in common has slow moments
        start = time.process_time()
        for _ in range(20):
            samples[0]
        took.append((time.process_time() - start) / 20 * 1e6 / 20)
    return max(1, round(sample_us / min(took)))


def prepared(
    arm: str, samples: Columns, batch_size: int, folder: Path
) -> tuple[Callable[[], Any], AbstractContextManager[Any]]:
    """Return what makes the arm's loader, and what is to be entered before."""
    from torch.utils.data import DataLoader

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

        annotated(samples, with_function)
        around = profile(activities=[ProfilerActivity.CPU])
    elif arm == "dftracer":
        from dftracer.python import dft_fn, dftracer

        log = str(folder / "trace")
        dftracer.initialize_log(f"{log}-main.pfw", str(folder), -1)
        annotated(samples, lambda name, stage: dft_fn(name).log(stage))

        def start_worker(number: int) -> None:
            dftracer.initialize_log(f"{log}-{number}.pfw", str(folder), number)

    def make() -> Any:
        return loader_class(
            samples, batch_size=batch_size, num_workers=WORKERS, worker_init_fn=start_worker
        )

    return make, around


def run_arm(arm: str, samples: Columns, n_batches: int, batch_size: int, folder: Path) -> None:
    """Load a stretch of batches, and tell what it took, for each line of standard input."""
    before = cpu_s([])
    make, around = prepared(arm, samples, batch_size, folder)
    with around as recording:
        batches = iter(make())
        pids = [process.pid for process in multiprocessing.active_children()]
        for _ in range(WARM_STRETCHES):
            stretch(batches, n_batches, pids, arm)
        tell({"cpu_s": cpu_s(pids) - before})
        for _ in sys.stdin:
            before, began, own_ns = cpu_s(pids), time.perf_counter(), sum(samples.own_ns)
            ended = stretch(batches, n_batches, pids, arm)
            used_s, own_s = cpu_s(pids) - before, (sum(samples.own_ns) - own_ns) / 1e9
            tell({"cpu_s": used_s, "rest_s": used_s - own_s, "wall_s": ended - began})
        used_s = cpu_s(pids)
        del batches
    if arm.startswith("iobench"):
        tell(spans_of(folder / "run", recording.facts.unit_costs, used_s))


def stretch(batches: Iterator[Any], n_batches: int, pids: list[int], arm: str) -> float:
    """Take so many batches and wait until the workers rest; return when the last one was there."""
    times: dict[str, list[float]] = {"io": [], "batch": []}
    for _ in range(n_batches):
        start = time.perf_counter()
        next(batches)
        if arm == "deep500":
            times["io"].append(time.perf_counter() - start)
            times["batch"].append(time.perf_counter() - start)
    ended, used = time.perf_counter(), [-1.0, -2.0]
    while len(set(used[-3:])) > 1:
        time.sleep(REST_S)
        used.append(sum(map(process_cpu_s, pids)))
    return ended


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
    return {"n_spans": len(spans), "lost": profile.lost_spans, "costs": costs,
            "by_counts": 100 * spent_ns / 1e9 / used_s}  # fmt: skip


class Tiny:
    """Samples that are there already."""

    def __init__(self) -> None:
        import torch

        self.data = torch.arange(4 * TINY_SAMPLES).reshape(TINY_SAMPLES, 4)

    def __len__(self) -> int:
        return TINY_SAMPLES

    def __getitem__(self, number: int) -> Any:
        return self.data[number]


def run_tiny(workers: int, step_us: float) -> None:
    """Be the script: tell CPU and wall time of each epoch, and at the end what all took."""
    ends: list[tuple[float, ...]] = []
    pids: list[int] = []

    def at_end() -> None:  # the first one to be registered is the last one to be called
        tell({"ends": ends, "cpu_s": sum(os.times()[:4])})

    atexit.register(at_end)
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader: Any = DataLoader(
        Tiny(), batch_size=TINY_BATCH, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in range(TINY_EPOCHS):
        for _batch in loader:
            ended = time.perf_counter() + step_us / 1e6
            while time.perf_counter() < ended:
                pass
        pids = pids or [process.pid or 0 for process in multiprocessing.active_children()]
        ends.append((time.process_time(), sum(map(process_cpu_s, pids)), time.perf_counter()))


def tiny_figures(workers: int, step_us: float, run: Path | None) -> dict[str, float]:
    """Return what one process with its workers took; with what its report says, if recorded."""
    script = [__file__, "--tiny-script", str(workers), "--step-us", str(step_us)]
    iobench = str(Path(sys.executable).with_name("iobench"))
    command = [sys.executable, *script]
    if run is not None:
        command = [iobench, "run", "--no-report", "--out", str(run), "--", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(next(line for line in out.stdout.splitlines() if line.startswith("@"))[1:])
    epochs = np.diff(np.array(told["ends"]), axis=0)
    loop_s, workers_s, wall_s = np.median(epochs, axis=0)
    found = {
        "loop_s": loop_s,
        "workers_s": workers_s,
        "wall_s": wall_s,
        "cpu_s": loop_s + workers_s,
    }
    found["once_s"] = told["cpu_s"] - TINY_EPOCHS * found["cpu_s"]
    if run is not None:
        command = [iobench, "report", "--json", str(run)]
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
    heads = ("workers", "plain us/batch", "once", "after", "wall", "share", "printed", "factor",
             "printed once")  # fmt: skip
    print("".join(f"{head:>22}" if number else f"{head:>8}" for number, head in enumerate(heads)))
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
        cells = [
            f"{statistics.median(column):.3g} ({min(column):.3g}..{max(column):.3g})"
            for column in zip(*rows, strict=True)
        ]
        print(f"{workers:>8}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def tell(what: dict[str, Any]) -> None:
    """Send a line to whoever started this process."""
    print("@" + json.dumps(what), flush=True)


def compare_parts(rounds: int, n_layers: int = 20, n_steps: int = 20) -> None:
    """Print what forward, backward and a step take more of the CPU with hooks; medians of pairs."""
    import torch

    import iobench
    from iobench.recording.activation import activate
    from iobench.torch import training_hooks

    torch.set_num_threads(1)
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(n_layers)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    x = torch.ones(2, 8)

    def steps() -> float:
        start = time.thread_time_ns()
        for _ in range(n_steps):
            net(x).sum().backward()
            optimizer.step()
        return (time.thread_time_ns() - start) / n_steps / 1e3

    rows: dict[str, list[float]] = {"recorded": [], "hooked, not recorded": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder, iobench.record(Path(folder) / "run") as recording:
        for number in range(rounds * 20):
            names = list(rows)
            for name in names[number % 3 :] + names[: number % 3]:
                if name != "plain":
                    training_hooks.install()
                activate(recording.recorder if name == "recorded" else None)
                steps()
                rows[name].append(steps())
                training_hooks.uninstall()
    plain = rows.pop("plain")
    print(
        f"a step of {n_layers} layers of 8 x 8: {statistics.median(plain):.0f} us of CPU time, "
        f"{20 * rounds} rounds of {n_steps}; more for its three parts, in the median:"
    )
    for name, took in rows.items():
        more = statistics.median(a - b for a, b in zip(took, plain, strict=True))
        print(f"  {name}: {more:+.2f} us a step, {more / 3:+.2f} us a part")


def packages(arm: str, folder: Path, *, install: bool) -> str | None:
    """Return what the path of an arm's Python needs; None where its package is not installed."""
    needed = PACKAGES.get(arm)
    if needed is None:
        return ""
    if not subprocess.run([sys.executable, "-c", f"import {needed[0]}"], check=False,
                          capture_output=True).returncode:  # fmt: skip
        return ""
    target = folder / f"packages-{arm}"
    if not target.exists():
        if not install:
            return None
        venv.create(folder / "pip", with_pip=True)
        ran = subprocess.run(
            [folder / "pip" / "bin" / "pip", "install", "-q", "--no-deps", "--target", target,
             *needed], check=False, capture_output=True, text=True,
        )  # fmt: skip
        if ran.returncode:
            print(f"left out: {arm} ({ran.stderr.strip().splitlines()[-1]})")
            return None
    return str(target)


class Arm:
    """The process of one arm; ends with the ``with`` statement."""

    def __init__(self, name: str, path: str, turns: int, arguments: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": path, "DFTRACER_ENABLE": "1",
                       "DFTRACER_INIT": "FUNCTION", "OMP_NUM_THREADS": "1"}  # fmt: skip
        options = ["--arm", name, "--turns", str(turns)]
        for option in ("sample_us", "batch_size", "seconds", "rounds"):
            options += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
        self.name = name
        self.once_s = math.nan
        self.rows: list[dict[str, Any]] = []
        self.told: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *options],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Arm:
        self.once_s = self.answer()["cpu_s"]
        return self

    def answer(self) -> dict[str, Any]:
        """Return the next thing it tells."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                answer: dict[str, Any] = json.loads(line[1:])
                return answer
        raise SystemExit(f"{self.name}: ended with {self._process.wait()}")

    def take_turn(self) -> None:
        """Let it load a stretch."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.rows.append(self.answer())

    def finish(self) -> None:
        """Let it end and tell what there is to tell."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.name.startswith("iobench"):
            self.told = self.answer()
        # What a warm stretch took is no cost of a start.
        self.once_s -= WARM_STRETCHES * statistics.median(row["cpu_s"] for row in self.rows)

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._process.terminate()
        assert self._process.stdout is not None
        self._process.stdout.read()
        self._process.wait()


def main() -> None:
    """Let the arms take turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sample-us", type=float, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU time of a plain stretch")
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--install", action="store_true", help="install peers, for this only")
    parser.add_argument("--packages-dir", type=Path, help="where peers stay installed")
    parser.add_argument(
        "--tiny", nargs="*", type=int, metavar="WORKERS", help="tiny samples under iobench run"
    )
    parser.add_argument("--parts", action="store_true", help="parts of a step, in this process")
    parser.add_argument("--step-us", type=float, default=0, help="a step, with --tiny")
    parser.add_argument("--tiny-script", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny_script is not None:
        run_tiny(arguments.tiny_script, arguments.step_us)
        return
    if arguments.parts:
        compare_parts(arguments.rounds)
        return
    if arguments.tiny is not None:
        arguments.tiny = arguments.tiny or [0, WORKERS]
        compare_tiny(arguments)
        return
    n_samples = arguments.seconds * 1e6 / arguments.sample_us
    n_batches = max(2 * WORKERS, round(n_samples / arguments.batch_size))
    if arguments.arm:
        n_stretches = arguments.rounds + WARM_STRETCHES + 1
        samples = Columns(n_batches * arguments.batch_size * n_stretches, arguments.turns)
        with tempfile.TemporaryDirectory() as folder:
            run_arm(arguments.arm, samples, n_batches, arguments.batch_size, Path(folder))
        return
    turns = calibrated_turns(arguments.sample_us)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = arguments.packages_dir or Path(scratch)
        paths = {arm: packages(arm, home, install=arguments.install) for arm in arguments.only}
        arms = [
            stack.enter_context(Arm(name, path, turns, arguments))
            for name, path in paths.items()
            if path is not None
        ]
        for number in range(arguments.rounds):
            first = number % len(arms)
            for arm in arms[first:] + arms[:first]:
                arm.take_turn()
        for arm in arms:
            arm.finish()
    print_table(arms, arguments, n_batches)


def print_table(arms: list[Arm], arguments: Any, n_batches: int) -> None:
    """Print CPU time of each arm beside the plain one of its round."""
    plain = arms[0].rows
    plain_s = statistics.median(row["cpu_s"] for row in plain)
    own_us = (plain_s - statistics.median(row["rest_s"] for row in plain)) * 1e6
    own_us /= n_batches * arguments.batch_size
    print(
        f"samples of {own_us:.1f} us, batches of {arguments.batch_size}, {WORKERS} workers; "
        f"{arguments.rounds} rounds of {n_batches} batches for each; plain takes "
        f"{plain_s / n_batches * 1e6:.0f} us of CPU time for a batch, in per cent of that:"
    )
    heads = (
        "",
        "outside samples",
        "interval of 95 %",
        "rounds",
        "us/batch",
        "all",
        "95 %",
        "once, s",
    )
    widths = (17, 16, 18, 16, 10, 8, 18, 9)
    print("".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    intervals = {}
    for arm in arms:
        more = sorted(
            100 * (row["rest_s"] - base["rest_s"]) / plain_s
            for row, base in zip(arm.rows, plain, strict=True)
        )
        whole = sorted(
            100 * (row["cpu_s"] / base["cpu_s"] - 1)
            for row, base in zip(arm.rows, plain, strict=True)
        )
        intervals[arm.name] = _interval(more)
        median = statistics.median(more)
        cells = (
            f"{median:+.2f}", _spelled(_interval(more)), _spelled((more[0], more[-1])),
            f"{median * plain_s / n_batches * 1e4:+.1f}", f"{statistics.median(whole):+.2f}",
            _spelled(_interval(whole)), f"{arm.once_s:.2f}",
        )  # fmt: skip
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        print(f"{arm.name:<17}{row}   {ARMS[arm.name]}")
    for arm in arms:
        if arm.told:
            print(
                f"{arm.name}: {arm.told['n_spans']} spans, {arm.told['lost']} lost; by spans x "
                f"unit cost {arm.told['by_counts']:.3f} % of the CPU time ({arm.told['costs']})"
            )
            print(f"{arm.name}: {_verdict(intervals[arm.name], intervals.get(AGAIN))}")


def _spelled(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.2f} .. {interval[1]:+.2f}"


def _interval(ordered: list[float]) -> tuple[float, float]:
    """Return an interval that holds the median of all such rounds with 95 %, whatever they are."""
    n = len(ordered)
    at_most, below = 0.0, 0
    while below < n // 2:
        at_most += math.comb(n, below) / 2**n
        if at_most > 0.025:
            break
        below += 1
    first = max(below - 1, 0)
    return ordered[first], ordered[n - 1 - first]


def _verdict(found: tuple[float, float], noise: tuple[float, float] | None) -> str:
    if noise is None:
        return "without the second plain arm nothing is known of the noise"
    band = f"plain beside plain is {noise[0]:+.2f} .. {noise[1]:+.2f} %"
    if noise[1] - noise[0] > GOAL_PERCENT:
        return f"this run cannot tell {GOAL_PERCENT:g} %: {band}"
    if not noise[0] <= 0 <= noise[1]:
        return f"this run is not to be trusted: {band}"
    if found[1] <= GOAL_PERCENT:
        return f"costs at most {GOAL_PERCENT:g} %; {band}"
    if found[0] > GOAL_PERCENT:
        return f"costs more than {GOAL_PERCENT:g} %; {band}"
    return f"around {GOAL_PERCENT:g} %, this run does not tell on which side; {band}"


if __name__ == "__main__":
    main()
