"""What a span costs, beside its parts and beside other timers: python tests/benchmarks/spans.py.

All rows are measured in turn, round after round, so that other load falls on all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from iobench.cpus import available_cpus
from iobench.recording import span_file as layout
from iobench.recording.activation import activate
from iobench.recording.clocks import SYSTEM_CLOCK, now_ns
from iobench.recording.kinds import Kind
from iobench.recording.process_io import read_process_io
from iobench.recording.recorder import Recorder
from iobench.recording.stages import stage

N_PER_ROUND = 1000
GOALS_NS = {
    "emit, times given": 350,
    "light span": 600,
    "light span, entered and left only": 350,
    "full span": 2000,
    "stage, nothing recorded": 200,
}


class TimeType(enum.Enum):
    """Keys of the Deep500 timer that MAELSTROM scripts use."""

    BATCH = enum.auto()
    IO = enum.auto()


class Deep500StyleTimer:
    """Durations per key in lists, float seconds, no timestamps kept, one process only."""

    def __init__(self) -> None:
        self.started: dict[TimeType, float] = {}
        self.times: dict[TimeType, list[float]] = {key: [] for key in TimeType}

    def start(self, key: TimeType) -> None:
        if key in self.started:
            raise RuntimeError(f"{key} is being timed already")
        self.started[key] = time.perf_counter()

    def end(self, key: TimeType) -> None:
        end = time.perf_counter()
        if key not in self.started:
            raise RuntimeError(f"{key} is not being timed")
        self.times[key].append(end - self.started.pop(key))


naive_spans: list[tuple[str, int, int]] = []


@contextlib.contextmanager
def naive_timer(name: str) -> Iterator[None]:
    """The timer most scripts start with."""
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        naive_spans.append((name, start_ns, time.perf_counter_ns()))


def work(recorder: Recorder) -> dict[str, Callable[[], None]]:
    """Return what is measured: each does its thing ``N_PER_ROUND`` times."""
    buffer = bytearray(layout.RECORD_NBYTES)
    pack_into = layout.SPAN.pack_into
    prepared_into = layout.PREPARED_SPAN.pack_into
    position, description = bytes(layout.POSITION.size), bytes(layout.DESCRIPTION.size)
    timer = Deep500StyleTimer()
    start_ns, rounds = now_ns(), range(N_PER_ROUND)
    read, emit, span, full_span = Kind.READ, recorder.emit, recorder.span, recorder.full_span
    cpu_ns = SYSTEM_CLOCK.cpu_ns
    kept = span(read)

    def loop() -> None:
        for _ in rounds:
            pass

    def clock_read() -> None:
        for _ in rounds:
            now_ns()

    def cpu_clock_read() -> None:
        for _ in rounds:
            cpu_ns()

    def pack() -> None:
        for _ in rounds:
            pack_into(buffer, 0, start_ns, start_ns, -1, -1, -1, -1, -1, 0, 0, 2, 0, 1, 3)

    def pack_prepared() -> None:
        for _ in rounds:
            prepared_into(buffer, 0, start_ns, start_ns, -1, -1, position, description, 3)

    def emitted() -> None:
        for _ in rounds:
            emit(read, start_ns, start_ns)

    def light() -> None:
        for _ in rounds:
            with span(read):
                pass

    def light_inside() -> None:
        for _ in rounds:
            with kept:
                pass

    def light_labelled() -> None:
        for _ in rounds:
            with span(read, "header", nbytes=5):
                pass

    def full() -> None:
        for _ in rounds:
            with full_span(read):
                pass

    def recorded() -> None:
        with activate(recorder):
            for _ in rounds:
                with stage("augment"):
                    pass

    def idle() -> None:
        for _ in rounds:
            with stage("augment"):
                pass

    def io() -> None:
        for _ in rounds:
            read_process_io()

    def deep500() -> None:
        for _ in rounds:
            timer.start(TimeType.IO)
            timer.end(TimeType.IO)
        timer.times[TimeType.IO].clear()

    def naive() -> None:
        for _ in rounds:
            with naive_timer("read"):
                pass
        naive_spans.clear()

    return {
        "empty loop (taken off all rows below)": loop,
        "clock read": clock_read,
        "thread CPU time read": cpu_clock_read,
        "pack_into, 13 fields": pack,
        "pack_into, prepared": pack_prepared,
        "emit, times given": emitted,
        "light span, entered and left only": light_inside,
        "light span": light,
        "light span, label and bytes": light_labelled,
        "full span": full,
        "stage, recorded": recorded,
        "stage, nothing recorded": idle,
        "/proc/self/io": io,
        "Deep500-style timer": deep500,
        "contextlib timer": naive,
    }


def measured_ns(recorder: Recorder, n_rounds: int) -> dict[str, list[float]]:
    """Return the cost of each thing in each round, the rows interleaved."""
    rows = work(recorder)
    costs: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(n_rounds):
        for name, run in rows.items():
            start_ns = now_ns()
            run()
            costs[name].append((now_ns() - start_ns) / N_PER_ROUND)
    return costs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--directory", type=Path, help="where the span file lies")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        Recorder(Path(directory), role="benchmark") as recorder,
    ):
        costs = measured_ns(recorder, arguments.rounds)
        lost = recorder.lost
    empty_ns = statistics.median(costs.pop("empty loop (taken off all rows below)"))
    print(
        f"Python {platform.python_version()} ({platform.python_compiler()}), "
        f"{available_cpus()} cores, {platform.machine()}, "
        f"{arguments.rounds} rounds of {N_PER_ROUND}, lost spans {lost}"
    )
    print(f"{'ns each':36} {'median':>8} {'min':>8} {'p90':>8} {'goal':>8}")
    for name, rounds in costs.items():
        rounds.sort()
        figures = (statistics.median(rounds), rounds[0], rounds[int(0.9 * len(rounds))])
        goal = str(GOALS_NS.get(name, ""))
        print(f"{name:36} " + " ".join(f"{ns - empty_ns:8.0f}" for ns in figures) + f" {goal:>8}")


if __name__ == "__main__":
    main()
