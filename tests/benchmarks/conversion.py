"""Conversions beside other ways, in turns: python tests/benchmarks/conversion.py.

    conversion.py                      ten chunkings (conversion_sources.LAYOUTS), a table for each
                                       and one of ratios against the best of the others
    conversion.py --rechunker PYTHON   with rechunker, in the environment of that interpreter: it
                                       needs zarr<3, xarray, netCDF4, dask
    conversion.py --sources columns    of this one
    conversion.py --linear --sizes 0.5,1,2,4,8    cost and memory by GB of the source
    conversion.py --random 10 --seed 1            chunkings nobody tuned to, beside plain xarray,
                                                  and what --dry-run said of each

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

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent / "support"))

from conversion_contenders import CONTENDERS
from conversion_sources import (
    LAYOUTS,
    random_layout,
    read_layout,
    remove_source,
    write_source,
)

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
LINEAR_GOAL = 0.15
"""How far a size may lie beside the line through all of them."""
FORECAST_GOAL = 1.5
TIMEOUT_S = 300


@dataclass(frozen=True)
class Turn:
    """One conversion of one contender."""

    seconds: float
    mb_per_s: float
    cpu_s_per_gb: float
    growth_nbytes: int
    told: dict[str, Any]


INTERPRETERS: dict[str, str] = {}
"""Of contenders that need an environment of their own."""


def turn(name: str, source: Path, memory_nbytes: int) -> Turn | str:
    """Run one contender in a process of its own; return the last line of an error."""
    script = Path(__file__).with_name("conversion_contenders.py")
    python = INTERPRETERS.get(name, sys.executable)
    command = [python, str(script), name, str(source), str(memory_nbytes)]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT_S} s"
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or [f"exit {ran.returncode}"])[-1][:100]
    said = json.loads(ran.stdout.splitlines()[-1])
    nbytes = read_layout(source).nbytes
    return Turn(
        said["seconds"],
        nbytes / 1e6 / said["seconds"],
        said["cpu_s"] / nbytes * 1e9,
        said["growth_nbytes"],
        said["told"],
    )


class Turns:
    """What contenders took for one source, turn by turn."""

    def __init__(self, source: Path, names: Sequence[str], memory_nbytes: int) -> None:
        self.source, self.memory_nbytes = source, memory_nbytes
        kind = read_layout(source).kind
        self.found: dict[str, list[Turn]] = {n: [] for n in names if kind in CONTENDERS[n][1]}
        self.failed: dict[str, str] = {}

    def take(self, rounds: int) -> Turns:
        """Let all take so many turns, another one first each time."""
        names = list(self.found)
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if name in self.failed:
                    continue
                found = turn(name, self.source, self.memory_nbytes)
                if isinstance(found, str):
                    self.failed[name] = found
                    continue
                self.found[name].append(found)
                said = f"{self.source.name}, {name}: {found.mb_per_s:.0f} MB/s"
                print(said, file=sys.stderr, flush=True)
        return self

    def rate(self, name: str) -> float | None:
        """Return the median rate; None of one that did not run, or failed."""
        if name in self.failed or not self.found.get(name):
            return None
        return statistics.median(each.mb_per_s for each in self.found[name])

    def ratio(self, name: str, other: str, of: str = "mb_per_s") -> float | None:
        """Return the median of one's figure over another one's, round by round."""
        if self.rate(name) is None or self.rate(other) is None:
            return None
        pairs = zip(self.found[name], self.found[other], strict=True)
        return statistics.median(getattr(a, of) / getattr(b, of) for a, b in pairs)

    def best_peer(self, of: str = "mb_per_s") -> str | None:
        """Return the other with the highest rate, or of the least CPU time."""
        medians = {
            name: statistics.median(getattr(each, of) for each in self.found[name])
            for name in PEERS
            if self.rate(name) is not None
        }
        best = max if of == "mb_per_s" else min
        return best(medians, key=medians.__getitem__, default=None)

    def summary(self) -> str:
        """Return a row: how many times as fast, and for how much CPU time, as the best others."""
        cells = [f"{self.source.stem:12}"]
        fastest, thriftiest = self.best_peer(), self.best_peer("cpu_s_per_gb")
        for name in (DEFAULT, BOUNDED):
            if fastest is None or thriftiest is None or self.rate(name) is None:
                return f"{cells[0]} not known"
            pairs = zip(self.found[name], self.found[fastest], strict=True)
            each = sorted(a.mb_per_s / b.mb_per_s for a, b in pairs)
            cpu = self.ratio(name, thriftiest, "cpu_s_per_gb") or 0
            cells.append(f"{statistics.median(each):7.2f} ({each[0]:.2f}-{each[-1]:.2f}){cpu:7.2f}")
        found = self.found[DEFAULT]
        counted = statistics.median(each.told["stages_s"]["statistics"] for each in found)
        cells.append(f"{counted / read_layout(self.source).nbytes * 1e9:8.2f}")
        growth = max(each.growth_nbytes - 100e6 for each in self.found[BOUNDED])
        cells.append(f"{growth / self.memory_nbytes:10.2f}  {fastest}, {thriftiest}")
        return "".join(cells)

    def print(self) -> None:
        """Print rates, CPU time and memory of all."""
        print(
            f"{'':24}{'MB/s':>8}{'lowest':>9}{'highest':>9}{'CPU s/GB':>10}{'growth, MB':>12}"
            f"{'held to':>9}{'read, MB':>10}"
        )
        for name, turns in self.found.items():
            if name in self.failed:
                print(f"{name:24} failed: {self.failed[name]}")
                continue
            rates = [each.mb_per_s for each in turns]
            told = turns[-1].told
            more = [
                f"{told[k] / 1e6:.0f}" if k in told else "" for k in ("memory_nbytes", "in_nbytes")
            ]
            print(
                f"{name:24}{statistics.median(rates):8.0f}{min(rates):9.0f}{max(rates):9.0f}"
                f"{statistics.median(each.cpu_s_per_gb for each in turns):10.2f}"
                f"{max(each.growth_nbytes for each in turns) / 1e6:12.0f}{more[0]:>9}{more[1]:>10}"
            )

    def print_goals(self) -> None:
        """Print what is to be reached, and what was."""
        limit, peer = self.rate(LIMIT), self.best_peer()
        for name in (DEFAULT, BOUNDED):
            rate = self.rate(name)
            if rate is None:
                continue
            if peer is not None:
                against = f"{name} against {peer}"
                print_goal(against, self.ratio(name, peer) or 0, PEER_GOAL, "times")
            if limit is not None and limit * LIMIT_GOAL < MB_GOAL:
                print_goal(
                    f"{name}, of the decoder's {limit:.0f} MB/s",
                    self.ratio(name, LIMIT) or 0,
                    LIMIT_GOAL,
                )
            else:
                print_goal(f"{name}, MB/s", rate, MB_GOAL)
            worst = max(e.growth_nbytes / e.told["memory_nbytes"] for e in self.found[name])
            print_goal(f"{name}, memory over --memory", worst, RSS_GOAL, is_most=True)


def print_goal(
    what: str, reached: float, goal: float, unit: str = "", *, is_most: bool = False
) -> None:
    """Print one goal beside what was reached."""
    fine = reached <= goal if is_most else reached >= goal
    bound = "at most" if is_most else "at least"
    said = "reached" if fine else "MISSED"
    print(f"  {what:56}{reached:8.2f} {unit:6} goal: {bound} {goal:g}   {said}")


def run_tables(arguments: argparse.Namespace, folder: Path) -> None:
    """Print a table for each source, and one of ratios."""
    rows = []
    for name in arguments.sources:
        layout = LAYOUTS[name].resized(arguments.size * 1_000_000)
        source = write_source(folder, name, layout)
        print(f"\n{name}: {layout}\n  {layout.nbytes / 1e6:.0f} MB, {arguments.rounds} rounds")
        turns = Turns(source, arguments.only, arguments.memory << 20).take(arguments.rounds)
        turns.print()
        turns.print_goals()
        rows.append(turns.summary())
        remove_source(source)
    print(
        f"\n{'':12}{'times as fast as the fastest other (range), CPU time over the least of':72}\n"
        f"{'':12}{'by default':>25}{'--memory':>25}{'statistics, s/GB':>18}"
        " (growth - 100 MB) / memory"
    )
    print("\n".join(rows))


def run_linear(arguments: argparse.Namespace, folder: Path) -> None:
    """Print what ours takes for sources of several sizes, and how far that is from a line."""
    for name in arguments.sources:
        taken: dict[float, dict[str, list[Turn]]] = {}
        for gigabytes in arguments.sizes:
            layout = LAYOUTS[name].resized(round(gigabytes * 1e9))
            source = write_source(folder, name, layout)
            turns = Turns(source, arguments.only, arguments.memory << 20).take(arguments.rounds)
            taken[layout.nbytes / 1e9] = turns.found
            print(f"\n{name}, {layout.nbytes / 1e9:.2f} GB")
            turns.print()
            remove_source(source)
        for contender in arguments.only:
            points = [(size, each[contender]) for size, each in taken.items() if each[contender]]
            print_line(f"{name}, {contender}", points)


def print_line(what: str, points: Sequence[tuple[float, list[Turn]]]) -> None:
    """Print the line through the CPU seconds and times by size, and how far they lie from it."""
    if len(points) < 3:
        print(f"  {what}: a line needs three sizes")
        return
    sizes = np.array([size for size, _ in points])
    for of, values in (
        ("CPU s", [statistics.median(t.cpu_s_per_gb for t in turns) * s for s, turns in points]),
        ("s", [statistics.median(t.seconds for t in turns) for _, turns in points]),
    ):
        # Errors grow with the size, so each point counts by its share of itself.
        slope, start = np.polyfit(sizes, values, 1, w=1 / np.array(values))
        beside = np.abs(np.array(values) / (slope * sizes + start) - 1).max()
        print(f"  {what}: {slope:.2f} {of}/GB, {start:.2f} {of} at the start")
        print_goal(f"{what}, {of}: farthest from the line", beside, LINEAR_GOAL, is_most=True)


def run_random(arguments: argparse.Namespace, folder: Path) -> None:
    """Print ours beside plain xarray over random chunkings, and what was predicted."""
    rng = np.random.default_rng(arguments.seed)
    slower, misses = [], []
    names = [DEFAULT, "iobench_forecast", "xarray_as_it_comes", LIMIT]
    for number in range(arguments.random):
        layout = random_layout(rng, arguments.size * 1_000_000)
        source = write_source(folder, f"random-{number}", layout)
        turns = Turns(source, names, arguments.memory << 20).take(arguments.rounds)
        print(f"\n{number}: {layout}, {layout.nbytes / 1e6:.0f} MB")
        turns.print()
        ratio = turns.ratio(DEFAULT, "xarray_as_it_comes")
        if ratio is None or ratio < 1:
            slower.append(f"{number}: {layout}: {'failed' if ratio is None else f'{ratio:.2f}'}")
        misses += print_forecast(number, turns)
        remove_source(source)
    print(f"\n{len(slower)} of {arguments.random} chunkings slower than plain xarray (goal: none)")
    print("\n".join(slower))
    print(f"{len(misses)} predictions off by more than {FORECAST_GOAL} times (goal: none)")
    print("\n".join(misses))


def print_forecast(number: int, turns: Turns) -> list[str]:
    """Print what --dry-run said beside what was; return what it missed."""
    if turns.rate("iobench_forecast") is None or turns.rate(DEFAULT) is None:
        return [f"{number}: failed"]
    said = turns.found["iobench_forecast"]
    got = turns.found[DEFAULT]
    pairs = {
        "s": (
            statistics.median(each.told["convert_s"] for each in said),
            statistics.median(each.told["wall_s"] for each in got),
        ),
        "MB read": (said[0].told["in_nbytes"] / 1e6, got[0].told["in_nbytes"] / 1e6),
        "MB written": (said[0].told["out_nbytes"] / 1e6, got[0].told["out_nbytes"] / 1e6),
    }
    missed = []
    for what, (predicted, found) in pairs.items():
        times = predicted / found if found else float("inf")
        far = not 1 / FORECAST_GOAL <= times <= FORECAST_GOAL
        line = f"{what}: predicted {predicted:.2f}, obtained {found:.2f}, {times:.2f} times"
        print(f"  {line}{'   MISSED' if far else ''}")
        missed += [f"{number}: {line}"] if far else []
    return missed


def main() -> None:
    """Write sources, let all take turns, print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=900, help="of a source, decoded, in MB")
    parser.add_argument("--memory", type=int, default=256, help="of those that take one, in MiB")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--rechunker", metavar="PYTHON", help="interpreter that has rechunker")
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--sizes", default="0.5,1,2", help="in GB, for --linear")
    parser.add_argument("--random", type=int, metavar="N", default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary one by default")
    arguments = parser.parse_args()
    arguments.sizes = [float(size) for size in arguments.sizes.split(",")]
    if arguments.only is None:
        peers = [name for name in PEERS if name != "rechunker" or arguments.rechunker]
        arguments.only = [DEFAULT, BOUNDED] + ([] if arguments.linear else [*peers, LIMIT])
    if arguments.rechunker:
        INTERPRETERS["rechunker"] = arguments.rechunker
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.random:
            run_random(arguments, Path(folder))
        elif arguments.linear:
            run_linear(arguments, Path(folder))
        else:
            run_tables(arguments, Path(folder))


if __name__ == "__main__":
    main()
