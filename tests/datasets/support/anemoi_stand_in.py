"""Writes a store laid out as anemoi-datasets 0.5 does, with numcodecs alone.

Its own ``open_dataset`` opens it; `test_anemoi.py` proves that where it is installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numcodecs
import numpy as np

START = np.datetime64("2020-01-01T00:00:00", "s")
CODEC = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE)
"""zarr 2's default, which anemoi-datasets does not change."""


def write_anemoi_store(
    path: Path,
    *,
    n_dates: int = 12,
    variables: tuple[str, ...] = ("10u", "2t", "msl", "lsm"),
    field_shape: tuple[int, int] = (6, 8),
    ensemble: int = 1,
    hours: int = 6,
    missing: tuple[int, ...] = (),
    seed: int = 0,
    attributes: dict | None = None,
) -> Path:
    """Write a store of smooth fields; dates number ``missing`` are listed and not written."""
    rng = np.random.default_rng(seed)
    dates = START + np.arange(n_dates) * np.timedelta64(hours, "h")
    latitudes = np.repeat(np.linspace(90, -90, field_shape[0]), field_shape[1])
    longitudes = np.tile(np.linspace(0, 360, field_shape[1], endpoint=False), field_shape[0])
    shape = (n_dates, len(variables), ensemble, field_shape[0] * field_shape[1])
    path.mkdir(parents=True)
    write_json(path / ".zgroup", {"zarr_format": 2})
    waves = np.sin(np.deg2rad(longitudes)) * np.cos(np.deg2rad(latitudes))
    levels = 280 + 10 * np.arange(len(variables))[:, None, None] + 20 * waves
    fields = {
        number: (levels + number + rng.normal(0, 0.5, shape[1:])).astype("f4")
        for number in range(n_dates)
        if number not in missing
    }
    names = "time variable ensemble cell"
    write_array(path / "data", shape, (1, *shape[1:]), "<f4", "NaN", names, fields)
    every = np.stack(list(fields.values())).astype("f8")
    wholes = {
        "dates": (dates.astype("<M8[s]"), "time"),
        "latitudes": (latitudes, "cell"),
        "longitudes": (longitudes, "cell"),
    }
    reduced = {"mean": np.mean, "stdev": np.std, "minimum": np.min, "maximum": np.max}
    wholes |= {name: (own(every, axis=(0, 2, 3)), "variable") for name, own in reduced.items()}
    for name, (values, dim) in wholes.items():
        fill = 0 if values.dtype.kind != "f" else 0.0
        shape = values.shape
        write_array(path / name, shape, shape, values.dtype.str, fill, dim, {0: values})
    own = {
        "layout": "gridded",
        "variables": list(variables),
        "field_shape": list(field_shape),
        "frequency": f"{hours}h",
        "resolution": "o8",
        "start_date": str(dates[0]),
        "end_date": str(dates[-1]),
        "missing_dates": [str(dates[number]) for number in missing],
        "constant_fields": [],
        "uuid": "00000000-0000-0000-0000-000000000000",
    }
    write_json(path / ".zattrs", {**own, **(attributes or {})})
    return path


def write_array(folder, shape, chunks, dtype, fill, names, fields) -> None:
    """Write an array of Zarr version 2, and its chunks by their number along the first axis."""
    folder.mkdir(parents=True)
    about = {"zarr_format": 2, "shape": list(shape), "chunks": list(chunks), "dtype": dtype}
    how = {"fill_value": fill, "order": "C", "filters": None, "compressor": CODEC.get_config()}
    write_json(folder / ".zarray", about | how)
    write_json(folder / ".zattrs", {"_ARRAY_DIMENSIONS": names.split()})
    for number, values in fields.items():
        place = ".".join([str(number), *"0" * (len(shape) - 1)])
        (folder / place).write_bytes(CODEC.encode(np.ascontiguousarray(values)))


def write_json(file: Path, content: dict) -> None:
    file.write_text(json.dumps(content))
