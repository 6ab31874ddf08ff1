"""A tracer's calls put on the profile's clock: python tests/benchmarks/placing.py.

Makes 100,000 stages and as many calls of one process (named: each stage names one of 1,000 files;
crowded: a stage every 10 us; unrelated: calls that fit nowhere, the dearest case) and prints CPU
seconds and the most memory of `place_segments`. ``--calls 1000000`` is ten times as much.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from iobench.analysis.placement.placing import place_segments
from iobench.profiles.contents import PROFILE_DTYPE, Process, Profile
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.storage.storage_trace import SEGMENT_DTYPE, ProcessTrace, StorageTrace

US = 1_000
WALL = 1_795_000_000_000_000_000
OFFSET = -2_345_678
N_FILES = 1_000
CASES = {
    "named": {"named": True, "period": 200 * US, "related": True},
    "unnamed": {"named": False, "period": 200 * US, "related": True},
    "named, crowded": {"named": True, "period": 10 * US, "related": True},
    "unnamed, crowded": {"named": False, "period": 10 * US, "related": True},
    "unnamed, unrelated": {"named": False, "period": 200 * US, "related": False},
}


def run_of(
    n_calls: int, *, named: bool, period: int, related: bool
) -> tuple[Profile, StorageTrace]:
    """Return a profile of as many stages as calls, and the log of the calls."""
    random = np.random.default_rng(0)
    start = np.cumsum(random.integers(period // 2, period * 3 // 2, n_calls))
    length = random.integers(period // 8, period // 4, n_calls)
    files = random.integers(0, N_FILES, n_calls)
    spans = np.zeros(n_calls, PROFILE_DTYPE)
    for name in ("nbytes", "cpu_ns", "sample", "batch", "epoch"):
        spans[name] = -1
    spans["kind"] = Kind.READ
    spans["start_ns"], spans["end_ns"] = start, start + length
    names = tuple(f"/data/{number:04d}.npy" for number in range(N_FILES))
    if named:
        spans["detail"] = files + 1
    segments = np.zeros(n_calls, SEGMENT_DTYPE)
    segments["file"], segments["nbytes"] = files, 4096
    begin = start + (random.random(n_calls) * 0.4 * length).astype(np.int64) - OFFSET
    if not related:
        begin = np.sort(random.integers(start[0], start[-1], n_calls))
    segments["start_ns"] = begin + WALL
    segments["end_ns"] = segments["start_ns"] + length // 2
    anchors = (Anchor(0, WALL),)
    worker = Process("worker", 0, 0, 77, "here", "boot", anchors, 0, True, 0, ("MainThread",))
    log = ProcessTrace(
        Path("a.darshan"), 77, host="here", start_ns=WALL, end_ns=WALL + int(start[-1]),
        files=names, segments=segments,
    )  # fmt: skip
    return Profile(Path("run"), {}, (worker,), spans, ("", *names), ()), StorageTrace((log,))


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    n_calls = parser.parse_args().calls
    for name, case in CASES.items():
        profile, trace = run_of(n_calls, **case)  # type: ignore[arg-type]
        begin = time.process_time()
        found = place_segments(profile, trace).processes[0]
        spent = time.process_time() - begin
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        state = f"offset {found.offset_ns - OFFSET:+d} ns" if found.matched else "no match"
        print(
            f"{name:20} {spent:6.2f} s CPU {most:6.0f} MB  {found.n_placed:,} of {n_calls:,} "
            f"placed, {state}"
        )


if __name__ == "__main__":
    main()
