"""Digests of samples, to compare what two checkouts read of the same files, bit for bit.

    python tests/benchmarks/sample_digests.py FOLDER --make [default]
    python tests/benchmarks/sample_digests.py FOLDER [--own FOLDER] --write FILE
    python tests/benchmarks/sample_digests.py FOLDER [--own FOLDER] --against FILE

The first writes the tiny stand-in of every name below FOLDER (or that of the default size), and
files of no dataset in several containers; run it once, with the older checkout. The second digests
the samples of all of them (names, options that change what is read, containers, windows), the third
compares: exit status 1 where a sample differs, or a case is there on one side alone; what was
refused before and is read now is said. ``--own`` names a further folder of NetCDF and GRIB files,
each read along every dimension it may have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import iobench
from iobench.errors import IobenchError

STAND_INS: dict[str, tuple[str, dict[str, str]]] = {
    "yr-5gb": ("maelstrom-yr", {"size": "5GB"}),
    "yr-5tb": ("maelstrom-yr", {"size": "5TB"}),
    "radiation": ("maelstrom-radiation", {}),
    "radiation-tf": ("maelstrom-radiation-tf", {}),
    "ens10-sfc": ("maelstrom-ens10", {"dtype": "sfc"}),
    "ens10-z500": ("maelstrom-ens10", {"dtype": "pl", "target": "z500"}),
    "ens10-t850": ("maelstrom-ens10", {"dtype": "pl", "target": "t850"}),
    "ens5mini": ("maelstrom-ens5mini", {}),
    "downscaling-tier1": ("maelstrom-downscaling-tier1", {}),
    "downscaling-tier2": ("maelstrom-downscaling-tier2", {}),
    "power": ("maelstrom-power", {}),
    **{
        f"power-{kind}": ("maelstrom-weather-pressure-level", {"levels": kind})
        for kind in ("surface", "pressure", "model")
    },
    "deepcam": ("deepcam", {}),
    **{
        f"cosmoflow-{layout}": ("cosmoflow", {"layout": layout})
        for layout in ("tfrecord-gzip", "tfrecord", "hdf5-gzip", "hdf5")
    },
}
"""Folder, dataset, options that decide which files there are."""
FURTHER: dict[str, tuple[dict[str, str], ...]] = {
    "yr-5tb": (
        {"patch": "64", "normalize": "False"},
        {"predict_diff": "True", "probabilistic_target": "True"},
        {"x_range": "20,340", "y_range": "10,500", "patch": "whole"},
    ),
    "yr-5gb": ({"patch": "32", "probabilistic_target": "True"},),
    "radiation": (
        {"raw_inputs": "True"},
        {"gather_fluxes": "True", "hr_units": "K s-1"},
        {"heating_rate": "False"},
    ),
    "radiation-tf": (
        {"norm": "True"},
        {"norm": "True", "nonormsolar": "True", "input_fields": "sca_inputs,hl_inputs"},
        {"output_fields": "sw,lw"},
        {"netflux": "True", "hr_units": "K s-1"},
    ),
    "ens10-sfc": ({"target": "none"},),
    "downscaling-tier2": ({"variant": "published"}, {"variant": "benchmark_t2m"}),
    "power": (
        {"wind_turbine_id": "3", "model_level": "128"},
        {"wind_turbine_id": "2"},
        {"wind_turbine_id": "4"},
    ),
    "power-pressure": tuple(
        {"sample": "clustering", "crop": each} for each in ("moving", "centre", "none")
    ),
}
"""Options that change what is read of the same files, by folder."""
OWN = "own"
OWN_DIMS = ("time", "leadtime", "step", "number", "isobaricInhPa", "level", "y", "latitude")
OWN_FILES = (".nc", ".grib", ".zarr")
WINDOWS = ("-1,0:1", "-2,-1,0:1,2")
N_SAMPLES = 24
"""Of a case, evenly spaced."""


def main() -> int:
    """Make, write or compare, as the options say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--own", type=Path)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--make", choices=("tiny", "default"), nargs="?", const="tiny")
    action.add_argument("--write", type=Path)
    action.add_argument("--against", type=Path)
    given = parser.parse_args()
    logging.getLogger("iobench").setLevel(logging.ERROR)
    if given.make:
        make_files(given.folder, given.make, STAND_INS)
        (given.folder / OWN).mkdir(exist_ok=True)
        write_own_files(given.folder / OWN)
        return 0
    with tempfile.TemporaryDirectory() as store_dir:
        found = dict(cases(given.folder, given.own, Path(store_dir)))
    if given.write:
        given.write.write_text(json.dumps(found, indent=1) + "\n")
        for case, row in found.items():
            if "refused" in row:
                print(f"{case}: refused")
        print(f"{given.write}: {len(found)} cases, {sum(map(len, found.values()))} digests")
        return 0
    before = json.loads(given.against.read_text())
    for case in sorted(found):
        if "refused" in before.get(case, {}) and "refused" not in found[case]:
            print(f"{case}: is read now, was refused before")
            before[case] = found[case]
    lines = differences(before, found)
    print("\n".join(lines) or f"{len(found)} cases, {sum(map(len, found.values()))} digests: equal")
    return int(bool(lines))


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each case that is not the same on both sides."""
    lines = [f"{case}: only before" for case in before.keys() - now.keys()]
    lines += [f"{case}: only now" for case in now.keys() - before.keys()]
    for case in before.keys() & now.keys():
        keys = before[case].keys() | now[case].keys()
        other = sorted(key for key in keys if before[case].get(key) != now[case].get(key))
        if other:
            lines.append(f"{case}: {len(other)} of {len(keys)} differ, first {other[0]}")
    return sorted(lines)


def cases(folder: Path, own: Path | None, store_dir: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each case's name, and the digests of its samples by number."""
    for label, (name, options) in STAND_INS.items():
        for further in ({}, *FURTHER.get(label, ())):
            chosen = {**options, **further}
            text = " ".join([label, *(f"{key}={value}" for key, value in further.items())])
            yield text, digests([name], store_dir, data_dir=folder / label, options=chosen)
    for place, title in ((folder / OWN, OWN), *([(own, "given")] if own else [])):
        for path in sorted(place.rglob("*")):
            below = path.relative_to(place)
            hidden = any(
                part.startswith(".") or part.endswith(".zarr") for part in below.parts[:-1]
            )
            if hidden or path.suffix not in OWN_FILES:
                continue
            for dim in OWN_DIMS:
                found = digests([path], store_dir, sample_dim=dim)
                yield f"{title} {below} {dim}", found


