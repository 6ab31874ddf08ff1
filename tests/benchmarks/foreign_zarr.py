"""Zarr stores of others through the ring, beside peers: python tests/benchmarks/foreign_zarr.py.

Compressed stores as anemoi-datasets and others write them (version 2 and 3, a chunk or several for
each date, sharded). Epochs in random order, in turns, page cache warm, each loader with as many
threads as there are CPUs and a batch under way while the loop touches every page of the last one.
tensorstore reads a batch at once; zarr-python with zarrs' pipeline reads samples in threads, or in
one. Printed are GB/s of wall time, CPU seconds a GB, and the median over rounds of iobench's time
by that of the fastest peer. Values are compared first, bit for bit. Nothing is kept decoded from
one epoch to the next (``IOBENCH_CHUNK_CACHE=0``); where a machine is shared, look at CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import zarr
from numcodecs import Blosc, Zlib
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

# Each epoch decodes: what is kept of one would be no reading.
os.environ["IOBENCH_CHUNK_CACHE"] = "0"

import iobench

N_CPUS = len(os.sched_getaffinity(0))
SAMPLE = (7, 361, 720)
FIELD = (1, *SAMPLE[1:])
BATCH_SIZE = 4
Batches = Iterator[Any]
Epoch = Callable[[Sequence[int]], Batches]
BLOSC2 = Blosc(cname="lz4", clevel=5, shuffle=Blosc.SHUFFLE)
LAYOUTS: dict[str, dict[str, Any]] = {
    "v2 blosc-lz4, a date": {"zarr_format": 2, "chunks": (1, *SAMPLE), "compressors": BLOSC2},
    "v2 blosc-lz4, a field": {"zarr_format": 2, "chunks": (1, *FIELD), "compressors": BLOSC2},
    "v2 zlib 1, a field": {"zarr_format": 2, "chunks": (1, *FIELD), "compressors": Zlib(1)},
    "v3 zstd, a date": {"chunks": (1, *SAMPLE), "compressors": ZstdCodec(level=1)},
    "v3 zstd, a field": {"chunks": (1, *FIELD), "compressors": ZstdCodec(level=1)},
    "v3 blosc-zstd, a date": {
        "chunks": (1, *SAMPLE),
        "compressors": BloscCodec(cname="zstd", clevel=3, shuffle="shuffle"),
    },
    "v3 gzip 1, a field": {"chunks": (1, *FIELD), "compressors": GzipCodec(level=1)},
    "v3 zstd, sharded by 8": {
        "chunks": (1, *FIELD),
        "shards": (8, *SAMPLE),
        "compressors": ZstdCodec(level=1),
    },
}


def main() -> None:
    """Print a line for each layout and loader."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dates", type=int, default=24)
    parser.add_argument("--only", default="", help="layouts whose name holds this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, layout) in enumerate(LAYOUTS.items()):
            if arguments.only in name:
                path = Path(folder, f"{number}.zarr")
                values = write(path, arguments.dates, layout)
                compare(name, path, values, arguments.rounds)


def write(path: Path, n_dates: int, layout: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Write a store of smooth fields with a little noise; return its numbers."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.linspace(0, 9, SAMPLE[1]))[:, None] * np.cos(np.linspace(0, 7, SAMPLE[2]))
    noise = rng.normal(scale=0.05, size=(n_dates, *SAMPLE)).astype("f4")
    values = (280 + 10 * waves + noise).astype("f4").view("u4")
    values &= np.uint32(0xFFFFF000)  # 12 bits kept of 23, as packed sources have
    group = zarr.open_group(str(path), mode="w", zarr_format=layout.get("zarr_format", 3))
    names = ("time", "channel", "y", "x")
    how = {name: value for name, value in layout.items() if name != "zarr_format"}
    if "zarr_format" not in layout:
        how["dimension_names"] = names
    array = group.create_array("data", shape=values.shape, dtype="f4", **how)
    array.attrs["_ARRAY_DIMENSIONS"] = list(names)
    array[:] = values.view("f4")
    return values.view("f4")


def ring(path: Path) -> Epoch:
    """Return iobench's loader over the store as it is."""
    source = iobench.open_dataset(path, sample_dim="time", store_dir=path.parent / "kept")

    in_order, shuffled = (
        source.loader(BATCH_SIZE, threads=N_CPUS, shuffle=shuffle) for shuffle in (False, True)
    )

    def epoch(order: Sequence[int]) -> Batches:
        loader = (
            in_order if list(order) == sorted(order) else shuffled
        )  # in a random order of its own
        for batch in loader:
            yield batch["data"]

    return epoch


def one_ahead(start: Callable[[Sequence[int]], Callable[[], Any]], order: Sequence[int]) -> Batches:
    """Yield batches, each asked for before the one before it is handed out."""
    waiting = None
    for at in range(0, len(order), BATCH_SIZE):
        following = start(list(order[at : at + BATCH_SIZE]))
        if waiting is not None:
            yield waiting()
        waiting = following
    if waiting is not None:
        yield waiting()


def with_tensorstore(path: Path) -> Epoch:
    """Return tensorstore's batched reads, its threads as many as CPUs."""
    driver = "zarr" if (path / ".zgroup").exists() else "zarr3"
    store = tensorstore.open(
        {"driver": driver, "kvstore": {"driver": "file", "path": str(path / "data")}},
        context=tensorstore.Context(
            {
                "data_copy_concurrency": {"limit": N_CPUS},
                "file_io_concurrency": {"limit": 2 * N_CPUS},
            }
        ),
    ).result()
    return lambda order: one_ahead(lambda numbers: store[numbers].read().result, order)


def with_zarrs(path: Path, n_threads: int = N_CPUS) -> Epoch:
    """Return zarr-python's reads through zarrs, in threads."""
    with zarr.config.set(
        {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": N_CPUS}
    ):
        array = zarr.open_group(str(path), mode="r")["data"]
    pool = ThreadPoolExecutor(n_threads)

    def start(numbers: Sequence[int]) -> Callable[[], Any]:
        batch = np.empty((len(numbers), *SAMPLE), "f4")

        def one(row: int) -> None:
            batch[row] = array[numbers[row]]

        jobs = [pool.submit(one, row) for row in range(len(numbers))]

        def wait() -> Any:
            for job in jobs:
                job.result()
            return batch

        return wait

    return lambda order: one_ahead(start, order)


def compare(name: str, path: Path, values: np.ndarray[Any, Any], rounds: int) -> None:
    """Time all loaders over one store."""
    ways = {
        "iobench": ring(path),
        "tensorstore": with_tensorstore(path),
        "zarrs": with_zarrs(path),
        "zarrs, one thread": with_zarrs(path, 1),
    }
    order = list(range(len(values)))
    for who, epoch in ways.items():
        for at, batch in enumerate(epoch(order)):
            expected = values[at * BATCH_SIZE : (at + 1) * BATCH_SIZE]
            assert np.array_equal(np.asarray(batch).view("u4"), expected.view("u4")), who
    walls: dict[str, list[float]] = {who: [] for who in ways}
    cpus: dict[str, list[float]] = {who: [] for who in ways}
    for round_ in range(rounds):
        random.Random(round_).shuffle(order)
        turns = list(ways)
        for who in turns if round_ % 2 else turns[::-1]:
            began, cpu = time.perf_counter(), time.process_time()
            for batch in ways[who](order):
                np.asarray(batch).reshape(-1)[::1024].sum()
            walls[who].append(time.perf_counter() - began)
            cpus[who].append(time.process_time() - cpu)
    stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    n_gb = values.nbytes / 1e9
    print(f"{name}: {values.nbytes / 1e6:.0f} MB, stored {stored / values.nbytes:.2f} of it")
    for who in ways:
        print(
            f"  {who:18} {n_gb / statistics.median(walls[who]):6.2f} GB/s"
            f" {statistics.median(cpus[who]) / n_gb:6.2f} CPU s/GB"
        )
    for what, spent in (("time", walls), ("CPU", cpus)):
        peers = [
            min(each)
            for each in zip(*(spent[who] for who in ways if who != "iobench"), strict=True)
        ]
        ratios = [own / peer for own, peer in zip(spent["iobench"], peers, strict=True)]
        print(
            f"  {what} against the best of each round: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
