"""The driver's count of energy on a real GPU: python tests/benchmarks/energy_gpu.py.

Needs an NVIDIA GPU and nvidia-ml-py, or AMD's and amdsmi, and torch for either for the load. It
tells

- which GPUs iobench reads, and why not the others; exits with 1 where it reads none;
- how often the counter is renewed, by asking it as often as it answers, and what asking costs;
- idle and under load (matrix products, ``--seconds`` of each): the counter's joules beside the sum
  of NVML's readings of power, the estimate of GPUs that count none; exits with 1 where they
  differ by more than a quarter under load;
- a run under ``iobench.record`` beside a meter that loads for 1 s and computes for 1 s, six times:
  joules while waiting and computing as `energy_of` tells them, beside the power of either; exits
  with 1 where computing took no more than waiting, or the two do not add up to the whole.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import iobench
from iobench.analysis.run import Run
from iobench.findings.energy import energy_of
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.energy_counters import open_counters
from iobench.recording.meter import start_meter

if TYPE_CHECKING:
    from iobench.recording.energy_counters import EnergyCounter

ROUNDS = 6
TOLERANCE = 0.25


def renewals(counter: EnergyCounter, seconds: float) -> dict[str, float]:
    """Return how long a value stays, and what a call takes."""
    stays, calls = [], []
    value = counter.read_uj()
    since = end = time.perf_counter()
    end += seconds
    while (now := time.perf_counter()) < end:
        told = counter.read_uj()
        calls.append(time.perf_counter() - now)
        if told != value:
            stays.append(now - since)
            value, since = told, now
    return {
        "renewals": len(stays),
        "period_ms": 1000 * statistics.median(stays) if stays else float("nan"),
        "longest_ms": 1000 * max(stays, default=float("nan")),
        "call_us": 1e6 * statistics.median(calls),
    }


class Load:
    """Matrix products on the first GPU; nothing without CUDA."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            self.torch: Any = None
            return
        self.torch = torch if torch.cuda.is_available() else None
        if self.torch is not None:
            self.matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)

    def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.matrix @ self.matrix
            self.torch.cuda.synchronize()


def beside_power(counter: EnergyCounter, uuid: str, work: Any, seconds: float) -> dict[str, float]:
    """Return the counter's watts and those of readings of power, while something is done."""
    import threading

    nvml: Any = importlib.import_module("pynvml")
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    power: list[tuple[float, float]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            power.append((time.perf_counter(), nvml.nvmlDeviceGetPowerUsage(handle) / 1000))

    thread = threading.Thread(target=watch)
    thread.start()
    begun, before = time.perf_counter(), counter.read_uj()
    work(seconds)
    spent, elapsed = counter.read_uj() - before, time.perf_counter() - begun
    done.set()
    thread.join()
    joules = sum(
        (later - at) * (watts + then) / 2
        for (at, watts), (later, then) in itertools.pairwise(power)
    )
    return {
        "counter_w": spent / 1e6 / elapsed,
        "power_w": joules / (power[-1][0] - power[0][0]),
        "seconds": elapsed,
    }


def waits_and_steps(load: Load, folder: Path) -> dict[str, Any]:
    """Wait for 1 s and compute for 1 s, and let iobench tell what either took."""
    with (
        iobench.record(folder / "run") as session,
        contextlib.closing(start_meter([session.run.path], energy=True, machine=False)),
    ):
        log = DeliveryLog(session, session.add_loader("own", "Sleeper", "sleeps"), epoch=0)
        for number in range(ROUNDS):
            log.ask(number)
            time.sleep(1)
            log.deliver(number, maker="consumer")
            load.run(1)
        log.ask()
        log.end()
    found = energy_of(Run(folder / "run").of_rank())
    gpu = None if found is None else found.kinds.get("gpu")
    if gpu is None or gpu.wait_j is None:
        return {"readable": False}
    return {
        "readable": True,
        "total_j": gpu.total_j,
        "wait_j": gpu.wait_j,
        "compute_j": gpu.total_j - gpu.wait_j,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    every = open_counters(os.environ)
    counters = [each for each in every.counters if each.source.kind == "gpu"]
    for counter in counters:
        print(f"{counter.source.by}: {counter.source.name} ({counter.source.title})")
    for each in every.unreadable:
        print(f"{each.kind}: not readable: {each.reason}")
    if not counters:
        return 1
    first = counters[0]
    document: dict[str, Any] = {"counter": renewals(first, asked.seconds)}
    load = Load()
    failed = []
    has_power = first.source.by == "NVML"
    if has_power:
        uuid = first.source.name.partition(":")[2]
        document["idle"] = beside_power(first, uuid, time.sleep, asked.seconds)
    if load.torch is None:
        print("no load: torch with CUDA is not there")
    else:
        load.run(1)
        if has_power:
            told = document["load"] = beside_power(first, uuid, load.run, asked.seconds)
            if abs(told["counter_w"] / told["power_w"] - 1) > TOLERANCE:
                failed.append("the counter and the readings of power differ")
        with tempfile.TemporaryDirectory() as folder:
            run = document["run"] = waits_and_steps(load, Path(folder))
        if not run["readable"] or run["compute_j"] <= run["wait_j"]:
            failed.append("computing took no more than waiting")
        elif abs(run["wait_j"] + run["compute_j"] - run["total_j"]) > 1e-3:
            failed.append("waits and the rest are not the whole")
    every.close()
    print(json.dumps(document, indent=1))
    for what in failed:
        print(f"FAILED: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
