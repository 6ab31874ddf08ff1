"""Where a library is missing one line says how to install it, and nothing was made for nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from iobench.extras import install_command

DATA = Path(__file__).parents[1] / "data"
TINY = ("maelstrom-ens10", "--tiny", "--store-dir", "stores")
HIDE = """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("hidden", "arguments", "extra"),
    [
        ("eccodes", TINY, "grib"),
        ("netCDF4", TINY, "netcdf"),
        ("h5py", TINY, "netcdf"),
        ("torch", (*TINY, "--framework", "torch"), "torch"),
        ("eccodes", ("test4.grib", "--sample-dim", "level"), "grib"),
        ("h5netcdf", ("20200301T03Z.nc", "--sample-dim", "leadtime"), "netcdf"),
        ("xarray", ("test4.nc", "--sample-dim", "level"), "netcdf"),
    ],
)
def test_the_line_that_installs_it(
    iobench, tmp_path: Path, hidden: str, arguments: tuple[str, ...], extra: str
) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide/sitecustomize.py").write_text(HIDE.format(hidden={hidden}))
    for name in (
        "era5/test4.grib",
        "era5/test4.nc",
        "maelstrom-yr/air_temperature/5GB/20200301T03Z.nc",
    ):
        shutil.copy(DATA / name, tmp_path)
    done = iobench("profile", *arguments, env=os.environ | {"PYTHONPATH": str(tmp_path / "hide")})
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].endswith(install_command(extra))
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "iobench-runs").exists()
