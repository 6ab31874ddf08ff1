#!/usr/bin/env python3
"""Compares the stores that conversions write with what is stored: see README.md beside it."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import iobench
from iobench.cli import main
from tests.benchmarks.conversion_sources import Layout, write_source

STORED = Path(__file__).with_name("stores.json")
NOT_BY_BYTE = {"iobench.json", "iobench.index.npz", "iobench.index.json", "iobench.crc32c"}
FIELDS, MEMBERS = ("time", "latitude", "longitude"), ("time", "number", "latitude", "longitude")

LAYOUTS = {
    "chunks": Layout("netcdf", MEMBERS, (12, 10, 19, 36), (6, 5, 10, 18), "time", 2),
    "columns": Layout("netcdf", ("level", "column"), (13, 600), (1, 64), "column", 2),
    "all-times": Layout("netcdf", FIELDS, (24, 19, 36), (24, 5, 7), "time", 2),
    "pancakes": Layout("netcdf", FIELDS, (24, 19, 36), (1, 19, 36), "time", 2),
    "contiguous": Layout("netcdf", FIELDS, (24, 19, 36), (24, 19, 36), "time", 2, codec="none"),
    "packed": Layout(
        "netcdf", FIELDS, (24, 19, 36), (5, 10, 36), "time", 2, dtype="<i2", packed=True
    ),
    "doubles": Layout("netcdf", FIELDS, (10, 19, 36), (4, 10, 18), "time", 1, dtype="<f8"),
    "zarr2": Layout("zarr2", FIELDS, (24, 19, 36), (5, 10, 18), "time", 2, codec="blosc"),
    "zarr3": Layout("zarr3", FIELDS, (24, 19, 36), (7, 19, 18), "time", 2, codec="zstd"),
    "grib": Layout("grib", FIELDS, (6, 19, 36), (1, 19, 36), "time", 2, codec="grid_simple"),
    "grib-ccsds": Layout("grib", FIELDS, (6, 19, 36), (1, 19, 36), "time", 2, codec="grid_ccsds"),
}  # fmt: skip
FORMATS = ("numpy", "zarr", "tfrecord")
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--shard-size", "40KB"),
    ("--workers", "1"),
    ("--dtype", "float16"),
    ("--dtype", "v0=int16", "--range", "v0=-100:600"),
    ("--dtype", "int16"),
    ("--variables", "v1"),
    ("--target-variables", "v1"),
    ("--split-by", "train:time=2010-01-01T04/2010-01-01T10"),
)
NAMES: tuple[tuple[str, ...], ...] = (
    ("maelstrom-yr",), ("maelstrom-radiation",), ("maelstrom-radiation-tf",), ("maelstrom-ens10",),
    ("maelstrom-downscaling-tier1",), ("maelstrom-downscaling-tier2",),
    ("maelstrom-power",), ("maelstrom-weather-pressure-level",),
    ("maelstrom-ens10", "--split", "train"),
)  # fmt: skip


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each conversion, but for its target."""
    for layout, each in LAYOUTS.items():
        for container in FORMATS:
            yield (
                f"{layout} {container}",
                [layout, "--sample-dim", each.sample_dim, "--to", container],
            )
    for container in FORMATS:
        members = ["chunks", "--sample-dim", "time,number", "--to", container]
        yield f"chunks {container} time,number", members
        for options in OPTIONS:
            given = ["all-times", "--sample-dim", "time", "--to", container, *options]
            yield f"all-times {container} {' '.join(options)}", given
        for name, *options in NAMES:
            given = [name, "--tiny", "--to", container, *options]
            yield f"{name} {container} {' '.join(options)}".strip(), given
    for layout in ("all-times", "chunks", "zarr2"):
        blosc = [layout, "--sample-dim", "time", "--to", "zarr", "--codec", "blosc-lz4"]
        yield f"{layout} zarr blosc", blosc
        yield f"{layout} zarr blosc shards", [*blosc, "--shard-size", "60KB"]


def convert(sources: Path, arguments: list[str], target: Path) -> dict[str, Any]:
    """Convert and return what the store holds, JSON-ready."""
    source = next(iter(sources.glob(f"{arguments[0]}.[!j]*[!n]")), None)
    given = [arguments[0] if source is None else str(source), str(target), *arguments[1:]]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["convert", *given, "--quiet"])
    if status:
        raise SystemExit(f"{' '.join(arguments)}: {said.getvalue()}")
    return summary(target)


def summary(store: Path) -> dict[str, Any]:
    """Return digests of the shards, Zarr metadata and labels of a store, and its statistics."""
    files = {
        str(path.relative_to(store)): _digest(path.read_bytes())
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name not in NOT_BY_BYTE and not path.name.startswith(".")
    }
    index = iobench.open_store(store).index()
    labels = {"splits": _digest(repr([(k, [*v]) for k, v in index.splits.items()]).encode())}
    for each in index.meteorology.coordinates:
        attributes = sorted((key, str(value)) for key, value in each.attributes.items())
        header = f"{each.dims} {each.values.dtype} {attributes} "
        labels[each.name] = _digest(header.encode() + each.values.tobytes())
    manifest = json.loads((store / "iobench.json").read_text())
    return {
        "files": files,
        "labels": labels,
        "statistics": dict(_figures(manifest["statistics"], "")),
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def _figures(value: Any, place: str) -> Iterator[tuple[str, list[float] | float]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _figures(each, f"{place}/{key}")
    elif isinstance(value, list):
        numbers = np.array([math.nan if each is None else each for each in value], dtype="f8")
        yield place, [float(f"{each:.12g}") for each in (numbers[0], numbers[-1], numbers.sum())]
    elif isinstance(value, (int, float)):
        yield place, float(f"{value:.12g}")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what differs between two summaries, one line each."""
    said = []
    for part in ("files", "labels", "statistics"):
        for key in sorted({*old[part], *new[part]}):
            before, after = old[part].get(key), new[part].get(key)
            if part == "statistics" and before is not None and after is not None:
                same = np.allclose(before, after, rtol=1e-9, atol=1e-12, equal_nan=True)
            else:
                same = before == after
            if not same:
                said.append(f"{part} {key}: was {before}, is {after}")
    return said


def compare(chosen: list[str], folder: Path, *, renew: bool = False) -> dict[str, list[str]]:
    """Return the differences of each chosen case, of all where none is chosen; store them anew."""
    os.environ["IOBENCH_STORE_DIR"] = str(folder / "stores")
    sources = folder / "sources"
    sources.mkdir()
    compared = [case for case in cases() if not chosen or any(each in case[0] for each in chosen)]
    for name in LAYOUTS.keys() & {arguments[0] for _, arguments in compared}:
        write_source(sources, name, LAYOUTS[name])
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    result: dict[str, list[str]] = {}
    for number, (name, arguments) in enumerate(compared):
        new = convert(sources, arguments, folder / f"store-{number}")
        if renew:
            stored[name] = new
        result[name] = differences(stored[name], new) if name in stored else ["not stored"]
    if renew:
        STORED.write_text(json.dumps(stored, indent=0, sort_keys=True) + "\n")
    return result


def run() -> int:
    """Print the differences; return 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help="part of the names of cases; all by default")
    parser.add_argument("--renew", action="store_true", help="store what they are now")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = compare(arguments.case, Path(folder), renew=arguments.renew)
    for name, lines in result.items():
        for line in lines:
            print(f"{name}: {line}")
    n_differ = sum(bool(lines) for lines in result.values())
    print(f"{len(result)} conversions, {n_differ} differ")
    return int(n_differ > 0)


if __name__ == "__main__":
    sys.exit(run())
