"""What reading counters of energy costs: python tests/benchmarks/energy_reader.py.

First what this machine has, and why the rest cannot be read. Then the CPU time of one reading of
all counters, its line in the file included, by the clock of the thread that reads: of the machine's
own counters if there are any, and of files that stand in for RAPL's, which the kernel answers
faster than a register of a processor (``--packages`` of them, two files each). A share of one CPU
is at ten readings a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.energy_counters import CounterRoots, FoundCounters
from iobench.recording.energy_reader import PERIOD_NS, EnergyReader, find_counters

READINGS = 2000
LAPS = 5


def stand_in(root: Path, packages: int) -> CounterRoots:
    """Write the files that a machine with so many processors has."""
    for number in range(packages):
        for name, title in ((f"intel-rapl:{number}", f"package-{number}"), ("dram", "dram")):
            package = root / "powercap" / f"intel-rapl:{number}"
            folder = package if name != "dram" else package.with_name(f"{package.name}:0")
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"{title}\n")
            (folder / "energy_uj").write_text("123456789\n")
            (folder / "max_energy_range_uj").write_text("262143328850\n")
    return CounterRoots(root / "powercap", *[root / "none"] * 3)


def cost_us(found: FoundCounters, folder: Path) -> tuple[float, float]:
    """Return the median CPU time of a reading in us, and the bytes that it writes."""
    path = folder / "readings"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
    reader = EnergyReader([file], found, clock=SYSTEM_CLOCK, period_ns=PERIOD_NS)
    begun = path.stat().st_size
    laps = []
    for _ in range(LAPS):
        start = time.thread_time_ns()
        for _ in range(READINGS):
            reader.read()
        laps.append((time.thread_time_ns() - start) / READINGS / 1000)
    nbytes = (path.stat().st_size - begun) / READINGS / LAPS
    os.close(file)
    found.close()
    return statistics.median(laps), nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packages", type=int, nargs="+", default=[1, 2, 8])
    asked = parser.parse_args()
    here = find_counters()
    print("this machine:")
    for counter in here.counters:
        print(f"  {counter.source.by}: {counter.source.name} ({counter.source.title})")
    for each in here.unreadable:
        print(f"  {each.kind}: not readable: {each.reason}")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        if here.counters:
            found[f"{len(here.counters)} of this machine"] = cost_us(here, Path(folder))
        for packages in asked.packages:
            root = Path(folder) / str(packages)
            counters = find_counters({}, roots=stand_in(root, packages))
            name = f"{len(counters.counters)} stand-in files"
            found[name] = cost_us(counters, root)
    for name, (cost, nbytes) in found.items():
        share = cost * 1000 / PERIOD_NS
        print(
            f"{name}: {cost:.1f} us of CPU time a reading, {share:.3%} of one CPU; "
            f"{nbytes:.0f} B, {nbytes * 36_000 / 1e6:.1f} MB an hour"
        )
    print(json.dumps({name: {"cpu_us": cost, "nbytes": n} for name, (cost, n) in found.items()}))


if __name__ == "__main__":
    main()
