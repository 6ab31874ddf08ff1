"""Samples of chunked files, ours beside plain xarray loops: python tests/benchmarks/chunk_cache.py.

Ten ways of cutting a grid into chunks, in order and shuffled, with all decoded chunks in memory and
with room for a quarter of them. Ours is ``open_dataset(...).loader(1)`` and, without threads,
``samples[i]``; beside it loops over ``xarray.open_dataset`` by netcdf4, by h5netcdf and with dask
chunks. With room for a quarter netCDF4 gets as much as we do, in equal parts for its variables,
which else is up to 64 MiB each. All take turns, epoch by epoch; milliseconds a sample, median and
range of the epochs after the first, which fills all caches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np
import xarray as xr

import iobench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = ("t", "u")
LEVELS, LAT, LON = 5, 91, 180


def chunkings(n_times: int) -> dict[str, tuple[tuple[int, ...] | None, int]]:
    """Return shape of the chunks (None: contiguous) and level of compression, by name."""
    whole = (LEVELS, LAT, LON)
    return {
        "contiguous": (None, 0),
        "6 x whole": ((6, *whole), 1),
        "6 x whole, not deflated": ((6, *whole), 0),
        "1 x whole": ((1, *whole), 1),
        "1 x whole, not deflated": ((1, *whole), 0),
        "24 x whole": ((24, *whole), 1),
        "all times x 1 x 13 x 20": ((n_times, 1, 13, 20), 1),
        "1 x 8192": ((1, 1, 46, 178), 1),
        "10 x 1 x 91 x 180": ((10, 1, LAT, LON), 1),
        "12 x 5 x 31 x 60": ((12, 5, 31, 60), 1),
    }


def write(path: Path, n_times: int, chunk: tuple[int, ...] | None, level: int) -> None:
    """Write two variables of smooth fields with noise."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(LEVELS, LAT, LON)).cumsum(-1)
    with netCDF4.Dataset(path, "w") as file:
        for name, length in zip(
            ("time", "level", "lat", "lon"), (n_times, LEVELS, LAT, LON), strict=True
        ):
            file.createDimension(name, length)
        for name in NAMES:
            made = file.createVariable(
                name, "f4", ("time", "level", "lat", "lon"), chunksizes=chunk,
                contiguous=chunk is None, zlib=bool(level), complevel=level or 4,
                shuffle=bool(level),
            )  # fmt: skip
            for start in range(0, n_times, 24):
                shape = (min(24, n_times - start), LEVELS, LAT, LON)
                made[start : start + shape[0]] = (base + rng.normal(size=shape)).round(2)


def loops(path: Path, n_times: int) -> dict[str, Callable[[Sequence[int], int], None]]:
    """Return what makes each sample of an order once, by name; each keeps its file open."""
    if room := os.environ.get("IOBENCH_CHUNK_CACHE"):
        netCDF4.set_chunk_cache(int(room) // len(NAMES), 4133, 0.75)
    samples = iobench.open_dataset(str(path), sample_dim="time")
    loaders = {shuffle: samples.loader(1, shuffle=shuffle) for shuffle in (False, True)}

    def ours(order: Sequence[int], epoch: int) -> None:
        for batch in loaders[order != sorted(order)]:
            assert len(batch[NAMES[0]]) == 1

    def ours_by_index(order: Sequence[int], epoch: int) -> None:
        for number in order:
            samples[number]

    def plain(data: Any) -> Callable[[Sequence[int], int], None]:
        def loop(order: Sequence[int], epoch: int) -> None:
            for number in order:
                one = data.isel(time=number)
                {name: one[name].values for name in NAMES}

        return loop

    found = {"iobench": ours, "iobench [i]": ours_by_index}
    for engine in ("netcdf4", "h5netcdf"):
        found[engine] = plain(xr.open_dataset(path, engine=engine))
    found["dask"] = plain(xr.open_dataset(path, engine="netcdf4", chunks={}))
    return found


def compare(path: Path, n_times: int, epochs: int, *, shuffled: bool) -> dict[str, list[float]]:
    """Return ms a sample of each loop in each epoch, the first one left out."""
    made = loops(path, n_times)
    spent: dict[str, list[float]] = {name: [] for name in made}
    rng = np.random.default_rng(1)
    for epoch in range(epochs + 1):
        order = rng.permutation(n_times).tolist() if shuffled else list(range(n_times))
        for name, loop in made.items():
            start = time.perf_counter()
            loop(order, epoch)
            if epoch:
                spent[name].append((time.perf_counter() - start) / n_times * 1e3)
    return spent


def line(name: str, spent: dict[str, list[float]]) -> str:
    """Return one row of the table: medians with ranges, and ours over the strongest plain loop."""
    middle = {each: statistics.median(values) for each, values in spent.items()}
    strongest = min(value for each, value in middle.items() if not each.startswith("iobench"))
    cells = [
        f"{middle[each]:.2f} ({min(values):.2f} to {max(values):.2f})"
        for each, values in spent.items()
    ]
    return f"| {name} | {' | '.join(cells)} | {middle['iobench'] / strongest:.2f} |"


def main() -> None:
    """Print a table; every chunking and order runs in a process of its own, with its own caches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=240, help="157 MB decoded at 240")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a chunking's name")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.one:
        path, order, name = arguments.one
        spent = compare(Path(path), arguments.times, arguments.epochs, shuffled=order == "shuffled")
        print(line(name, spent), flush=True)
        return
    names = "iobench, iobench [i], netcdf4, h5netcdf, dask, iobench / strongest loop"
    print(f"| chunks | {' | '.join(names.split(', '))} |\n|{' --- |' * 7}", flush=True)
    nbytes = arguments.times * LEVELS * LAT * LON * 4 * len(NAMES)
    with tempfile.TemporaryDirectory() as folder:
        for name, (chunk, level) in chunkings(arguments.times).items():
            if arguments.only not in name:
                continue
            path = Path(folder, "one.nc")
            write(path, arguments.times, chunk, level)
            for room in ("", str(nbytes // 4)):
                for order in ("in order", "shuffled"):
                    told = f"{name}, {order}, {'room for a quarter' if room else 'room for all'}"
                    command = [
                        sys.executable, __file__, "--times", str(arguments.times),
                        "--epochs", str(arguments.epochs), "--one", str(path), order, told,
                    ]  # fmt: skip
                    environment = os.environ | ({"IOBENCH_CHUNK_CACHE": room} if room else {})
                    subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
