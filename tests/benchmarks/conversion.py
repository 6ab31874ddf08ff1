"""Conversions beside other ways, in turns: python tests/benchmarks/conversion.py.

    conversion.py                      ten chunkings (conversion_sources.LAYOUTS), a table for each
                                       and one of ratios against the best of the others
    conversion.py --rechunker PYTHON   with rechunker, in the environment of that interpreter: it
                                       needs zarr<3, xarray, netCDF4, dask
    conversion.py --sources columns    of this one

Contenders take turns, each in a process of its own; the source is in the page cache. Rates are
decoded bytes over the time from opening the source to the finished target. Ours is what ``iobench
convert`` does, by its defaults and with ``--memory``; it syncs what it wrote, checks what it read,
and keeps checksums and statistics, the others do not: the column "statistics" is what those take of
our threads' time, checksums take 0.1 s/GB. ``limit_decoder`` reads and decodes each chunk once in
as many threads as there are CPUs, and writes nothing. Memory that is touched for the first time
counts: in a virtual machine that is given it only then, up to 3 CPU seconds per GB of it, which
weighs less the longer the source is. Needs isal, zarr, xarray, netCDF4, h5py, cfgrib.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

from conversion_contenders import CONTENDERS
from conversion_sources import LAYOUTS, read_layout, remove_source, write_source
from harness import print_goal, print_table, rotated, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT, BOUNDED, LIMIT = "iobench_zarr", "iobench_zarr_bounded", "limit_decoder"
PEERS = (
    "xarray_samples",
    "xarray_samples_threads",
    "slabs_by_hand",
    "eccodes_by_hand",
    "rechunker",
)
PEER_GOAL = 2.0
MB_GOAL = 500
LIMIT_GOAL = 0.9
"""At least so many MB/s, or this share of what the decoder does."""
RSS_GOAL = 1.3
TIMEOUT_S = 300
MEMORY_AND_INPUT = ("memory_nbytes", "in_nbytes")


@dataclass(frozen=True)
class Turn:
    """One conversion of one contender."""

    mb_per_s: float
    cpu_s_per_gb: float
    growth_nbytes: int
    told: dict[str, Any]


def turn(name: str, source: Path, memory_nbytes: int, python: str) -> Turn | str:
    """Run one contender in a process of its own; return the last line of an error."""
    script = Path(__file__).with_name("conversion_contenders.py")
    command = [python, str(script), name, str(source), str(memory_nbytes)]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT_S} s"
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or [f"exit {ran.returncode}"])[-1][:100]
    said, nbytes = json.loads(ran.stdout.splitlines()[-1]), read_layout(source).nbytes
    rate, cpu_s = nbytes / 1e6 / said["seconds"], said["cpu_s"] / nbytes * 1e9
    return Turn(rate, cpu_s, said["growth_nbytes"], said["told"])


class Turns:
    """What contenders took for one source, turn by turn."""

    def __init__(self, source: Path, arguments: argparse.Namespace) -> None:
        self.source, self.memory_nbytes = source, arguments.memory << 20
        kind = read_layout(source).kind
        self.found: dict[str, list[Turn]] = {
            name: [] for name in arguments.only if kind in CONTENDERS[name][1]
        }
        self.failed: dict[str, str] = {}
        for number in range(arguments.rounds):
            for name in rotated(list(self.found), number):
                if name in self.failed:
                    continue
                python = arguments.rechunker if name == "rechunker" else sys.executable
                found = turn(name, source, self.memory_nbytes, python)
                if isinstance(found, str):
                    self.failed[name] = found
                    continue
                self.found[name].append(found)
                said = f"{source.name}, {name}: {found.mb_per_s:.0f} MB/s"
                print(said, file=sys.stderr, flush=True)

    def values(self, name: str, of: str = "mb_per_s") -> list[float]:
        """Return a figure of each turn; none of one that did not run, or failed."""
        if name in self.failed:
            return []
        return [getattr(each, of) for each in self.found.get(name, ())]

    def ratios(self, name: str, other: str, of: str = "mb_per_s") -> list[float]:
        """Return one's figure over another one's, round by round."""
        pairs = zip(self.values(name, of), self.values(other, of), strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def best_peer(self, of: str = "mb_per_s") -> str | None:
        """Return the other with the highest rate, or of the least CPU time."""
        medians = {n: statistics.median(found) for n in PEERS if (found := self.values(n, of))}
        best = max if of == "mb_per_s" else min
        return best(medians, key=medians.__getitem__, default=None)

    def summary(self) -> list[str]:
        """Return a row: how many times as fast, and for how much CPU time, as the best others."""
        fastest, thriftiest = self.best_peer(), self.best_peer("cpu_s_per_gb")
        cells = [self.source.stem]
        for name in (DEFAULT, BOUNDED):
            if fastest is None or thriftiest is None or not self.values(name):
                return [*cells, *["not known"] * (8 - len(cells))]
            cells.append(spread(self.ratios(name, fastest)))
            cpu = self.ratios(name, thriftiest, "cpu_s_per_gb")
            cells.append(f"{statistics.median(cpu):.2f}")
        counted = statistics.median(e.told["stages_s"]["statistics"] for e in self.found[DEFAULT])
        growth = max(each.growth_nbytes - 100e6 for each in self.found[BOUNDED])
        cells.append(f"{counted / read_layout(self.source).nbytes * 1e9:.2f}")
        return [*cells, f"{growth / self.memory_nbytes:.2f}", f"{fastest}, {thriftiest}"]

    def print(self) -> None:
        """Print rates, CPU time and memory of all; then what is to be reached, and what was."""
        rows = []
        for name in self.found:
            turns = self.found[name]
            if not self.values(name):
                rows.append([name, self.failed[name], "", "", "", ""])
                continue
            told = turns[-1].told
            rows.append([
                name,
                spread(self.values(name), ".0f"),
                f"{statistics.median(self.values(name, 'cpu_s_per_gb')):.2f}",
                f"{max(self.values(name, 'growth_nbytes')) / 1e6:.0f}",
                *(f"{told[k] / 1e6:.0f}" if k in told else "" for k in MEMORY_AND_INPUT),
            ])  # fmt: skip
        print_table(["", "MB/s", "CPU s/GB", "growth, MB", "held to", "read, MB"], rows)
        limit, peer = self.values(LIMIT), self.best_peer()
        for name in (DEFAULT, BOUNDED):
            if not (rates := self.values(name)):
                continue
            if peer is not None:
                ratio = statistics.median(self.ratios(name, peer))
                print_goal(f"{name} against {peer}, times", ratio, PEER_GOAL)
            if limit and statistics.median(limit) * LIMIT_GOAL < MB_GOAL:
                what = f"{name}, of the decoder's {statistics.median(limit):.0f} MB/s"
                print_goal(what, statistics.median(self.ratios(name, LIMIT)), LIMIT_GOAL)
            else:
                print_goal(f"{name}, MB/s", statistics.median(rates), MB_GOAL)
            worst = max(e.growth_nbytes / e.told["memory_nbytes"] for e in self.found[name])
            print_goal(f"{name}, memory over --memory", worst, RSS_GOAL, at_most=True)


def main() -> None:
    """Write sources, let all take turns, print a table for each and one of ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=900, help="of a source, decoded, in MB")
    parser.add_argument("--memory", type=int, default=256, help="of those that take one, in MiB")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--rechunker", metavar="PYTHON", help="interpreter that has rechunker")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one by default")
    arguments = parser.parse_args()
    if arguments.only is None:
        peers = [name for name in PEERS if name != "rechunker" or arguments.rechunker]
        arguments.only = [DEFAULT, BOUNDED, *peers, LIMIT]
    rows: list[Sequence[str]] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for name in arguments.sources:
            layout = LAYOUTS[name].resized(arguments.size * 1_000_000)
            source = write_source(Path(folder), name, layout)
            print(f"\n{name}: {layout}\n  {layout.nbytes / 1e6:.0f} MB, {arguments.rounds} rounds")
            turns = Turns(source, arguments)
            turns.print()
            rows.append(turns.summary())
            remove_source(source)
    print("\nTimes as fast as the fastest other (range), CPU time over the least")
    heads = ["", "by default", "CPU", "--memory", "CPU", "statistics, s/GB"]
    print_table([*heads, "(growth - 100 MB) / memory", "fastest, least CPU"], rows)


if __name__ == "__main__":
    main()
