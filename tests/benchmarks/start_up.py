"""What opening many files of one's own takes, the first and the second time.

    python tests/benchmarks/start_up.py --files 10000

Generated NetCDF files, a date each, opened in a new process per start with an empty store folder;
the last line of each row is per file. The page cache is warm: files have just been written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import netCDF4
import numpy as np

START = """
import glob, json, resource, sys, time
from pathlib import Path
folder, store_dir = sys.argv[1:]
files = sorted(glob.glob(f"{folder}/*.nc"))
from iobench import open_dataset
import h5py, xarray  # imports are no part of what is measured
def cpu():
    use = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in use)
began, used = time.perf_counter(), cpu()
opened = open_dataset(*files, sample_dim="time", store_dir=Path(store_dir))
told = {"wall_s": time.perf_counter() - began, "cpu_s": cpu() - used, "n_samples": len(opened)}
began = time.perf_counter()
opened[len(opened) // 2]
print(json.dumps(told | {"sample_s": time.perf_counter() - began}))
"""


def main() -> None:
    """Print a row for each kind of file and start."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=2)
    arguments = parser.parse_args()
    print("files      start       wall        CPU     ms a file")
    for kind in ("NETCDF4", "NETCDF3_CLASSIC"):
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder, "data"), kind, arguments.files)
            for number in range(arguments.starts):
                told = start(Path(folder))
                told_ms = told["wall_s"] / arguments.files * 1e3
                print(
                    f"{kind[:7]}  {number + 1:7}  {told['wall_s']:7.2f} s  {told['cpu_s']:7.2f} s"
                    f"  {told_ms:9.3f}"
                )


def start(folder: Path) -> dict[str, float]:
    """Return what opening all files takes in a new process."""
    told = subprocess.run(
        [sys.executable, "-c", START, folder / "data", folder / "stores"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    figures: dict[str, float] = json.loads(told.splitlines()[-1])
    return figures


def write_files(folder: Path, kind: str, count: int) -> None:
    """Write files that differ in the hour of their one time, from the bytes of the first."""
    folder.mkdir()
    mark = 123456.5
    model = folder / "model"
    write_model(model, kind, mark)
    content = bytearray(model.read_bytes())
    model.unlink()
    order = "<" if kind == "NETCDF4" else ">"
    place = content.index(np.array(mark, f"{order}f8").tobytes())
    for number in range(count):
        content[place : place + 8] = np.array(6.0 * number, f"{order}f8").tobytes()
        (folder / f"era-{number:05}.nc").write_bytes(content)


def write_model(path: Path, kind: str, hour: float) -> None:
    """Write a file as reanalyses come: packed fields, a time, a grid."""
    with netCDF4.Dataset(path, "w", format=kind) as file:
        for name, length in (("time", 1), ("latitude", 24), ("longitude", 48)):
            file.createDimension(name, length)
            variable = file.createVariable(name, "f8", (name,))
            variable[:] = np.arange(length) + hour
        file["time"].units = "hours since 1979-01-01 00:00:00"
        file["time"].calendar = "gregorian"
        rng = np.random.default_rng(1)
        packed = {"zlib": True} if kind == "NETCDF4" else {}
        for name in ("t2m", "u10", "v10", "msl", "tp"):
            dims = ("time", "latitude", "longitude")
            field = file.createVariable(name, "i2", dims, fill_value=-32767, **packed)
            field.scale_factor, field.add_offset, field.units = 0.01, 280.0, "K"
            field[:] = 280 + rng.normal(size=(1, 24, 48)).cumsum(axis=2) / 10


if __name__ == "__main__":
    main()
