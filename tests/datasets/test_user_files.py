"""Files of the user's own as samples: GRIB as cfgrib has it, NetCDF, and what commands find out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import eccodes
import netCDF4
import numpy as np
import pytest
import xarray

import iobench
from iobench.cli import main
from iobench.datasets.user_files import UserFiles
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.files.urls import as_path
from iobench.testing import DatasetTests

DATA = Path(__file__).parents[1] / "data"
MEMBERS = "era5/era5-levels-members.grib"
HOURS = {"units": "hours since 2010-01-01"}
GRID = {"lat": 3, "lon": 4}


class TestUserGrib(DatasetTests):
    @pytest.fixture
    def files(self, real):
        return [real(MEMBERS)]

    @pytest.fixture
    def dataset(self, files):
        return UserFiles(files, sample_dim="time")


class TestUserNetcdf(DatasetTests):
    @pytest.fixture
    def files(self, yr_files):
        return yr_files

    @pytest.fixture
    def dataset(self, files):
        return UserFiles(files, sample_dim="leadtime")


def messages(path):
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield eccodes.codes_get_message(handle)
            eccodes.codes_release(handle)


def test_a_missing_message_is_named_unless_its_variable_is_not_asked_for(
    real, tmp_path, open_user_files
):
    path = tmp_path / "hole.grib"
    path.write_bytes(b"".join(list(messages(real(MEMBERS)))[:-1]))
    with pytest.raises(FileFormatError) as caught:
        open_user_files(path, sample_dim="time")
    said = str(caught.value)
    assert "1 of 80 messages of t are missing" in said
    assert "number=9, time=2017-01-02T12:00, step=0 h, isobaricInhPa=850" in said
    made = open_user_files(path, sample_dim="time", variables=["z"])
    assert (len(made.index), made.index.spec.names) == (4, ("z",))
    assert made.index.provenance["skipped"] == {"t": "not asked for"}


def test_one_value_along_the_sample_dim_must_be_asked_for(real, tmp_path, open_user_files):
    path = tmp_path / "constant.grib"  # whose z has one of two levels, as a constant field would
    path.write_bytes(b"".join(list(messages(real("era5/test4.grib")))[:3]))
    with pytest.raises(
        FileFormatError, match=r"z lacks 1 of 2 values of isobaricInhPa.*--variables"
    ):
        open_user_files(path, sample_dim="isobaricInhPa")
    made = open_user_files(path, sample_dim="isobaricInhPa", variables=["t", "z"])
    assert list(made.index.coordinate) == ["isobaricInhPa 850", "isobaricInhPa 500"]
    np.testing.assert_array_equal(made.sample(0)["z"], made.sample(1)["z"])


@pytest.mark.long
def test_constants_are_skipped_and_said_or_repeated_when_asked(yr_files, open_user_files):
    skipped = open_user_files(*yr_files, sample_dim="leadtime").index.provenance["skipped"]
    assert skipped["static_predictors"] == "lacks the dimension leadtime"
    assert skipped["predictor"] == "not numeric"
    names = ["predictors", "static_predictors"]
    made = open_user_files(*yr_files, sample_dim="leadtime", variables=names)
    with xarray.open_dataset(yr_files[1]) as ds:
        found = made.sample(7)["static_predictors"]
        np.testing.assert_array_equal(found, ds.static_predictors.values)


def write_times(path, times, *, units="hours since 2020-01-01", **storage):
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("time", len(times) or None)
        ds.createDimension("x", 3)
        ds.createVariable("time", "f8", ("time",))[:] = times
        ds["time"].units = units
        values = np.repeat(np.asarray(times, dtype="f4")[:, None], 3, axis=1)
        ds.createVariable("v", "f4", ("time", "x"), **storage)[:] = values
    return path


@pytest.mark.parametrize(
    ("parts", "ordered"),
    [
        ([[4, 5], [0, 1], [2, 3]], [0, 1, 2, 3, 4, 5]),
        ([([5], "days since 2020-01-01"), [1]], [1, 5]),
        ([([5], "km"), ([1], "m")], [5, 1]),  # other units do not order files
    ],
)
def test_files_follow_their_coordinate(tmp_path, open_user_files, parts, ordered):
    paths = []
    for number, part in enumerate(parts):
        times, units = part if isinstance(part, tuple) else (part, "hours since 2020-01-01")
        paths.append(write_times(tmp_path / f"{number}.nc", times, units=units))
    made = open_user_files(*paths, sample_dim="time")
    assert [float(made.sample(i)["v"][0]) for i in range(len(made.index))] == ordered


@pytest.mark.parametrize("sample_dim", ["tme", None])
@pytest.mark.parametrize(
    ("name", "listed"),
    [
        (MEMBERS, "number (10), time (4), step (1), isobaricInhPa (2)"),
        ("era5/test4.nc", "longitude (360), latitude (181), level (2), time (1)"),
    ],
)
def test_unknown_sample_dim_lists_those_there_are(real, open_user_files, name, listed, sample_dim):
    with pytest.raises(OptionError, match="--sample-dim") as caught:
        open_user_files(real(name), sample_dim=sample_dim)
    assert listed in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "target", "name"),
    [
        (["/d/2020/a.nc"], "/d", "a.nc"),
        (["/d/2020/a.nc", "/d/2020/b.nc"], "/d/2020/*.nc", "2020"),
        (["/d/2020/a.nc", "/d/2021/b.nc"], None, "d"),
        (["/d/2020/a.nc", "/d/2020/b.nc"], "/d", "d"),
        (["s3://bucket/x/a.nc", "s3://bucket/x/b.nc"], "s3://bucket/x", "x"),
        (["/a.nc", "/b.nc"], None, "2 files"),
    ],
)
def test_several_files_are_called_as_their_folder(paths, target, name):
    named = None if target is None else as_path(target)
    assert UserFiles(paths, sample_dim="time", target=named).name == name


def test_missing_and_foreign_files(tmp_path, open_user_files):
    with pytest.raises(MissingFileError, match=r"one\.nc, .*two\.nc"):
        open_user_files(tmp_path / "one.nc", tmp_path / "two.nc", sample_dim="time")
    text = tmp_path / "notes.txt"
    text.write_text("hello world")
    with pytest.raises(FileFormatError, match=r"notes\.txt: is neither GRIB nor NetCDF"):
        open_user_files(text, sample_dim="time")
    with pytest.raises(OptionError, match="at least one"):
        UserFiles([], sample_dim="time")


# ---- through commands


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    """Profile what cannot be used; return the one line that is said."""

    def run(*arguments: str) -> str:
        before = set(Path.cwd().iterdir())
        assert main(["profile", *arguments, "--workers", "0"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        [line] = said.err.splitlines()
        assert set(Path.cwd().iterdir()) == before
        return line

    return run


QUICK = ("--workers", "0", "--batches", "20", "--pipeline", "own")


def profiled(*words: str) -> dict:
    """Profile; return ``run.json``."""
    assert main(["profile", *words, *QUICK, "--out", "run"]) == 0
    run: dict = json.loads(Path("run/run.json").read_text())
    return run


@pytest.mark.long
def test_grib_members_in_every_format_and_all_that_was_made_is_listed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / MEMBERS, "x.grib")
    os.utime("x.grib", (1_600_000_000,) * 2)  # what was learnt of younger ones is not kept
    words = ("--sample-dim", "time", "--format", "source,numpy,tfrecord,zarr", "--compute", "none")
    quick = ("--workers", "0", "--batches", "6", "--out", "run", "--store-dir", "kept", "--json")
    assert main(["profile", "x.grib", *words, *quick]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["format"] for run in runs] == ["source", "numpy", "tfrecord", "zarr"]
    for run in runs:
        assert (run["batches"], run["dataset"], run["stand_in"]) == (6, "x.grib", False)
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]
    assert {path.name for path in tmp_path.iterdir()} == {"x.grib", "run", "kept"}
    assert {path.name for path in Path("kept").iterdir()} == {"indexes", "stores"}


def test_an_unreadable_file(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / MEMBERS, "x.grib")
    opened = os.open

    def refuse(path, *rest, **more):
        if Path(path).name == "x.grib":
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    line = refused("x.grib", "--sample-dim", "time")
    assert line == "iobench: x.grib: cannot be opened: Permission denied"


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
        if name.endswith(".zarr"):
            pytest.importorskip("zarr", reason="needs pip install 'iobench[zarr]'")
        file.to_zarr(name, consolidated=False) if name.endswith(".zarr") else file.to_netcdf(name)
        return name

    return make


@pytest.mark.parametrize(
    ("name", "dims", "attributes", "dim"),
    [
        *(
            (name, {"number": 2, "valid": 5, **GRID}, {"valid": HOURS, "number": {"units": "1"}},
             "valid")
            for name in ("a.nc", "a.zarr")
        ),
        ("a.nc", {"level": 2, "sample": 5, "y": 8, "x": 9}, {}, "sample"),
    ],
)  # fmt: skip
def test_times_then_a_name_count_samples(write, capsys, name, dims, attributes, dim):
    write(name, dims, **attributes)
    assert profiled(name)["n_samples"] == 5
    assert f"index of {dim}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dims", "attributes"),
    [
        ({"start": 4, "valid": 4, "x": 9}, {"start": HOURS, "valid": HOURS}),
        ({"y": 3, "x": 9}, {}),
        ({"row": 9, "column": 9}, {}),
        ({"column": 9, "level": 3}, {}),
        ({"time": 1, **GRID}, {"time": HOURS}),
    ],
)
def test_where_several_might_be_meant_nothing_is_guessed(write, refused, dims, attributes):
    write("a.nc", dims, **attributes)
    assert "--sample-dim" in refused("a.nc")


@pytest.mark.long
def test_a_folder_stands_for_the_files_below_it_and_a_copy_gives_the_same_store(write):
    for folder in ("my data/year", "two/year"):
        for day in range(3):
            units = {"units": f"days since 201{day}-01-01"}
            write(f"{folder}/{day}.nc", {"time": 1, **GRID}, time=units)
    Path("my data/notes.txt").write_text("beside them")
    Path("my data/._0.nc").write_bytes(b"of macOS")
    run = profiled(f"file://{Path('my data').absolute()}")
    assert (run["n_samples"], run["dataset"]) == (3, "my data")
    for folder in ("my data", "two"):
        assert main(["convert", folder, "out", "--to", "numpy"]) == 0
    assert iobench.open_store("out").manifest.dataset == "my data"
    assert main(["verify", "out", "--against", "two"]) == 0
    assert main(["profile", "two", "out", *QUICK, "--compute", "none", "--out", "both"]) == 0
    assert len(iobench.open_dataset("two", store_dir="kept")) == 3


@pytest.mark.parametrize("pipeline", ["own", "upstream"])
def test_a_dimension_without_records_is_one_line(tmp_path, monkeypatch, refused, pipeline):
    monkeypatch.chdir(tmp_path)
    write_times(tmp_path / "0.nc", [])
    assert "0.nc" in refused("0.nc", "--sample-dim", "time", "--pipeline", pipeline)
    write_times(tmp_path / "1.nc", [1, 2])
    assert profiled("0.nc", "1.nc", "--sample-dim", "time")["n_samples"] == 2


def test_a_library_that_dies_of_half_floats_is_left_out(tmp_path, monkeypatch, capsys):
    h5py = pytest.importorskip("h5py", reason="writes the source files")
    monkeypatch.chdir(tmp_path)
    with h5py.File(write_times(tmp_path / "0.nc", [0, 1, 2]), "a") as file:
        file["h"] = np.zeros(4, "f2")
    quick = ("--sample-dim", "time", "--workers", "0", "--compute", "none", "--batches", "3")
    for more, code in (((), 0), (("--pipeline", "upstream"), 1)):
        assert main(["profile", "0.nc", *quick, "--variables", "v", *more, "--out", "run"]) == code
        assert "dies of half floats" in capsys.readouterr().err
