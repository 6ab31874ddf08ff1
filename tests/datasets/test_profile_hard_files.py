"""``iobench profile`` of files that end a process, or hold nothing: one line, and no signal."""

import subprocess
import sys

import numpy as np
import pytest

h5py = pytest.importorskip("h5py", reason="writes the source files")
pytest.importorskip("netCDF4", reason="the plain loop reads through it")

PROFILE = ("--sample-dim", "time", "--compute", "none", "--batches", "3")


def write(path, start, dtypes, n=3):
    with h5py.File(path, "w") as file:
        for dim, values in (("time", np.arange(n) + start), ("x", np.arange(4))):
            scale = file.create_dataset(dim, data=values * 1.0, maxshape=(None,), chunks=(4,))
            scale.make_scale(dim)
        file["time"].attrs["units"] = "hours since 2020-01-01"
        for name, dtype in dtypes.items():
            values = np.arange(n * 4).reshape(n, 4).astype(dtype)
            own = file.create_dataset(name, data=values, maxshape=(None, 4), chunks=(1, 4))
            for axis, dim in enumerate(("time", "x")):
                own.dims[axis].attach_scale(file[dim])


def profile(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "iobench", "profile", *arguments, *PROFILE, "--out", "run"],
        capture_output=True, text=True, timeout=120, cwd=folder, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.splitlines()


def test_a_library_that_dies_of_half_floats_is_left_out(tmp_path):
    write(tmp_path / "0.nc", 0, {"r": "f4", "h": "f2"})
    code, said = profile(tmp_path, "0.nc", "--variables", "r")
    assert code == 0
    assert [line for line in said if "dies of half floats" in line]
    code, said = profile(tmp_path, "0.nc", "--variables", "r", "--pipeline", "upstream")
    assert code == 1
    assert "dies of half floats" in said[-1]
    assert "--pipeline own" in said[-1]


@pytest.mark.parametrize(
    "extra", [(), ("--pipeline", "own"), ("--pipeline", "upstream"), ("--format", "numpy")]
)
def test_a_dimension_without_records_is_one_line(tmp_path, extra):
    write(tmp_path / "0.nc", 0, {"r": "f4"}, n=0)
    code, [line] = profile(tmp_path, "0.nc", *extra)
    assert code == 1
    assert "0.nc" in line
    write(tmp_path / "1.nc", 0, {"r": "f4"})
    assert profile(tmp_path, "0.nc", "1.nc", "--pipeline", "own")[0] == 0
