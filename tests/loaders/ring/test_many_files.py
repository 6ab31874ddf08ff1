"""More files than a process may have open are loaded, shuffled, however they are read."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = 600
LOAD_TWICE = """
import resource, sys, warnings
from pathlib import Path
import iobench

if __name__ == "__main__":
    target, processes = Path(sys.argv[1]), sys.argv[2] == "processes"
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    warnings.simplefilter("ignore")
    kept = target.with_name("kept")
    samples = iobench.open_dataset(*sorted(target.iterdir()), sample_dim="time", store_dir=kept)
    loader = iobench.loader(samples, 16, shuffle=True, threads=2, processes=processes)
    for _epoch in range(2):
        first = [float(row.flat[0]) for batch in loader for row in next(iter(batch.values()))]
        assert sorted(first) == list(range(len(samples))), sorted(first)[:10]
    loader.close()
    print(len(samples))
"""


def write_netcdf(folder):
    import netCDF4

    for number in range(COUNT):
        with netCDF4.Dataset(folder / f"{number:05d}.nc", "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("time", 1)
            file.createDimension("x", 20)
            time = file.createVariable("time", "f8", ("time",))
            time[:], time.units = number, "hours since 2000-01-01"
            file.createVariable("v", "f4", ("time", "x"))[:] = number


@pytest.mark.long
@pytest.mark.parametrize("way", ["threads", "processes"])
def test_more_files_than_descriptors(tmp_path, way):
    target = tmp_path / "files"
    target.mkdir()
    write_netcdf(target)
    (tmp_path / "load_twice.py").write_text(LOAD_TWICE)
    command = [sys.executable, str(tmp_path / "load_twice.py"), str(target), way]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(COUNT)
