"""A first profile of files of one's own, in which the command finds out what it can."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import iobench
from iobench.cli import main

xarray = pytest.importorskip("xarray", reason="writes the files")

DATA = Path(__file__).parents[1] / "data"
HOURS = {"units": "hours since 2010-01-01"}


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
            {dim: (dim, np.arange(lengths[dim]), told) for dim, told in attributes.items()},
        )
        Path(name).parent.mkdir(exist_ok=True)
        file.to_zarr(name, consolidated=False) if name.endswith(".zarr") else file.to_netcdf(name)
        return name

    return make


@pytest.fixture
def profiled(capsys: pytest.CaptureFixture[str]):
    """Profile without saying a dimension; return what is said of it, and ``run.json``."""

    def run(*targets: str) -> tuple[str, dict]:
        quick = ("--workers", "0", "--batches", "20", "--pipeline", "own", "--out", "run")
        assert main(["profile", *targets, *quick]) == 0
        notes = capsys.readouterr().err.splitlines()
        [said] = [line for line in notes if "--sample-dim names another" in line]
        return said, json.loads(Path("run/run.json").read_text())

    return run


GRID = {"lat": 3, "lon": 4}


@pytest.mark.parametrize("name", ["a.nc", "a.zarr"])
def test_the_dimension_of_times_counts_samples(write, profiled, name: str) -> None:
    write(name, {"number": 2, "valid": 5, **GRID}, valid=HOURS, number={"units": "1"})
    said, run = profiled(name)
    assert said.startswith("one sample is one index of valid, whose coordinate holds times;")
    assert run["n_samples"] == 5


def test_without_times_the_first_and_longest_dimension_does(write, profiled) -> None:
    write("columns.nc", {"column": 9, "level": 3}, {"column": 9})
    said, run = profiled("columns.nc")
    assert "column, the first and longest dimension of all variables" in said
    assert run["n_samples"] == 9


def test_a_folder_stands_for_the_files_in_it_each_of_which_may_hold_one_time(write, profiled):
    for day in range(3):
        write(
            f"my data/{day}.nc",
            {"time": 1, **GRID},
            time=HOURS | {"units": f"days since 201{day}-01-01"},
        )
    Path("my data/notes.txt").write_text("beside them")
    Path("my data/._0.nc").write_bytes(b"of macOS")
    said, run = profiled("my data")
    assert "index of time" in said
    assert (run["n_samples"], run["dataset"]) == (3, "3 files")


def test_messages_of_grib_are_counted_by_time(profiled, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "era5/era5-levels-members.grib", "x.grib")
    said, run = profiled("x.grib")
    assert "one sample is one index of time, of which the messages have 4;" in said
    assert run["n_samples"] == 4


def test_what_is_advised_next_names_the_dimension(write, capsys, monkeypatch) -> None:
    write("a.nc", {"time": 4, **GRID}, time=HOURS)
    command = ["profile", "a.nc", "--workers", "0", "--batches", "3", "--pipeline", "own"]
    monkeypatch.setattr(sys, "argv", ["iobench", *command])
    assert main(command) == 0
    shown = capsys.readouterr().out
    [proposed] = [
        line for line in shown.splitlines() if line.startswith("    iobench") and "25ms" in line
    ]
    assert "--sample-dim time" in proposed


@pytest.mark.parametrize(
    ("dims", "attributes"),
    [
        ({"start": 4, "valid": 4, "x": 9}, {"start": HOURS, "valid": HOURS}),
        ({"y": 3, "x": 9}, {}),
        ({"row": 9, "column": 9}, {}),
        ({"y": 9, "x": 3}, {}),
        ({"place": 9, "lat": 3}, {"place": {"units": "degrees_east"}}),
    ],
)
def test_where_several_might_be_meant_it_is_asked_for(write, capsys, dims, attributes) -> None:
    write("a.nc", dims, **attributes)
    assert main(["profile", "a.nc"]) == 1
    assert "say which dimension counts samples with --sample-dim" in capsys.readouterr().err


def test_only_the_variables_that_are_asked_for_count(write, profiled) -> None:
    write("a.nc", {"column": 9, "level": 3}, {"profile": 7, "level": 3})
    assert main(["profile", "a.nc"]) == 1
    said, run = profiled("a.nc", "--variables", "v1")
    assert said.startswith("one sample is one index of profile, the first and longest")
    assert run["n_samples"] == 7


def test_a_name_may_tell_what_no_coordinate_does(write, profiled) -> None:
    write("a.nc", {"level": 2, "sample": 5, "y": 8, "x": 9})
    said, run = profiled("a.nc")
    assert said.startswith("one sample is one index of sample, by its name;")
    assert run["n_samples"] == 5


def test_one_time_alone_is_told_from_none(write, capsys) -> None:
    write("a.nc", {"time": 1, **GRID}, time=HOURS)
    assert main(["profile", "a.nc"]) == 1
    assert "of time there is one: name more files" in capsys.readouterr().err


def test_what_is_refused_is_not_said_before(write, capsys) -> None:
    write("a.nc", {"time": 4, **GRID}, time=HOURS)
    assert main(["profile", "a.nc", "--variables", "none"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "iobench: --variables: no variable none; the files have v0, time"
    ]


def test_folders_of_folders_urls_of_them_and_what_they_hold(write, profiled, capsys) -> None:
    for year in (2019, 2020):
        told = HOURS | {"units": f"hours since {year}-01-01"}
        Path(f"my data/{year}").mkdir(parents=True)
        write(f"my data/{year}/a.nc", {"number": 2, "time": 3, **GRID}, time=told)
    _, run = profiled(f"file://{Path('my data').absolute()}")
    assert (run["n_samples"], run["dataset"]) == (6, "2 files")
    capsys.readouterr()
    assert main(["info", "my data"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("my data: NetCDF in 2 files, ")
    assert "Of the first, my data/2019/a.nc:" in told
    assert told.endswith("iobench profile 'my data' --sample-dim time")


def test_a_folder_of_several_formats_is_asked_about(write, capsys) -> None:
    for name in ("both of them/a.nc", "both of them/b.zarr"):
        write(name, {"time": 4, **GRID}, time=HOURS)
    assert main(["profile", "both of them"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "iobench: both of them: holds files of several formats (1 NetCDF, 1 Zarr); name one: "
        "'both of them'/*.nc"
    ]


def test_a_conversion_and_the_loader_choose_as_a_profile_does(write, capsys, caplog) -> None:
    write("a.nc", {"time": 4, **GRID}, time=HOURS)
    assert main(["convert", "a.nc", "out", "--to", "numpy"]) == 0
    words = "one sample is one index of time, whose coordinate holds times"
    assert words in " ".join(capsys.readouterr().err.split())
    assert main(["verify", "out", "--against", "a.nc"]) == 0
    assert len(iobench.open_dataset("a.nc", store_dir="kept")) == 4
    assert words in caplog.text


def test_without_a_training_step_the_verdict_says_which_one_would_wait(write, capsys) -> None:
    write("a.nc", {"time": 4, **GRID}, time=HOURS)
    assert main(["profile", "a.nc", "--workers", "0", "--batches", "9", "--pipeline", "own"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "training that computes a batch in less time would wait for data." in told
    assert "Accelerator utilisation:" not in told


def test_alone_it_says_what_to_do(capsys) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(len(line) <= 90 for line in lines)
    assert sum("iobench " in line for line in lines) >= 5
