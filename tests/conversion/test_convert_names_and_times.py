"""Stores that ``iobench convert`` finishes open in xarray, whatever names and units of time."""

from pathlib import Path

import numpy as np
import pytest

from iobench import open_store
from iobench.cli import main

netCDF4 = pytest.importorskip("netCDF4", reason="writes the source files")
xarray = pytest.importorskip("xarray", reason="opens the stores")

# Of files beside the arrays, and of dates before 1582.
pytestmark = pytest.mark.filterwarnings("ignore")
VALUES = np.arange(18, dtype="f4").reshape(6, 3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(names=("r",), time=None, of_variable=None):
    with netCDF4.Dataset("f.nc", "w") as file:
        file.createDimension("time", 6)
        file.createDimension("x", 3)
        if time is not None:
            axis = file.createVariable("time", "f4", ("time",))
            axis.setncatts(time)
            axis[:] = np.arange(6) + 720.5
        for number, name in enumerate(names):
            variable = file.createVariable(name, "f4", ("time", "x"))
            variable.setncatts(of_variable or {})
            variable[:] = VALUES + number


def convert(capsys, to="zarr"):
    assert main(["convert", "f.nc", f"out-{to}", "--to", to, "--sample-dim", "time"]) == 0
    return Path(f"out-{to}"), capsys.readouterr().err


@pytest.mark.parametrize(
    "time",
    [
        {"units": "months since 1960-01-01"},
        {"units": "months since 1960-01-01", "calendar": "360"},
        {"units": "years since 1-1-1"},
        {"units": "weeks since 2000-01-01"},
        {"units": "days since 2000-01-01", "calendar": "of the moon"},
        {"units": "days since 2000-02-31"},
        {"units": "hours since the start"},
    ],
)
def test_units_that_nobody_decodes_are_kept_beside_the_numbers(capsys, time):
    write(time=time)
    path, _ = convert(capsys)
    for found in (open_store(path).to_xarray(), xarray.open_zarr(path, consolidated=False)):
        np.testing.assert_array_equal(found["r"].values, VALUES)
        np.testing.assert_array_equal(found["time"].values, np.arange(6) + 720.5)
        own = found["time"].attrs
        assert own.get("time_units", own.get("units")) == time["units"]


@pytest.mark.parametrize(
    ("time", "first"),
    [
        ({"units": "days since 2000-01-01"}, "2001-12-21T12:00:00"),
        ({"units": "hours since 1800-01-01 00:00:00"}, "1800-01-31T00:30:00"),
        ({"units": "days since 2000-01-01", "calendar": "noleap"}, "2001-12-22T12:00:00"),
        ({"units": "days since 0001-01-01 00:00:0.0 UTC"}, "0002-12-22T12:00:00"),
    ],
)
def test_times_that_xarray_decodes_stay_times(capsys, time, first):
    write(time=time)
    path, _ = convert(capsys)
    for found in (open_store(path).to_xarray(), xarray.open_zarr(path)):
        value = found["time"].values[0]
        spelled = str(value)[:19] if isinstance(value, np.datetime64) else value.isoformat()
        assert spelled[:19] == first


def test_names_are_kept_and_others_are_said(capsys):
    names = ("air temperature", "T2M", "t2m", "a+b", "temp%C", "_x", "__y", "a::b", "温度 (2 m)")
    write(names)
    path, said = convert(capsys)
    stored = dict(zip(names, names, strict=True)) | {"__y": "variable-6", "a::b": "variable-7"}
    notes = [line for line in said.splitlines() if "is stored as" in line]
    assert len(notes) == 2
    for found in (xarray.open_zarr(path), xarray.open_zarr(path, consolidated=False)):
        for number, name in enumerate(names):
            np.testing.assert_array_equal(found[stored[name]].values, VALUES + number)
    again = open_store(path)
    for number, name in enumerate(names):
        np.testing.assert_array_equal(again[2][name], VALUES[2] + number)
    assert main(["verify", str(path), "--against", "f.nc"]) == 0
