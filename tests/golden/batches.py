#!/usr/bin/env python3
"""Compares the batches that loaders give with what is stored: see README.md beside it."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import iobench
from iobench.cli import main
from tests.benchmarks.conversion_sources import Layout, write_source

STORED = Path(__file__).with_name("batches.json")
N_EPOCHS = 2
SOURCES = {
    "fields": Layout(
        "netcdf", ("time", "latitude", "longitude"), (23, 19, 36), (5, 10, 18), "time", 2
    ),
    "columns": Layout("netcdf", ("level", "column"), (13, 600), (1, 64), "column", 2),
}
STORES: dict[str, tuple[str, ...]] = {
    "numpy": ("fields", "--to", "numpy"),
    "zarr": ("fields", "--to", "zarr", "--shard-size", "20KB"),
    "blosc": ("fields", "--to", "zarr", "--codec", "blosc-lz4"),
    "chunks": (
        "fields", "--to", "zarr", "--chunk-samples", "4", "--codec", "shuffle,zstd",
        "--shard-size", "30KB",
    ),
    "chunks of splits": (
        "fields", "--to", "zarr", "--chunk-samples", "3",
        "--split-by", "train:time=2010-01-01T00/2010-01-01T14",
        "--split-by", "test:time=2010-01-01T16/2010-01-01T22",
    ),
    "tfrecord": ("fields", "--to", "tfrecord"),
    "int16": ("fields", "--to", "numpy", "--dtype", "int16"),
    "small": ("columns", "--to", "numpy"),
    "splits": (
        "fields", "--to", "zarr",
        "--split-by", "train:time=2010-01-01T00/2010-01-01T14",
        "--split-by", "test:time=2010-01-01T16/2010-01-01T22",
    ),
}  # fmt: skip


def halves(batch: dict[str, Any]) -> dict[str, Any]:
    """Halve the first variable, in place."""
    batch["v0"] *= 0.5
    return batch


PATCH = {"latitude": 8, "longitude": 12}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "numpy in order": ("numpy", {}),
    "zarr in order": ("zarr", {}),
    "tfrecord in order": ("tfrecord", {}),
    "numpy shuffled": ("numpy", {"shuffle": True, "seed": 3}),
    "zarr shuffled": ("zarr", {"shuffle": True, "seed": 3}),
    "tfrecord shuffled": ("tfrecord", {"shuffle": True, "seed": 3}),
    "small shuffled": ("small", {"shuffle": True, "batch_size": 64}),
    "blosc shuffled": ("blosc", {"shuffle": True}),
    "chunks in order": ("chunks", {}),
    "chunks shuffled": ("chunks", {"shuffle": True, "seed": 3}),
    "chunks, split": ("chunks of splits", {"split": "test", "shuffle": True}),
    "chunks, window": ("chunks", {"window": "-1,0:1", "shuffle": True}),
    "chunks, verify": ("chunks", {"verify": True, "shuffle": True}),
    "patches of chunks": ("chunks", {"patch": PATCH, "shuffle": True}),
    "int16 shuffled": ("int16", {"shuffle": True}),
    "blocks": ("zarr", {"shuffle": "blocks:8", "seed": 1}),
    "drop last": ("numpy", {"shuffle": True, "drop_last": True, "batch_size": 5}),
    "rank 1 of 3": ("zarr", {"shuffle": True, "rank": 1, "world_size": 3, "batch_size": 2}),
    "rank 2 of 3, drop last": (
        "zarr", {"rank": 2, "world_size": 3, "batch_size": 2, "drop_last": True},
    ),
    "window": ("numpy", {"window": "-1,0:1", "shuffle": True}),
    "window of a split": ("splits", {"window": "-1,0:1", "split": "train"}),
    "split": ("splits", {"split": "test", "shuffle": True}),
    "random patches": ("zarr", {"patch": PATCH, "shuffle": True, "seed": 5}),
    "tiles": ("numpy", {"patch": PATCH, "patch_at": "tiles"}),
    "centre": ("tfrecord", {"patch": PATCH, "patch_at": "centre"}),
    "patches of a window": ("zarr", {"patch": PATCH, "window": "-1,0:1", "shuffle": True}),
    "patches of blosc": ("blosc", {"patch": PATCH, "shuffle": True}),
    "patches of tfrecord": ("tfrecord", {"patch": PATCH, "shuffle": True}),
    "normalise": ("numpy", {"normalise": True, "shuffle": True}),
    "normalise one": ("zarr", {"normalise": ["v1"]}),
    "normalise by figures": ("zarr", {"normalise": {"v0": (250.0, 20.0)}}),
    "normalise a split": ("splits", {"normalise": True, "split": "test"}),
    "dtype": ("numpy", {"dtype": "float16", "shuffle": True}),
    "transform": ("numpy", {"transform": halves, "shuffle": True}),
    "verify": ("tfrecord", {"verify": True, "shuffle": True}),
    "processes": ("numpy", {"processes": True, "transform": halves, "shuffle": True}),
    "one thread": ("zarr", {"threads": 1, "depth": 3, "shuffle": True}),
    "dataset in order": ("dataset", {}),
    "dataset shuffled": ("dataset", {"shuffle": True, "seed": 2}),
    "dataset patches": ("dataset", {"patch": PATCH, "shuffle": True}),
    "dataset window": ("dataset", {"window": "-1,0:1", "shuffle": True}),
}  # fmt: skip


def make(folder: Path) -> dict[str, Any]:
    """Write the sources and convert them; return what loaders take, by name."""
    given: dict[str, Any] = {}
    paths = {name: write_source(folder, name, layout) for name, layout in SOURCES.items()}
    for name, (source, *arguments) in STORES.items():
        target, said = str(folder / f"store-{name}"), io.StringIO()
        along = ("--sample-dim", SOURCES[source].sample_dim, "--quiet")
        with redirect_stdout(said), redirect_stderr(said):
            status = main(["convert", str(paths[source]), target, *along, *arguments])
        if status:
            raise SystemExit(said.getvalue())
        given[name] = target
    given["dataset"] = str(paths["fields"])
    return given


def batches(source: Any, options: dict[str, Any]) -> Iterator[str]:
    """Yield a digest of each batch of the first epochs: names, shapes, dtypes and bytes."""
    given = dict(options)
    if source.endswith(".nc"):
        source = iobench.open_dataset(source, sample_dim="time")
    loader = iobench.loader(source, given.pop("batch_size", 4), **given)
    for _ in range(N_EPOCHS):
        for batch in loader:
            digest = hashlib.sha256()
            for name in sorted(batch):
                array = np.asarray(batch[name])
                digest.update(f"{name} {array.shape} {array.dtype.str} ".encode() + array.tobytes())
            yield digest.hexdigest()[:16]


def compare(folder: Path, chosen: list[str], *, renew: bool = False) -> list[str]:
    """Return the chosen sets of options whose batches differ; store them anew."""
    os.environ["IOBENCH_STORE_DIR"] = str(folder / "stores")
    given = make(folder)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    differ = []
    for name, (source, options) in OPTIONS.items():
        if chosen and not any(each in name for each in chosen):
            continue
        new = list(batches(given[source], options))
        if renew:
            stored[name] = new
        elif stored[name] != new:
            differ.append(name)
    if renew:
        STORED.write_text(json.dumps(stored, indent=0) + "\n")
    return differ


def run() -> int:
    """Print what differs; return 1 where anything does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", nargs="*", help="part of the names of sets; all by default")
    parser.add_argument("--renew", action="store_true", help="store what they are now")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        differ = compare(Path(folder), arguments.options, renew=arguments.renew)
    print("\n".join([*differ, f"{len(differ)} sets of options differ"]))
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(run())
