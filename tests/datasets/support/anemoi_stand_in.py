"""Writes a store laid out as anemoi-datasets 0.5 does, with numcodecs alone.

Its own ``open_dataset`` opens it; `test_anemoi_own.py` proves that where it is installed.
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
    cells = field_shape[0] * field_shape[1]
    dates = START + np.arange(n_dates) * np.timedelta64(hours, "h")
    latitudes = np.repeat(np.linspace(90, -90, field_shape[0]), field_shape[1])
    longitudes = np.tile(np.linspace(0, 360, field_shape[1], endpoint=False), field_shape[0])
    shape = (n_dates, len(variables), ensemble, cells)
    path.mkdir(parents=True)
    write_json(path / ".zgroup", {"zarr_format": 2})
    written = [number for number in range(n_dates) if number not in missing]
    waves = np.sin(np.deg2rad(longitudes)) * np.cos(np.deg2rad(latitudes))
    fields = {
        number: (
            280
            + 10 * np.arange(len(variables))[:, None, None]
            + number
            + 20 * waves
            + rng.normal(0, 0.5, shape[1:])
        ).astype("f4")
        for number in written
    }
    write_array(
        path / "data", shape, (1, *shape[1:]), "<f4", "NaN", dims("time variable ensemble cell")
    )
    for number, field in fields.items():
        write_chunk(path / "data" / f"{number}.0.0.0", field)
    everything = np.stack(list(fields.values())).astype("f8")
    whole(path / "dates", dates.astype("<M8[s]"), dims("time"))
    whole(path / "latitudes", latitudes, dims("cell"))
    whole(path / "longitudes", longitudes, dims("cell"))
    for name, reduce in (
        ("mean", np.mean),
        ("stdev", np.std),
        ("minimum", np.min),
        ("maximum", np.max),
    ):
        whole(path / name, reduce(everything, axis=(0, 2, 3)), dims("variable"))
    write_json(
        path / ".zattrs",
        {
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
            **(attributes or {}),
        },
    )
    return path


def dims(names: str) -> list[str]:
    return names.split()


def whole(folder: Path, values: np.ndarray, names: list[str]) -> None:
    """Write an array as one chunk."""
    fill = 0 if values.dtype.kind != "f" else 0.0
    write_array(folder, values.shape, values.shape, values.dtype.str, fill, names)
    write_chunk(folder / ".".join("0" * values.ndim), values)


def write_array(folder, shape, chunks, dtype, fill, names, **more) -> None:
    """Write the metadata of an array of Zarr version 2."""
    folder.mkdir(parents=True)
    write_json(
        folder / ".zarray",
        {
            "zarr_format": 2,
            "shape": list(shape),
            "chunks": list(chunks),
            "dtype": dtype,
            "fill_value": fill,
            "order": "C",
            "filters": None,
            "compressor": CODEC.get_config(),
        }
        | more,
    )
    write_json(folder / ".zattrs", {"_ARRAY_DIMENSIONS": names})


def write_chunk(file: Path, values: np.ndarray) -> None:
    file.write_bytes(CODEC.encode(np.ascontiguousarray(values)))


def write_json(file: Path, content: dict) -> None:
    file.write_text(json.dumps(content))
