"""``iobench info`` says what a dataset, a store and a file are."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))
from other_user import as_other_user, folder_for_all

from iobench.cli import main
from iobench.datasets.locate import ensure_stand_in
from iobench_maelstrom.downscaling.dataset import DownscalingTier1
from tests.support.http_files import serve

DATA = Path(__file__).parents[1] / "data" / "era5"


@pytest.fixture
def told(capsys, tmp_path, monkeypatch):
    """Run ``iobench info`` in an empty folder; return its JSON, or its text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, json_too=True):
        assert main(["info", *map(str, arguments), *(["--json"] if json_too else [])]) == 0
        out = capsys.readouterr().out
        return json.loads(out) if json_too else out

    return run


@pytest.mark.long
def test_a_dataset_is_told_from_its_files_or_a_tiny_stand_in_that_is_removed(
    told, tmp_path, monkeypatch
):
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "stores"))
    answer = told("maelstrom-downscaling-tier1")
    assert answer["stand_in"]
    assert "tiny" in answer["told_from"]
    assert answer["n_samples"] == 182
    dims = ["channel", "lat", "lon"]
    assert [each["dims"] for each in answer["sample"]["variables"]] == [dims] * 2
    assert [option["name"] for option in answer["options"]] == ["months"]
    assert answer["pipelines"] == ["own", "upstream"]
    assert answer["terms_of_use"].endswith("/LICENSE")
    assert list(tmp_path.iterdir()) == []
    root = ensure_stand_in(DownscalingTier1(), tmp_path / "own", tiny=True)
    answer = told("maelstrom-downscaling-tier1", "--data-dir", root, "--option", "months=2020-04")
    assert answer["files"]["names"] == ["downscaling_tier1_2020-04.nc"]
    assert answer["coordinate"] == ["2020-04-01T00", "2020-04-30T12"]


@pytest.mark.long
def test_a_store_tells_its_samples_and_statistics(told, tmp_path):
    words = ["convert", "maelstrom-downscaling-tier1", "store", "--to", "numpy", "--tiny"]
    assert main([*words, "--store-dir", str(tmp_path / "stores"), "--quiet", "--json"]) == 0
    assert "maelstrom-downscaling-tier1" in told("store", json_too=False)
    answer = told("store")
    assert (answer["kind"], answer["format"]) == ("store", "numpy")
    assert (answer["n_shards"] > 0, answer["n_files"] > 0) == (True, True)
    names = {each["name"] for each in answer["sample"]["variables"]}
    assert set(answer["statistics"]["all"]) == names


@pytest.mark.parametrize(("name", "form"), [("test4.nc", "NetCDF"), ("test4.grib", "GRIB")])
def test_a_file_tells_its_dimensions_variables_and_the_command_to_profile_it(
    told, tmp_path, name, form
):
    found = told(DATA / name)
    assert (found["kind"], found["format"]) == ("file", form)
    by_name = {each["name"]: each for each in found["variables"]}
    assert {"t", "z"} <= by_name.keys()
    assert by_name["t"]["units"] == "K"
    dim = found["sample_dims"][0]
    assert found["command"] == f"iobench profile {DATA / name} --sample-dim {dim}"
    assert told(DATA / name, json_too=False).rstrip().endswith(found["command"])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]  # what it learnt
    # The command is one that works.
    words = [*found["command"].split()[1:], "--batches", "1", "--workers", "0"]
    assert main([*words, "--compute", "none", "--store-dir", str(tmp_path / "stores")]) == 0


def test_a_file_behind_a_url_is_told_as_one_here(told, capsys):
    pytest.importorskip("obstore", reason="asks web servers")
    with serve(DATA, "secret") as server:
        url = f"http://me:secret@127.0.0.1:{server.server_port}"
        here, there = told(DATA / "test4.nc"), told(f"{url}/test4.nc")
        same = {"format", "nbytes", "dims", "variables", "coordinates", "skipped", "sample_dims"}
        assert {key: here[key] for key in same} == {key: there[key] for key in same}
        assert "secret" not in json.dumps(there)
        assert main(["info", f"{url}/none.nc"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert ("none.nc" in line, "secret" in line) == (True, False)


def test_chunks_and_codecs_of_a_file_are_told(told, tmp_path):
    xarray = pytest.importorskip("xarray", reason="writes the files")
    pytest.importorskip("h5netcdf", reason="writes the files")
    values = np.arange(4 * 3 * 5, dtype="f4").reshape(4, 3, 5)
    data = xarray.Dataset({"t": (("time", "y", "x"), values, {"units": "x\x1b[31m"})})
    encoding = {"t": {"zlib": True, "shuffle": True, "chunksizes": (2, 3, 5)}}
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding=encoding)
    [variable] = told(tmp_path / "a.nc")["variables"]
    assert (variable["chunk"], variable["codec"]) == ([2, 3, 5], "shuffle, zlib")
    assert "\x1b" not in told(tmp_path / "a.nc", json_too=False)


@pytest.mark.long
def test_a_user_without_name_and_home_has_a_place_too():
    """As a container's, told by a number alone."""
    run = [sys.executable, "-m", "iobench", "profile", "maelstrom-ens10"]
    with folder_for_all() as made:
        assert main(["synthesize", "maelstrom-ens10", str(made / "mine"), "--tiny"]) == 0
        found = as_other_user(made, *run, "--data-dir", made / "mine", "--batches", "3", user=54321)
    assert found.returncode == 0, found.stderr
    shutil.rmtree(Path(tempfile.gettempdir(), "iobench-54321"), ignore_errors=True)
