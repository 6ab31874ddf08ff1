"""``iobench convert`` over files that are not all alike, not whole, or not once there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from iobench.chunks.decoded_chunks import reopen_files
from iobench.cli import main
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_store

netCDF4 = pytest.importorskip("netCDF4", reason="writes the source files")
xarray = pytest.importorskip("xarray", reason="says what the source files hold")

ROW = 8, 9
HOURS = "hours since 2020-01-01"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own, with no file open that another one had there."""
    monkeypatch.chdir(tmp_path)
    reopen_files()


@pytest.fixture
def converts(capsys: pytest.CaptureFixture[str]):
    """Convert; return what was noted."""

    def run(*arguments: str, out: str = "out") -> list[str]:
        assert main(["convert", *arguments, out, "--to", "zarr", "--sample-dim", "time"]) == 0
        return capsys.readouterr().err.splitlines()

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    """Convert what cannot be; return the only line that is said, with nothing left behind."""

    def run(*arguments: str) -> str:
        assert main(["convert", *arguments, "out", "--to", "zarr", "--sample-dim", "time"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        [line] = said.err.splitlines()
        assert not Path("out").exists()
        return line

    return run


def numbers(n: int, dtype: str = "f4", row: tuple[int, ...] = ROW):
    return np.random.default_rng(n).integers(0, 100, (n, *row)).astype(dtype)


def write(name: str, times, values, *, chunks=None, fill=None, zlib=True, **attributes) -> str:
    """Write one variable as its numbers are stored."""
    with netCDF4.Dataset(name, "w") as ds:
        for dim, length in zip(("time", "y", "x"), values.shape, strict=True):
            ds.createDimension(dim, length)
        time = ds.createVariable("time", "f8", ("time",))
        time.units, time[:] = HOURS, times
        variable = ds.createVariable(
            "t", values.dtype, ("time", "y", "x"), chunksizes=chunks, fill_value=fill, zlib=zlib
        )
        variable.set_auto_maskandscale(False)
        variable.setncatts(attributes)
        variable[:] = values
    return name


def assert_holds(out: str, *names: str) -> None:
    """Compare a store with what xarray reads of its files, bit for bit."""
    values = []
    for name in names:
        with xarray.open_dataset(name, decode_times=False) as ds:
            values.append(ds["t"].values)
    expected = np.concatenate(values)
    store = open_store(out)
    verify_store(store)
    assert len(store) == len(expected)
    for number, each in enumerate(expected):
        assert store[number]["t"].dtype == each.dtype
        assert store[number]["t"].tobytes() == each.tobytes()


@pytest.mark.parametrize("memory", [(), ("--memory", "1MiB")], ids=["default", "little"])
def test_files_of_other_chunkings_and_filters(converts, memory) -> None:
    names = [
        write("a.nc", range(5), numbers(5), chunks=(3, 4, 9)),
        write("b.nc", range(5, 9), numbers(4), chunks=(1, 8, 3), zlib=False),
        write("c.nc", range(9, 12), numbers(3), chunks=(3, 1, 1)),
        write("d.nc", range(12, 14), numbers(2), zlib=False),
    ]
    converts(*names, *memory)
    assert_holds("out", *names)


@pytest.mark.parametrize(
    ("kept", "word"), [(0.0, "empty"), (0.5, "truncated"), (0.97, "truncated")]
)
def test_a_file_that_ends_early_among_others(refused, converts, kept: float, word: str) -> None:
    names = [write(f"{n}.nc", [n], numbers(1)) for n in range(3)]
    whole = Path("1.nc").read_bytes()
    os.truncate("1.nc", int(kept * len(whole)))
    line = refused(*names)
    assert "1.nc" in line
    assert word in line
    assert line.endswith(("fetch the file again", "fetch it again"))
    Path("1.nc").write_bytes(whole)
    converts(*names)
    assert_holds("out", *names)


def test_packings_and_fill_values_that_differ(converts) -> None:
    names = [
        write("a.nc", range(3), numbers(3, "i2"), fill=np.int16(7), scale_factor=np.float32(0.5)),
        write(
            "b.nc", range(3, 5), numbers(2, "i2"), fill=np.int16(9),
            scale_factor=np.float32(0.25), add_offset=np.float32(-3),
        ),
        write("c.nc", range(5, 9), numbers(4), fill=np.float32(50)),
        write(
            "d.nc", range(9, 10), numbers(1, "i1"), _Unsigned="true", scale_factor=np.float32(2)
        ),
    ]  # fmt: skip
    converts(*names)
    assert_holds("out", *names)


def test_units_that_differ_are_told(converts) -> None:
    kelvin = [write(f"{n}.nc", [n], numbers(1)) for n in range(2)]
    assert converts(*kelvin, out="alike") == []
    for name, units in zip(kelvin, ("K", "degC"), strict=True):
        with netCDF4.Dataset(name, "a") as ds:
            ds["t"].setncattr("units", units)
    [line] = converts(*kelvin)
    assert "degC" in line
    assert_holds("out", *kelvin)
