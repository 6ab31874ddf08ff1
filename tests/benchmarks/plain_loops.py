"""Files as they are, loaded beside plain xarray loops: python tests/benchmarks/plain_loops.py.

A row is a variable in one of the ten chunkings of conversion_sources.LAYOUTS, in order or shuffled.
Ours is ``open_dataset(...).loader(1)`` with one thread, as many as a plain loop has, and as it
comes. Beside it: loops over ``xarray.open_dataset`` by netcdf4, h5netcdf, zarr or cfgrib, and with
dask chunks. Each runs in a process of its own, forked from one that has imported all, and they take
turns, epoch by epoch, the first mover changing. A cell has milliseconds a sample, the median of the
epochs after the first, which fills all caches, with their range, and the seconds of opening and all
epochs. An epoch that takes too long is cut short (~), and its rest taken to cost as much.

A row is *slower* where ours takes more than 1.05 times as long as the strongest plain loop, in the
median or as a whole. ``--cpu`` counts CPU seconds, for a machine where others are at work;
``--quarter`` lets us, and netCDF4, keep a quarter of what all chunks take decoded, in place of a
quarter of the free memory, and 64 MiB a variable.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5netcdf  # noqa: F401 - forked processes have it
import netCDF4
import numpy as np
import xarray as xr

import iobench

sys.path.insert(0, str(Path(__file__).parent))

from conversion_sources import LAYOUTS, Layout, remove_source, write_source
from harness import print_table, rotated, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

OURS = ("one thread", "as it comes")
ENGINES = {"netcdf": ("netcdf4", "h5netcdf"), "grib": ("cfgrib",)}
SLOWER = 1.05
LEAST_SAMPLES = 12
"""Of a source, whatever its size."""


def names_of(layout: Layout) -> tuple[str, ...]:
    """Return the loops over files of a layout."""
    return (*OURS, *ENGINES.get(layout.kind, ("zarr",)), "dask")


def opened(
    name: str, path: Path, layout: Layout, *, shuffled: bool
) -> Callable[[Sequence[int]], Iterator[Any]]:
    """Open a file; return what makes each sample of an order, one after the other."""
    if name in OURS:
        samples = iobench.open_dataset(str(path), sample_dim=layout.sample_dim)
        loader = samples.loader(1, shuffle=shuffled, threads=1 if name == "one thread" else None)
        return lambda order: iter(loader)
    how: dict[str, Any] = {"chunks": {}} if name == "dask" else {}
    engine = ENGINES.get(layout.kind, ("zarr",))[0] if name == "dask" else name
    if engine == "cfgrib":  # of levels that differ: a dataset for each
        from cfgrib.xarray_store import open_variable_datasets

        parts = open_variable_datasets(str(path), {"indexpath": ""}, **how)
    else:
        how |= {"consolidated": False} if engine == "zarr" else {}
        parts = [xr.open_dataset(path, engine=engine, **how)]

    def loop(order: Sequence[int]) -> Iterator[Any]:
        for number in order:
            some = [part.isel({layout.sample_dim: number}) for part in parts]
            yield {key: one[key].values for one in some for key in one.data_vars}

    return loop


def serve(
    pipe: Connection, name: str, path: Path, layout: Layout, options: argparse.Namespace
) -> None:
    """Run epochs for the parent until it closes the pipe; answer with what each took."""
    warnings.simplefilter("ignore")
    clock = time.process_time if options.cpu else time.perf_counter
    limit_s = options.seconds / len(names_of(layout)) / 2
    start = clock()
    make = opened(name, path, layout, shuffled=options.shuffled)
    pipe.send(clock() - start)
    while (order := pipe.recv()) is not None:
        start, n_made = clock(), 0
        for sample in make(order):
            assert len(sample) == layout.n_variables
            n_made += 1
            if clock() - start > limit_s:
                break
        pipe.send((clock() - start, n_made))
    os._exit(0)  # threads of a loader that was left early


@dataclass
class Spent:
    """What a loop took: to open, and in each epoch, seconds; whether some was cut short."""

    opening: float
    epochs: list[float] = field(default_factory=list)
    cut: bool = False

    @property
    def both(self) -> tuple[float, float]:
        """Seconds of an epoch after the first, and in all."""
        return statistics.median(self.epochs[1:]), self.opening + sum(self.epochs)

    def cell(self, n_samples: int) -> str:
        """Milliseconds a sample, and seconds in all."""
        later = spread(1e3 * each / n_samples for each in self.epochs[1:])
        return f"{'~' * self.cut}{later}; {self.opening:.2f} + {sum(self.epochs):.2f} s"


def measure(path: Path, layout: Layout, options: argparse.Namespace) -> dict[str, Spent]:
    """Return what each loop took, in turns: at least two epochs each, then until time is up."""
    context = multiprocessing.get_context("fork")
    pipes: dict[str, Connection] = {}
    processes = []
    spent: dict[str, Spent] = {}
    for name in names_of(layout):
        pipes[name], theirs = context.Pipe()
        arguments = (theirs, name, path, layout, options)
        processes.append(context.Process(target=serve, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        spent[name] = Spent(pipes[name].recv())
    rng = np.random.default_rng(1)
    n_samples = layout.shape[layout.dims.index(layout.sample_dim)]
    begun = time.perf_counter()
    for epoch in range(options.epochs + 1):
        if epoch > 1 and time.perf_counter() - begun > options.seconds:
            break
        order = (rng.permutation(n_samples) if options.shuffled else np.arange(n_samples)).tolist()
        for name in rotated(list(pipes), epoch):
            pipes[name].send(order)
            took, n_made = pipes[name].recv()
            spent[name].epochs.append(took * n_samples / n_made)
            spent[name].cut |= n_made < n_samples
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join(10)
    print(f"\n{layout}{', shuffled' if options.shuffled else ''}")
    print_table(["", "ms"], [(name, each.cell(n_samples)) for name, each in spent.items()])
    return spent


def main() -> None:
    """Print a table for each row, one of all ratios, then which rows are slower."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--size", type=int, default=100, help="of a source decoded, in MB")
    parser.add_argument("--epochs", type=int, default=4, help="after the first, at most")
    parser.add_argument("--seconds", type=float, default=40.0, help="for a row, about")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--quarter", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    ratios: list[list[str]] = []
    slower = []
    with tempfile.TemporaryDirectory() as folder:
        for source in options.sources:
            layout = replace(LAYOUTS[source], n_variables=1)
            each_nbytes = layout.nbytes // layout.shape[layout.dims.index(layout.sample_dim)]
            layout = layout.resized(max(options.size * 1_000_000, LEAST_SAMPLES * each_nbytes))
            path = write_source(Path(folder), source, layout)
            if options.quarter:
                os.environ["IOBENCH_CHUNK_CACHE"] = str(layout.nbytes // 4)
                netCDF4.set_chunk_cache(layout.variable_nbytes // 4, 4133, 0.75)
            for name in names_of(layout):  # imports of all, ours too, on first use
                opened(name, path, layout, shuffled=False)
            for options.shuffled in (False, True):
                spent = measure(path, layout, options)
                peers = [each.both for name, each in spent.items() if name not in OURS]
                best = [min(each) for each in zip(*peers, strict=True)]
                row = [a / b for name in OURS for a, b in zip(spent[name].both, best, strict=True)]
                told = f"{source}{', shuffled' if options.shuffled else ''}"
                ratios.append([told, *(f"{each:.2f}" for each in row)])
                slower += [told] * (max(row) > SLOWER)
            remove_source(path)
    print("\nours over the strongest plain loop")
    print_table(["", *map(": ".join, product(OURS, ("median", "whole")))], ratios)
    print(f"\nSlower than the strongest plain loop: {'; '.join(slower) or 'none of these rows'}.")


if __name__ == "__main__":
    main()
