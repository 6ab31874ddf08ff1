"""Samples of chunked files, ours beside plain xarray loops: python tests/benchmarks/chunk_cache.py.

A row is one way of cutting a grid into chunks, in order or shuffled, with one of two rooms for what
is decoded. *default*: what a user has, a quarter of the free memory for us, and for netCDF4 its own
64 MiB a variable. *quarter*: for us and for netCDF4 a quarter of what all chunks take decoded.

Ours is ``open_dataset(...).loader(1)`` with one thread, as many as a plain loop has, and as it
comes, and ``samples[i]``, which knows no order. Beside it: loops over ``xarray.open_dataset`` by
netcdf4, by h5netcdf and with dask chunks; of Zarr stores by zarr and with dask chunks. Each runs in
a process of its own, forked from one that has imported all, and they take turns, epoch by epoch,
the first mover changing. Told are milliseconds a sample, the median of the epochs after the first,
which fills all caches, with their range; and the whole time, opening (told behind the plus) and the
first epoch included. An epoch that takes too long is cut short (~) and its rest taken to cost as
much.

A row is *slower* where ours, with one thread or as it comes, takes more than 1.05 times as long as
the strongest plain loop, in the median or as a whole.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import h5netcdf
import netCDF4
import numpy as np
import xarray as xr

import iobench

sys.path.insert(0, str(Path(__file__).parent))

from conversion_sources import Layout, remove_source, write_source
from harness import rotated, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

NAMES = ("v0", "v1")
DIMS = ("time", "level", "latitude", "longitude")
LEVELS, LAT, LON = 5, 91, 180
OURS = ("one thread", "as it comes", "[i]")
JUDGED = OURS[:2]
SLOWER = 1.05


def layouts(n_times: int) -> dict[str, Layout]:
    """Return how variables are stored, by name."""
    whole = (LEVELS, LAT, LON)

    def stored(chunk: tuple[int, ...], codec: str = "zlib", kind: str = "netcdf") -> Layout:
        return Layout(kind, DIMS, (n_times, *whole), chunk, "time", len(NAMES), codec)

    found = {
        "contiguous": stored((), "none"),
        "contiguous, time last": Layout(
            "netcdf", (*DIMS[1:], "time"), (*whole, n_times), (), "time", len(NAMES), "none"
        ),
        "6 x whole": stored((6, *whole)),
        "6 x whole, not deflated": stored((6, *whole), "none"),
        "1 x whole": stored((1, *whole)),
        "1 x whole, not deflated": stored((1, *whole), "none"),
        "24 x whole": stored((24, *whole)),
        "all times x 1 x 13 x 20": stored((n_times, 1, 13, 20)),
        "1 x 8192": stored((1, 1, 46, 178)),
        "10 x 1 x 91 x 180": stored((10, 1, LAT, LON)),
        "12 x 5 x 31 x 60": stored((12, 5, 31, 60)),
    }
    for kind in ("zarr2", "zarr3"):
        for name in ("6 x whole", "1 x whole", "1 x 8192", "12 x 5 x 31 x 60"):
            found[f"{kind}, {name}"] = stored(found[name].chunk, "blosc", kind)
    return found


def names_of(layout: Layout) -> tuple[str, ...]:
    """Return the loops over files of a layout."""
    return (*OURS, *(("netcdf4", "h5netcdf") if layout.kind == "netcdf" else ("zarr",)), "dask")


def opened(
    name: str, path: Path, layout: Layout, *, shuffled: bool
) -> Callable[[Sequence[int]], Iterator[Any]]:
    """Open a file; return what makes each sample of an order, one after the other."""
    if name in OURS:
        samples = iobench.open_dataset(str(path), sample_dim="time")
        if name == "[i]":
            return lambda order: (samples[number] for number in order)
        threads = 1 if name == "one thread" else None
        loader = samples.loader(1, shuffle=shuffled, threads=threads)
        return lambda order: iter(loader)
    dasked: dict[str, Any] = {"chunks": {}} if name == "dask" else {}
    engine = {"dask": "netcdf4" if layout.kind == "netcdf" else "zarr"}.get(name, name)
    if engine == "zarr":
        dasked["consolidated"] = False
    data = xr.open_dataset(path, engine=engine, **dasked)

    def loop(order: Sequence[int]) -> Iterator[Any]:
        for number in order:
            one = data.isel(time=number)
            yield {each: one[each].values for each in NAMES}

    return loop


def serve(
    pipe: Connection, name: str, path: Path, layout: Layout, shuffled: bool, limit_s: float
) -> None:
    """Run epochs for the parent until it closes the pipe; answer with what each took."""
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    make = opened(name, path, layout, shuffled=shuffled)
    pipe.send(time.perf_counter() - start)
    while (order := pipe.recv()) is not None:
        start, n_made = time.perf_counter(), 0
        for sample in make(order):
            assert sample.keys() >= set(NAMES)
            n_made += 1
            if time.perf_counter() - start > limit_s:
                break
        pipe.send((time.perf_counter() - start, n_made))
    os._exit(0)  # threads of a loader that was left early


@dataclass
class Spent:
    """What a loop took: to open, and in each epoch, seconds; whether some was cut short."""

    opening: float
    epochs: list[float] = field(default_factory=list)
    cut: bool = False

    def median(self) -> float:
        """Seconds of an epoch after the first."""
        return statistics.median(self.epochs[1:])

    def whole(self) -> float:
        """Seconds in all."""
        return self.opening + sum(self.epochs)

    def cell(self, n_times: int) -> str:
        """Milliseconds a sample, and seconds in all."""
        later = spread(1e3 * each / n_times for each in self.epochs[1:])
        about = "~" if self.cut else ""
        return f"{about}{later}; {sum(self.epochs):.2f} + {self.opening:.2f} s"


def measure(
    path: Path, layout: Layout, n_times: int, *, shuffled: bool, epochs: int, seconds: float
) -> dict[str, Spent]:
    """Return what each loop took, in turns: at least two epochs each, then until time is up."""
    context = multiprocessing.get_context("fork")
    pipes: dict[str, Connection] = {}
    processes = []
    spent: dict[str, Spent] = {}
    limit_s = seconds / len(names_of(layout)) / 2
    for name in names_of(layout):
        pipes[name], theirs = context.Pipe()
        arguments = (theirs, name, path, layout, shuffled, limit_s)
        processes.append(context.Process(target=serve, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        spent[name] = Spent(pipes[name].recv())
    rng = np.random.default_rng(1)
    begun = time.perf_counter()
    for epoch in range(epochs + 1):
        if epoch > 1 and time.perf_counter() - begun > seconds:
            break
        order = rng.permutation(n_times).tolist() if shuffled else list(range(n_times))
        for name in rotated(list(pipes), epoch):
            pipes[name].send(order)
            took, n_made = pipes[name].recv()
            spent[name].epochs.append(took * n_times / n_made)
            spent[name].cut |= n_made < n_times
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join(10)
    return spent


def ratios(spent: dict[str, Spent]) -> dict[str, float]:
    """Return ours over the strongest plain loop, each of `JUDGED` in the median and as a whole."""
    peers = [each for name, each in spent.items() if name not in OURS]
    median, whole = min(each.median() for each in peers), min(each.whole() for each in peers)
    found = {}
    for name in JUDGED:
        found[f"{name}, median"] = spent[name].median() / median
        found[f"{name}, whole"] = spent[name].whole() / whole
    return found


def main() -> None:
    """Print a table, row by row, then which rows are slower and which were left out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=96, help="63 MB decoded at 96")
    parser.add_argument("--epochs", type=int, default=4, help="after the first, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="for a row, about")
    parser.add_argument("--minutes", type=float, default=40.0, help="no row is begun after that")
    parser.add_argument("--only", default="*", help="pattern of rows' names, as in a shell")
    parser.add_argument("--list", action="store_true", help="print the rows' names and end")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [
        (f"{name}, {order}, {room}", name, order, room)
        for name in layouts(given.times)
        for room in ("default", "quarter")
        for order in ("in order", "shuffled")
    ]
    rows = [row for row in rows if fnmatch.fnmatch(row[0], given.only)]
    if given.list:
        print("\n".join(row[0] for row in rows))
        return
    versions = [f"{each.__name__} {each.__version__}" for each in (netCDF4, h5netcdf, xr, dask)]
    print(f"{given.times} times, at most {given.epochs} epochs after the first; {versions}")
    loops = "one thread, as it comes, [i], plain loops"
    over = "one thread / strongest: median, whole | as it comes / strongest: median, whole"
    print(f"| chunks, order, room | {loops} | {over} |", flush=True)
    begun, left_out, slower, written = time.perf_counter(), [], [], ""
    quarter = given.times * LEVELS * LAT * LON * 4 * len(NAMES) // 4
    with tempfile.TemporaryDirectory() as folder:
        path: Path | None = None
        for told, name, order, room in rows:
            if time.perf_counter() - begun > given.minutes * 60:
                left_out.append(told)
                continue
            layout = layouts(given.times)[name]
            if path is None or written != name:
                if path is not None:
                    remove_source(path)
                number = list(layouts(given.times)).index(name)
                path, written = write_source(Path(folder), str(number), layout), name
                for each in names_of(layout):  # imports of all, ours too, on first use
                    opened(each, path, layout, shuffled=False)
            os.environ.pop("IOBENCH_CHUNK_CACHE", None)
            netCDF4.set_chunk_cache(64 << 20, 4133, 0.75)
            if room == "quarter":
                os.environ["IOBENCH_CHUNK_CACHE"] = str(quarter)
                netCDF4.set_chunk_cache(quarter // len(NAMES), 4133, 0.75)
            spent = measure(
                path, layout, given.times,
                shuffled=order == "shuffled", epochs=given.epochs, seconds=given.seconds,
            )  # fmt: skip
            over_best = ratios(spent)
            cells = " | ".join(f"{key} {each.cell(given.times)}" for key, each in spent.items())
            verdict = " | ".join(f"{each:.2f}" for each in over_best.values())
            print(f"| {told} | {cells} | {verdict} |", flush=True)
            slower += [f"{told}: {key} {n:.2f}" for key, n in over_best.items() if n > SLOWER]
    print(f"\nSlower than the strongest plain loop: {'; '.join(slower) or 'none of these rows'}.")
    print(f"Left out for want of time: {'; '.join(left_out) or 'none'}.")


if __name__ == "__main__":
    main()
