"""Zarr stores behind a web server, whether it lists folders or not: samples are xarray's."""

from pathlib import Path

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import FileFormatError, MissingFileError, StorageError
from tests.support.http_files import serve

xarray = pytest.importorskip("xarray", reason="writes the stores")
pytest.importorskip("obstore", reason="asks web servers")
zarr = pytest.importorskip("zarr", reason="writes the stores")

VALUES = np.arange(120, dtype="f4").reshape(6, 4, 5)


@pytest.fixture(params=["plain", "lists"])
def web(request, tmp_path, monkeypatch):
    """A server that lists folders or not, or hides what is missing: as buckets nobody may list."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "cache"))
    Path("web").mkdir()
    manners = {
        "lists": request.param == "lists",
        "missing": 403 if request.param == "hides" else 404,
    }
    with serve(tmp_path / "web", **manners) as server:
        yield f"http://{server.at}"


def write(name, version, values=VALUES, consolidated=True):
    one = xarray.Dataset(
        {"r": (("time", "y", "x"), values)}, coords={"time": np.arange(len(values))}
    )
    encoding = {"r": {"chunks": (2, 4, 5)}}
    one.to_zarr(f"web/{name}", zarr_format=version, consolidated=consolidated, encoding=encoding)


@pytest.mark.filterwarnings("ignore")  # of consolidated metadata in version 3
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["s.zarr", "store"])
def test_samples_are_those_of_the_folder(web, version, name):
    write(name, version)
    chunk = Path("web", name, "r", "1.0.0" if version == 2 else "c/1/0/0")
    chunk.unlink()  # never written: what xarray fills
    right = VALUES.copy()
    right[2:4] = np.nan if version == 2 else xarray.open_zarr(f"web/{name}")["r"].values[2]
    url = f"{web}/{name}?token=hidden-secret"
    opened = iobench.open_dataset(url, sample_dim="time")
    found = [{key: np.array(each) for key, each in batch.items()}["r"]
             for batch in opened.loader(batch_size=3)]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(found), right)
    assert "hidden-secret" not in repr(opened)


@pytest.mark.filterwarnings("ignore")
def test_a_store_of_the_web_is_converted_and_the_secret_is_not_said(web, capsys):
    write("s.zarr", 3)
    url = f"{web}/s.zarr?token=hidden-secret"
    assert main(["convert", url, "out", "--to", "zarr", "--sample-dim", "time"]) == 0
    said = "".join(capsys.readouterr())
    assert "hidden-secret" not in said + Path("out/iobench.json").read_text()
    np.testing.assert_array_equal(iobench.open_store("out").to_xarray()["r"].values, VALUES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("web", ["hides"], indirect=True)
@pytest.mark.parametrize("version", [2, 3])
def test_a_server_need_not_say_what_is_missing(web, version):
    write("s.zarr", version)
    opened = iobench.open_dataset(f"{web}/s.zarr", sample_dim="time")
    np.testing.assert_array_equal(opened[5]["r"], VALUES[5])
    with pytest.raises(StorageError, match=r"none\.zarr: not permitted \(403 Forbidden\)"):
        iobench.open_dataset(f"{web}/none.zarr", sample_dim="time")


def open_last(url):
    return iobench.open_dataset(url, sample_dim="time")[5]["r"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("web", ["lists"], indirect=True)
@pytest.mark.parametrize("version", [2, 3])
def test_arrays_are_found_in_a_list_of_folders(web, version):
    write("s.zarr", version, consolidated=False)
    np.testing.assert_array_equal(open_last(f"{web}/s.zarr"), VALUES[5])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("web", ["plain"], indirect=True)
@pytest.mark.parametrize("version", [2, 3])
def test_metadata_that_are_not_consolidated_are_refused_with_advice_that_helps(web, version):
    write("s.zarr", version, consolidated=False)
    with pytest.raises(FileFormatError, match=r"no folders; run zarr\.consolidate_metadata"):
        open_last(f"{web}/s.zarr")
    zarr.consolidate_metadata("web/s.zarr")
    np.testing.assert_array_equal(open_last(f"{web}/s.zarr"), VALUES[5])


def test_what_is_not_there_is_said_so(web):
    with pytest.raises(MissingFileError, match=r"none\.zarr: no such file"):
        iobench.open_dataset(f"{web}/none.zarr", sample_dim="time")
