"""Time to read Darshan logs: python tests/benchmarks/darshan_logs.py [--log LOG].

Reads a log of 100,000 segments (made here, or one of your own), a job of 1,000 ranks with 100
segments each, and 100 logs of 1,000 segments, as ``iobench report --darshan`` does; beside it what
PyDarshan's own ``DarshanReport`` takes for the first. Prints CPU seconds of all processes, the best
of three, and the most memory that one of them took.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "storage" / "support"))

from made_logs import MadeLog, reads_in_order

from iobench.storage.darshan_reader import read_darshan_logs

ROUNDS = 3
THEIRS = (
    "import darshan, sys; r = darshan.DarshanReport(sys.argv[1], read_all=False); "
    "r.mod_read_all_dxt_records('DXT_POSIX'); "
    "print(sum(len(each[kind]) for each in r.records['DXT_POSIX'].to_df() "
    "for kind in ('read_segments', 'write_segments')))"
)
NOTHING = "import iobench.storage, darshan"


def make_logs(folder: Path) -> dict[str, list[Path]]:
    """Write the logs that are read."""
    one = MadeLog([b"/data/a.nc"])
    one.count(0, OPENS=1, READS=100_000)
    one.trace(0, reads_in_order(100_000))
    ranks = MadeLog([b"/data/a.nc"], n_ranks=1000)
    ranks.count(0, rank=-1, OPENS=1000, READS=100_000)
    for rank in range(1000):
        ranks.trace(0, reads_in_order(100), rank)
    many = []
    for worker in range(100):
        log = MadeLog([b"/data/%d.npy" % file for file in range(500)])
        log.start_ns += worker
        for file in range(500):
            log.count(file, OPENS=1, READS=2)
            log.trace(file, reads_in_order(2))
        many.append(log.write(folder / f"me_python_id1-{worker + 2}_1-2-3-4_5.darshan"))
    return {
        "100,000 segments": [one.write(folder / "one.darshan")],
        "1,000 ranks": [ranks.write(folder / "ranks.darshan")],
        "100 logs, 500 files each": many,
    }


def cpu_s() -> float:
    """Return CPU seconds of this process and of its children that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def measured(logs: list[Path]) -> str:
    """Return what reading logs took, best of some rounds."""
    best = []
    for _ in range(ROUNDS):
        started, wall = cpu_s(), time.perf_counter()
        trace = read_darshan_logs(logs)
        best.append((cpu_s() - started, time.perf_counter() - wall))
    n_segments = sum(len(each.segments) for each in trace.processes)
    assert not trace.refused, trace.refused
    cpu, wall = min(best)
    found = f"{len(trace.processes):5} processes {n_segments:8} segments"
    return f"{cpu:6.2f} CPU-s {wall:6.2f} s  {found}"


def measured_of_child(code: str, *arguments: str) -> str:
    """Return what a Python command took, best of some rounds."""
    best = []
    for _ in range(ROUNDS):
        started = cpu_s()
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=sys.stderr)
        best.append(cpu_s() - started)
    return f"{min(best):6.2f} CPU-s"


def main() -> None:
    """Make the logs, read them, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--log", type=Path, help="a Darshan log to read instead")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs = {chosen.log.name: [chosen.log]} if chosen.log else make_logs(Path(folder))
        print(f"{'import alone':28} {measured_of_child(NOTHING)}")
        for name, paths in logs.items():
            print(f"{name:28} {measured(paths)}")
        first = next(iter(logs.values()))[0]
        print(f"{'DarshanReport of the first':28} {measured_of_child(THEIRS, str(first))}")
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    most = [resource.getrusage(who).ru_maxrss for who in whose]
    print(f"most memory: {most[0] / 1024:.0f} MiB here, {most[1] / 1024:.0f} MiB in a child")


if __name__ == "__main__":
    main()
