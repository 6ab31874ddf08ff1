"""``iobench info`` says what a dataset, a store and a file are; only what it learnt is left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main
from iobench.datasets.standins import ensure_stand_in
from iobench_maelstrom.downscaling.dataset import DownscalingTier1
from tests.support.http_files import serve


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def told(capsys, tmp_path, monkeypatch):
    """Run ``iobench info`` in an empty folder; return its JSON, or its text."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, json_too=True):
        assert main(["info", *map(str, arguments), *(["--json"] if json_too else [])]) == 0
        out = capsys.readouterr().out
        return json.loads(out) if json_too else out

    return run


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("info")
    arguments = ["--format", "source,numpy", "--workers", "0", "--batches", "4", "--json"]
    places = ["--store-dir", str(folder / "stores"), "--out", str(folder / "run"), "--tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        arguments = ["maelstrom-downscaling-tier1", *arguments, *places, "--compute", "none"]
        code = main(["profile", *arguments])
    assert code == 0
    [manifest] = (folder / "stores").rglob("iobench.json")
    return manifest.parent


def test_a_dataset_without_files_is_told_from_a_tiny_stand_in_that_is_removed(
    told, tmp_path, monkeypatch
):
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "stores"))
    answer = told("maelstrom-downscaling-tier1")
    assert answer["stand_in"]
    assert "tiny" in answer["told_from"]
    assert answer["n_samples"] == 182
    dims = ["channel", "lat", "lon"]
    assert [each["dims"] for each in answer["sample"]["variables"]] == [dims] * 2
    assert [option["name"] for option in answer["options"]] == ["months", "dataset"]
    assert answer["pipelines"] == ["own", "upstream"]
    assert answer["terms_of_use"].endswith("/LICENSE")
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_with_files_is_told_from_them(told, tmp_path):
    root = ensure_stand_in(DownscalingTier1(), tmp_path / "own", tiny=True)
    answer = told("maelstrom-downscaling-tier1", "--data-dir", root, "--option", "months=2020-04")
    assert answer["files"]["names"] == ["downscaling_tier1_2020-04.nc"]
    assert answer["coordinate"] == ["2020-04-01T00", "2020-04-30T12"]


@pytest.mark.quick_cases(1)
def test_a_store(told, store):
    answer = told(store)
    assert (answer["kind"], answer["format"]) == ("store", "numpy")
    assert answer["dataset"] == "maelstrom-downscaling-tier1"
    assert answer["n_shards"] > 0
    assert answer["n_files"] > 0
    names = {each["name"] for each in answer["sample"]["variables"]}
    assert set(answer["statistics"]["all"]) == names


@pytest.mark.parametrize("name", ["test4.nc", "test4.grib"])
def test_a_file_tells_its_dimensions_variables_and_the_command_to_profile_it(told, tmp_path, name):
    path = Path(__file__).parents[1] / "data" / "era5" / name
    found = told(path)
    assert found["kind"] == "file"
    assert found["format"] == {"nc": "NetCDF", "grib": "GRIB"}[name.partition(".")[2]]
    by_name = {each["name"]: each for each in found["variables"]}
    assert {"t", "z"} <= by_name.keys()
    assert {"t": by_name["t"]["units"]} == {"t": "K"}
    assert found["command"] == f"iobench profile {path} --sample-dim {found['sample_dims'][0]}"
    assert told(path, json_too=False).rstrip().endswith(found["command"])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]  # what it learnt
    # The command is one that works.
    words = [*found["command"].split()[1:], "--batches", "1", "--workers", "0"]
    assert main([*words, "--compute", "none", "--store-dir", str(tmp_path / "stores")]) == 0


def test_a_file_behind_a_url_is_told_as_one_here(told, capsys):
    pytest.importorskip("obstore", reason="asks web servers")
    data = Path(__file__).parents[1] / "data" / "era5"
    with serve(data, "secret") as server:
        url = f"http://me:secret@127.0.0.1:{server.server_port}"
        here, there = told(data / "test4.nc"), told(f"{url}/test4.nc")
        same = {"format", "nbytes", "dims", "variables", "coordinates", "skipped", "sample_dims"}
        assert {key: here[key] for key in same} == {key: there[key] for key in same}
        assert "secret" not in json.dumps(there)
        assert main(["info", f"{url}/none.nc"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "none.nc" in line
    assert "secret" not in line


def test_chunks_and_codecs_of_a_file_are_told(told, tmp_path):
    xarray = pytest.importorskip("xarray", reason="writes the files")
    pytest.importorskip("h5netcdf", reason="writes the files")
    values = np.arange(4 * 3 * 5, dtype="f4").reshape(4, 3, 5)
    hostile = "x\x1b[31m"
    data = xarray.Dataset({"t": (("time", "y", "x"), values, {"units": hostile})})
    encoding = {"t": {"zlib": True, "shuffle": True, "chunksizes": (2, 3, 5)}}
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding=encoding)
    [variable] = told(tmp_path / "a.nc")["variables"]
    assert (variable["chunk"], variable["codec"]) == ([2, 3, 5], "shuffle, zlib")
    assert "\x1b" not in told(tmp_path / "a.nc", json_too=False)
