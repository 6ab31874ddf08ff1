"""A first profile of files of one's own, in which the command finds out what counts samples."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import iobench
from iobench.cli import main

xarray = pytest.importorskip("xarray", reason="writes the files")

GRIB = Path(__file__).parents[1] / "data/era5/era5-levels-members.grib"
HOURS = {"units": "hours since 2010-01-01"}
GRID = {"lat": 3, "lon": 4}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a file whose variables have these dimensions; some of them with attributes."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, *variables: dict[str, int], **attributes: dict[str, str]) -> str:
        lengths = {dim: n for dims in variables for dim, n in dims.items()}
        file = xarray.Dataset(
            {
                f"v{number}": (tuple(dims), np.zeros(tuple(dims.values()), "f4"))
                for number, dims in enumerate(variables)
            },
            {dim: (dim, np.arange(lengths[dim]), units) for dim, units in attributes.items()},
        )
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        file.to_zarr(name, consolidated=False) if name.endswith(".zarr") else file.to_netcdf(name)
        return name

    return make


def profiled(*targets: str) -> dict:
    """Profile without naming a dimension; return ``run.json``."""
    quick = ("--workers", "0", "--batches", "20", "--pipeline", "own", "--out", "run")
    assert main(["profile", *targets, *quick]) == 0
    run: dict = json.loads(Path("run/run.json").read_text())
    return run


TIMES = {"valid": HOURS, "number": {"units": "1"}}


@pytest.mark.parametrize(
    ("name", "variables", "attributes", "more", "dim", "n_samples"),
    [
        ("a.nc", [{"number": 2, "valid": 5, **GRID}], TIMES, [], "valid", 5),
        ("a.zarr", [{"number": 2, "valid": 5, **GRID}], TIMES, [], "valid", 5),
        ("a.nc", [{"level": 2, "sample": 5, "y": 8, "x": 9}], {}, [], "sample", 5),
    ],
)  # fmt: skip
def test_times_then_a_name_count_samples(
    write, capsys, name: str, variables, attributes, more, dim: str, n_samples: int
) -> None:
    write(name, *variables, **attributes)
    assert profiled(name, *more)["n_samples"] == n_samples
    assert f"index of {dim}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dims", "attributes"),
    [
        ({"start": 4, "valid": 4, "x": 9}, {"start": HOURS, "valid": HOURS}),
        ({"y": 3, "x": 9}, {}),
        ({"row": 9, "column": 9}, {}),
        ({"y": 9, "x": 3}, {}),
        ({"column": 9, "level": 3}, {}),
        ({"time": 1, **GRID}, {"time": HOURS}),
    ],
)
def test_where_several_might_be_meant_nothing_is_guessed(write, capsys, dims, attributes) -> None:
    write("a.nc", dims, **attributes)
    assert main(["profile", "a.nc"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "time" in line or "--sample-dim" in line


def test_a_folder_stands_for_the_files_below_it_each_of_which_may_hold_one_time(write) -> None:
    for day in range(3):
        units = {"units": f"days since 201{day}-01-01"}
        write(f"my data/year/{day}.nc", {"time": 1, **GRID}, time=units)
    Path("my data/notes.txt").write_text("beside them")
    Path("my data/._0.nc").write_bytes(b"of macOS")
    run = profiled(f"file://{Path('my data').absolute()}")
    assert (run["n_samples"], run["dataset"]) == (3, "my data")


def test_a_copy_of_a_folder_gives_the_same_store(write) -> None:
    for day in range(2):
        units = {"units": f"days since 201{day}-01-01"}
        write(f"one/{day}.nc", {"time": 1, **GRID}, time=units)
    shutil.copytree("one", "two")
    for folder in ("one", "two"):
        assert main(["convert", folder, "out", "--to", "numpy"]) == 0
    assert iobench.open_store("out").manifest.dataset == "one"
    assert main(["verify", "out", "--against", "two"]) == 0
    quick = ("--batches", "2", "--pipeline", "own", "--compute", "none", "--out", "run")
    assert main(["profile", "two", "out", *quick]) == 0


def test_messages_of_grib_are_counted_by_time(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(GRIB, "x.grib")
    assert profiled("x.grib")["n_samples"] == 4


def test_a_conversion_and_the_loader_choose_as_a_profile_does(write) -> None:
    write("a.nc", {"time": 4, **GRID}, time=HOURS)
    assert main(["convert", "a.nc", "out", "--to", "numpy"]) == 0
    assert main(["verify", "out", "--against", "a.nc"]) == 0
    assert len(iobench.open_dataset("a.nc", store_dir="kept")) == 4
