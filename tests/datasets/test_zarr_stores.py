"""Users' own Zarr stores as datasets, against xarray; several stores; what bad ones get."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray

import iobench
from iobench.cli import main
from iobench.datasets.sample_windows import epoch_reads
from iobench.datasets.user_files import UserFiles
from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.testing import DatasetTests
from tests.support.http_files import serve

numcodecs = pytest.importorskip("numcodecs", reason="reads compressed chunks")
zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


def dataset():
    """Fields, packed fields, counts and a constant along time."""
    rng, n = np.random.default_rng(5), 5
    times = np.datetime64("2020-01-01", "ns") + np.arange(n) * np.timedelta64(6, "h")
    packed = np.round(rng.normal(5, 2, (n, 4, 6)), 1)
    packed[1, 2, 3] = np.nan
    made = xarray.Dataset(
        {
            "t": (("time", "y", "x"), rng.random((n, 4, 6), "f4"), {"units": "K"}),
            "p": (("time", "y", "x"), packed),
            "gaps": (("time",), np.where(np.arange(n) == 2, np.nan, np.arange(n))),
            "n": (("y", "time"), np.arange(4 * n).reshape(4, n)),
            "orography": (("y", "x"), rng.random((4, 6))),
            "lat": (("y",), np.linspace(50, 60, 4)),
        },
        coords={"time": times},
    ).set_coords("lat")
    made["p"].encoding = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -9}
    made["gaps"].encoding = {"dtype": "f8", "_FillValue": -999.0}
    return made


def write(path, made=None, *, zarr_format=3, consolidated=False, **more):
    made = dataset() if made is None else made
    made.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated, mode="w", **more)
    return path


def test_dates_as_numpy_has_them(tmp_path, open_user_files):
    group = zarr.open_group(tmp_path / "s", mode="w", zarr_format=2)
    named = {"attributes": {"_ARRAY_DIMENSIONS": ["time"]}}
    group.create_array("time", data=np.array(["2020-01-01", "2020-01-03"], "M8[s]"), **named)
    group.create_array("v", data=np.array([1.0, 2.0]), **named)
    made = open_user_files(tmp_path / "s", sample_dim="time")
    assert np.diff(made.index.positions).tolist() == [2 * 86400]


def test_what_is_no_store(tmp_path, real, open_user_files):
    path = write(tmp_path / "s.zarr")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileFormatError, match="is a folder without Zarr metadata"):
        open_user_files(folder, sample_dim="time")
    archive = shutil.make_archive(tmp_path / "packed", "zip", path)
    with pytest.raises(FileFormatError, match=r"packed\.zip: is neither .*unpack archives"):
        open_user_files(tmp_path / "packed.zip", sample_dim="time")
    assert archive.endswith("packed.zip")
    with pytest.raises(MissingFileError, match=r"gone\.zarr"):
        open_user_files(tmp_path / "gone.zarr", sample_dim="time")
    with pytest.raises(FileFormatError, match=r"test4\.nc: is no Zarr store"):
        open_user_files(path, real("era5/test4.nc"), sample_dim="time")
    zarr.open_group(tmp_path / "empty", mode="w")
    with pytest.raises(FileFormatError, match="no array in this Zarr store"):
        open_user_files(tmp_path / "empty", sample_dim="time")


@FORMATS
class TestZarrContract(DatasetTests):
    @pytest.fixture
    def files(self, tmp_path, zarr_format):
        return [write(tmp_path / "s.zarr", dataset().chunk({"time": 2}), zarr_format=zarr_format)]

    @pytest.fixture
    def dataset(self, files):
        return UserFiles(files, sample_dim="time")


# ---- behind a web server, whether it lists folders or not

VALUES = np.arange(120, dtype="f4").reshape(6, 4, 5)


@pytest.fixture
def web(request, tmp_path, monkeypatch):
    """A server that lists folders, or not, or hides what is missing as buckets nobody may list."""
    pytest.importorskip("obstore", reason="asks web servers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "cache"))
    Path("web").mkdir()
    lists, missing = request.param == "lists", 403 if request.param == "hides" else 404
    with serve(tmp_path / "web", lists=lists, missing=missing) as server:
        yield f"http://{server.at}"


def write_to_web(version, consolidated=True):
    one = xarray.Dataset({"r": (("time", "y", "x"), VALUES)}, {"time": np.arange(6)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of consolidated metadata in version 3
        encoding = {"r": {"chunks": (2, 4, 5)}}
        write("web/s", one, zarr_format=version, consolidated=consolidated, encoding=encoding)


def open_last(url):
    return iobench.open_dataset(url, sample_dim="time")[5]["r"]


@FORMATS
@pytest.mark.parametrize("web", ["plain", "lists"], indirect=True)
def test_samples_are_those_of_the_folder_and_the_secret_is_not_said(web, zarr_format, capsys):
    write_to_web(zarr_format)
    Path("web/s/r", "1.0.0" if zarr_format == 2 else "c/1/0/0").unlink()  # never written
    right = xarray.open_zarr("web/s", consolidated=False)["r"].values
    assert (right[2] != VALUES[2]).any()
    url = f"{web}/s?token=hidden-secret"
    opened = iobench.open_dataset(url, sample_dim="time")
    found = [{key: np.array(each) for key, each in batch.items()}["r"]
             for batch in opened.loader(batch_size=3)]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(found), right)
    assert epoch_reads(opened.dataset, opened.index.where, 1).first_nbytes > 0
    assert main(["convert", url, "out", "--to", "zarr", "--sample-dim", "time"]) == 0
    said = "".join(capsys.readouterr()) + repr(opened) + Path("out/iobench.json").read_text()
    assert "hidden-secret" not in said
    np.testing.assert_array_equal(xarray.open_zarr("out")["r"].values, right)


@FORMATS
@pytest.mark.parametrize("web", ["hides"], indirect=True)
def test_a_server_need_not_say_what_is_missing(web, zarr_format):
    write_to_web(zarr_format)
    np.testing.assert_array_equal(open_last(f"{web}/s"), VALUES[5])
    with pytest.raises(StorageError, match=r"none\.zarr: not permitted \(403 Forbidden\)"):
        open_last(f"{web}/none.zarr")


@FORMATS
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("web", ["plain", "lists"], indirect=True)
def test_metadata_that_are_not_consolidated_need_a_list_of_folders(web, zarr_format, request):
    write_to_web(zarr_format, consolidated=False)
    if "plain" in request.node.name:
        with pytest.raises(FileFormatError, match=r"no folders; run zarr\.consolidate_metadata"):
            open_last(f"{web}/s")
        zarr.consolidate_metadata("web/s")
    np.testing.assert_array_equal(open_last(f"{web}/s"), VALUES[5])
    with pytest.raises(MissingFileError, match=r"none\.zarr: no such file"):
        open_last(f"{web}/none.zarr")
