"""Dates of an anemoi-datasets store, ours beside its own: python tests/benchmarks/anemoi_reads.py.

Runs where anemoi-datasets is installed beside iobench (it pins zarr 2: an environment of its own).
Samples take turns in random order, the page cache is warm; medians, and the quotient of means.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets" / "support"))

import anemoi_stand_in

from iobench.datasets.anemoi_store import anemoi_dataset
from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator

LAYOUTS: dict[str, dict[str, Any]] = {
    "large": {
        "n_dates": 44,
        "variables": tuple(f"v{number}" for number in range(50)),
        "field_shape": (192, 210),
    },
    "small": {"n_dates": 1200},
}


def main() -> None:
    """Print a line for each layout and way of asking."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in LAYOUTS.items():
            path = Path(folder, f"{name}.zarr")
            anemoi_stand_in.write_anemoi_store(path, **layout)
            compare(path, arguments.rounds)


def compare(path: Path, rounds: int) -> None:
    """Time both readers over one store."""
    from anemoi.datasets import open_dataset  # in an environment of its own

    ours = anemoi_dataset(path)
    locator = FileLocator(cache_dir=path.parent)
    index = ours.samples(ours.files(locator), locator)
    theirs = open_dataset(str(path))
    ways: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
        "one date": (
            lambda number: make_sample(ours, index.where[number]),
            lambda number: theirs[number],
        ),
        "window of 3": (
            lambda number: [make_sample(ours, index.where[number + step]) for step in range(3)],
            lambda number: theirs[number : number + 3],
        ),
    }
    for what, pair in ways.items():
        spent: tuple[list[float], list[float]] = ([], [])
        order = list(range(len(index) - 2))
        for round_ in range(rounds):
            random.Random(round_).shuffle(order)
            for turn, number in enumerate(order):
                for who in (0, 1) if turn % 2 else (1, 0):
                    began = time.perf_counter()
                    pair[who](number)
                    spent[who].append(time.perf_counter() - began)
        own, peer = (statistics.median(times) for times in spent)
        print(
            f"{path.stem}, {index.spec.nbytes / 1e6:.2f} MB a date, {what}: "
            f"iobench {1 / own:.1f}/s, open_dataset {1 / peer:.1f}/s, "
            f"ratio of medians {peer / own:.2f}, of means {sum(spent[1]) / sum(spent[0]):.2f}"
        )


if __name__ == "__main__":
    main()