def digests(targets: list[Any], store_dir: Path, **where: Any) -> dict[str, str]:
    """Return the digests of a source's samples and windows; of what is refused, that it is."""
    try:
        opened = iobench.open_dataset(*targets, store_dir=store_dir, **where)
        count = min(len(opened), N_SAMPLES)
        numbers = sorted(
            {number * (len(opened) - 1) // max(1, count - 1) for number in range(count)}
        )
        found = {
            "samples": str(len(opened)),
            "spec": repr([(each.name, each.shape, each.dtype) for each in opened.spec.variables]),
        }
        found |= {str(number): digest(opened[number]) for number in numbers}
    except IobenchError:
        return {"refused": "yes"}
    for window in WINDOWS:
        try:
            loader = iobench.loader(opened, 1, window=opened.windows(window), threads=1)
        except IobenchError:
            continue
        batches = iter(loader)
        for number, batch in zip(range(N_SAMPLES), batches, strict=False):
            found[f"window {window} {number}"] = digest(batch)
        batches.close()
    return found


def digest(sample: Any) -> str:
    """Return a digest of a sample's names, dtypes, shapes and bytes."""
    made = hashlib.sha256()
    for name, value in sample.items():
        array = np.asarray(value)
        made.update(f"{name} {array.dtype.str} {array.shape}".encode())
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def make_files(folder: Path, size: str, labels: Iterable[str]) -> None:
    """Write stand-ins below a folder, tiny or of the default size."""
    from iobench.datasets import ensure_stand_in
    from iobench.registry import find_dataset

    for label in labels:
        name, options = STAND_INS[label]
        dataset: Any = find_dataset(name, **options)
        ensure_stand_in(dataset, folder / label, tiny=size == "tiny")
        print(folder / label)


def write_own_files(folder: Path) -> None:
    """Write the same fields as NetCDF (classic, plain, compressed and packed) and Zarr."""
    import xarray as xr

    random = np.random.default_rng(0)
    shape = (12, 3, 21, 34)
    dims = ("time", "level", "y", "x")
    warmth = 280 + random.standard_normal(shape).cumsum(axis=2)
    warmth[3, 1, 4, 5:9] = np.nan
    data = xr.Dataset(
        {
            "t": (dims, warmth.astype("f4"), {"units": "K"}),
            "w": (dims, random.standard_normal(shape), {"units": "Pa s**-1"}),
            "mask": (("y", "x"), random.integers(0, 2, shape[2:]).astype("i1")),
        },
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(12) * np.timedelta64(6, "h"),
            "level": np.array([850, 700, 500], dtype="i4"),
            "y": np.linspace(70, 50, 21),
            "x": np.linspace(0, 33, 34),
        },
    )
    packed = {"dtype": "i2", "scale_factor": 0.002, "add_offset": 280.0, "_FillValue": -32767}
    chunked = {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (2, 1, 8, 34)}
    data.to_netcdf(folder / "classic.nc", format="NETCDF3_64BIT", encoding={"t": packed})
    data.to_netcdf(folder / "plain.nc")
    data.to_netcdf(folder / "compressed.nc", encoding={"t": chunked, "w": chunked})
    both = {"t": {**packed, **chunked}, "w": {**chunked, "fletcher32": True}}
    data.to_netcdf(folder / "packed.nc", encoding=both, unlimited_dims=["time"])
    chunks = {name: {"chunks": (2, 1, 8, 34)} for name in ("t", "w")}
    for version in (2, 3):
        data.to_zarr(folder / f"version{version}.zarr", zarr_format=version, encoding=chunks)
    shards = {name: {"chunks": (2, 1, 8, 34), "shards": (4, 3, 24, 34)} for name in ("t", "w")}
    data.to_zarr(folder / "shards.zarr", zarr_format=3, encoding=shards)


if __name__ == "__main__":
    raise SystemExit(main())
