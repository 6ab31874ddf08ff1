"""A Zarr store of ten samples of a user's own, written by hand, and profiles of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from iobench.cli import main

__all__ = ["SIZE", "profile_own_zarr", "write_own_zarr"]

N, SIZE = 10, 1 << 14
"""Of 64 KiB: arrays get a file for each variable."""


def write_own_zarr(folder, size=SIZE):
    """Write ten chunks, one sample each."""
    array = {
        "zarr_format": 2, "shape": [N, size], "chunks": [1, size], "dtype": "<f4", "order": "C",
        "compressor": None, "filters": None, "fill_value": None,
    }  # fmt: skip
    (folder / "v").mkdir(parents=True)
    for file, content in {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": array,
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"]},
    }.items():
        (folder / file).write_text(json.dumps(content))
    for number in range(N):
        (folder / "v" / f"{number}.0").write_bytes(np.full(size, number, "<f4").tobytes())


def profile_own_zarr(capsys, formats, framework, *, code=0, size=SIZE):
    """Return what ``iobench profile --json`` of it prints, or its error; the folder is the cwd."""
    write_own_zarr(Path("own.zarr"), size)
    command = [
        "profile", "own.zarr", "--sample-dim", "time", "--format", formats, "--framework",
        framework, "--workers", "1", "--batches", "12", "--batch-size", "2", "--compute", "none",
        "--store-dir", "stores", "--out", "run", "--json",
    ]  # fmt: skip
    assert main(command) == code
    told = capsys.readouterr()
    return told.err if code else json.loads(told.out)["runs"]
