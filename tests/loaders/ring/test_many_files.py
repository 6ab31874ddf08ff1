"""More files than a process may have open are loaded, shuffled, however they are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from iobench.samples import SampleSpec, Variable

COUNT, LIMIT = 600, 64
LOAD_ALL = Path(__file__).with_name("load_all.py")


def write_netcdf(folder, count):
    import netCDF4

    for number in range(count):
        with netCDF4.Dataset(folder / f"{number:05d}.nc", "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("time", 1)
            file.createDimension("x", 20)
            time = file.createVariable("time", "f8", ("time",))
            time[:], time.units = number, "hours since 2000-01-01"
            file.createVariable("v", "f4", ("time", "x"))[:] = number
    return str(folder)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("way", ["threads", pytest.param("processes", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_more_files_than_descriptors(tmp_path, make_store, kind, way):
    if kind == "zarr":
        spec = SampleSpec((Variable("v", (20,), "<f4", ("x",)),))
        made = [{"v": np.full(20, number, "f4")} for number in range(COUNT)]
        store = make_store(spec, made, kind, shards=[1] * COUNT)
        what, target = "store", str(store.path)
    else:
        folder = tmp_path / "files"
        folder.mkdir()
        what, target = "files", write_netcdf(folder, COUNT)
    done = subprocess.run(
        [sys.executable, str(LOAD_ALL), str(LIMIT), way, what, target],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(COUNT)
