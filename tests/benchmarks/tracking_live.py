"""What telling of epochs costs a training: python tests/benchmarks/tracking_live.py.

A loop of batches, some computing after each, is recorded and run in turns without and with
``live``, which tells Weights & Biases offline (no server is needed; of MLflow the
same process beside does the same work, and waits for the network besides). Told are: how long
``end_epoch()`` holds the loop up, the first time (a process is started) and later; what the loop's
time and CPU time lose by the process beside, which gives way but needs a CPU; how long the end is
held up; and the CPU time of the process beside, where most is its imports.

    --epochs 10 --batches 500 --step-us 2000     5,000 batches, 15,000 spans (the default)
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import iobench
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.tracking.live_tracking import live


def spin(until_ns: int) -> None:
    """Compute until then."""
    while time.perf_counter_ns() < until_ns:
        pass


def train(path: Path, *, told: bool, epochs: int, batches: int, step_us: int) -> dict[str, float]:
    """Train once; return what was measured, in seconds."""
    held: list[float] = []
    children_s = _children_s()
    with iobench.record(path) as recording:
        tracking = live(recording, wandb="benchmark" if told else False, wait_s=120)
        loader = recording.add_loader("torch", "a.Loader", "Samples", batch_size=1)
        recorder = recording.recorder
        begun, cpu = time.perf_counter(), time.process_time()
        for epoch in range(epochs):
            log = DeliveryLog(recording, loader, epoch=epoch)
            for _ in range(batches):
                number = recording.next_batch()
                log.ask(number)
                with recorder.span(Kind.READ):
                    spin(time.perf_counter_ns() + step_us * 100)
                log.deliver(number, nbytes=4000, maker="consumer")
                with recorder.span(Kind.FORWARD):
                    spin(time.perf_counter_ns() + step_us * 900)
            log.ask()
            log.end()
            before = time.perf_counter()
            tracking.end_epoch()
            held.append(time.perf_counter() - before)
        loop_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
        before = time.perf_counter()
        tracking.close()
        end_s = time.perf_counter() - before
    return {
        "loop": loop_s,
        "cpu": cpu_s,
        "first end_epoch": held[0],
        "later end_epoch": statistics.median(held[1:] or held),
        "longest later end_epoch": max(held[1:] or held),
        "end": end_s,
        "beside": _children_s() - children_s,
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--step-us", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"plain": [], "told": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
        for number in range(given.rounds):
            for arm in found:
                path = Path(folder) / f"{arm}-{number}"
                found[arm].append(
                    train(
                        path,
                        told=arm == "told",
                        epochs=given.epochs,
                        batches=given.batches,
                        step_us=given.step_us,
                    )
                )
    middle = {
        arm: {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        for arm, rounds in found.items()
    }
    if given.json:
        print(json.dumps(middle, indent=1))
        return
    n_batches = given.epochs * given.batches
    print(f"{given.epochs} epochs, {n_batches:,} batches; median of {given.rounds} rounds")
    for name in middle["plain"]:
        plain, told = (middle[arm][name] for arm in ("plain", "told"))
        print(f"  {name:24} plain {plain:10.6f} s  told {told:10.6f} s")


if __name__ == "__main__":
    main()
