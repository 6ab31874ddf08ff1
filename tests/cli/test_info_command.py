"""``iobench info`` says what a dataset, a store and a run are; only what it learnt is left."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest

from iobench.cli import main
from iobench.cli.descriptions import describe_options
from iobench.cli.info_document import said_in_words, shortened
from iobench.datasets import inspected_netcdf as inspected
from iobench.datasets.standins import StandInIdentity, ensure_stand_in
from iobench.errors import OptionError, UnknownNameError
from iobench.registry import (
    dataset_factory,
    dataset_names,
    find_dataset,
    find_format,
    format_names,
)
from iobench.stores.places import list_items
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.ens10.ens5mini import Ens5mini
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
def run_and_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("info")
    arguments = ["--format", "source,numpy", "--workers", "0", "--batches", "4", "--json"]
    places = ["--store-dir", str(folder / "stores"), "--out", str(folder / "run"), "--tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        code = main(["profile", "maelstrom-ens5mini", *arguments, *places, "--compute", "none"])
    assert code == 0
    [manifest] = (folder / "stores").rglob("iobench.json")
    return folder / "run", manifest.parent


def test_a_dataset_without_files_is_told_from_a_tiny_stand_in_that_is_removed(
    told, tmp_path, monkeypatch
):
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "stores"))
    answer = told("maelstrom-ens5mini")
    assert answer["stand_in"]
    assert "tiny" in answer["told_from"]
    assert answer["n_samples"] == 8
    assert answer["sample"]["variables"][0]["dims"] == ["channel", "latitude", "longitude"]
    assert len(answer["sample"]["variables"][0]["channels"]) == 154
    assert [option["name"] for option in answer["options"]] == ["date", "dtype"]
    assert answer["normalisation"]["formula"] == "(x - mean) / (std + 0.1)"
    assert answer["published"] is None
    assert answer["pipelines"] == ["own", "upstream", "climetlab"]
    assert answer["windows"] == {"position_units": "seconds", "n_rows": 1}
    assert answer["terms_of_use"].endswith("ENS10_LICENCE.txt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_dataset_whose_stand_in_is_there_is_told_from_it(told, tmp_path, monkeypatch):
    monkeypatch.setattr("iobench_maelstrom.ens10.ens5mini_stand_in.DEFAULT_YEARS", (1998,))
    dataset = Ens5mini()
    root = StandInIdentity.of(dataset).root(tmp_path)
    ensure_stand_in(dataset, root)
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path))
    answer = told("maelstrom-ens5mini")
    assert answer["told_from"].startswith("the stand-in that profiles use")
    assert answer["sample"]["variables"][0]["shape"] == [154, 40, 80]


def test_a_dataset_with_files_is_told_from_them(told, tmp_path):
    root = ensure_stand_in(Ens5mini(), tmp_path / "own", tiny=True)
    answer = told("maelstrom-ens5mini", "--data-dir", root, "--option", "date=07")
    assert answer["told_from"] == "the files found"
    assert answer["files"]["names"] == ["ens5mini.07.nc"]
    assert answer["coordinate"] == ["1998-07-02", "1999-07-05"]


def test_a_dataset_in_words(told):
    text = told("maelstrom-ens10", json_too=False)
    assert "21.1 ms for a batch of 1 (forward 5.25 ms, backward 15.9 ms)" in text
    assert "input inputs (channel 22, latitude 91, longitude 180) <f4, 1" in text
    assert "target t2m (latitude 91, longitude 180) <f4, K" in text
    assert "4; train 2, test 2; 2015-01-01 to 2016-01-04" in text


def test_what_windows_are_laid_over_is_told(told, tiny_root):
    name = "maelstrom-downscaling-tier1"
    words = (name, "--data-dir", tiny_root(find_dataset(name)))
    assert told(*words)["windows"] == {"position_units": "seconds", "n_rows": 1}
    text = told(*words, json_too=False)
    assert "--window makes windows over one row, seconds" in text
    assert "own, upstream, climetlab" in text
    columns = "maelstrom-radiation-tf"
    words = (columns, "--data-dir", tiny_root(find_dataset(columns)))
    assert "none: samples do not" in told(*words, json_too=False)


@pytest.mark.thorough
def test_starts_that_are_not_evenly_spaced_have_no_windows_and_it_says_why(
    told, tmp_path, monkeypatch
):
    dates = ("0101", "0104", "0108")
    monkeypatch.setattr("iobench_maelstrom.ens10.stand_in.ALL_DATES", tuple(reversed(dates[1:])))
    root = ensure_stand_in(Ens10(), tmp_path / "own", tiny=True)
    monkeypatch.setattr("iobench_maelstrom.ens10.stand_in.ALL_DATES", dates)
    more = ensure_stand_in(Ens10(), tmp_path / "more", tiny=True)
    shutil.copytree(more / "url", root / "url", dirs_exist_ok=True)
    words = ("maelstrom-ens10", "--data-dir", root, "--option", "target=none")
    text = told(*words, json_too=False)
    assert "none: windows need evenly spaced samples" in " ".join(text.split())


@pytest.mark.parametrize("name", format_names())
def test_a_format_tells_its_options(told, name):
    assert told(name)["version"] == find_format(name).version
    text = told(name, json_too=False)
    assert text.startswith(f"{name}: a store format")
    assert "option" in text.lower()
    assert max(map(len, text.splitlines())) <= 80


def test_options_of_zarr_are_told(told):
    text = told("zarr", json_too=False)
    assert all(word in text for word in ("codec", "blosc-lz4", "inner-chunk"))


@pytest.mark.quick_cases(1)
def test_a_store(told, run_and_store):
    _, store = run_and_store
    answer = told(store)
    assert (answer["kind"], answer["format"]) == ("store", "numpy")
    assert answer["dataset"] == "maelstrom-ens5mini"
    assert sum(shard["n_samples"] for shard in answer["shards"]) == answer["n_samples"]
    assert sum(shard["nbytes"] for shard in answer["shards"]) == answer["nbytes"]
    text = told(store, json_too=False)
    assert f"{store}: numpy store of maelstrom-ens5mini" in " ".join(text.split())
    assert "shard-00000" in text
    names = {each["name"] for each in answer["sample"]["variables"]}
    assert set(answer["statistics"]["all"]) == names
    assert "Values, over all samples" in text


def test_a_store_of_before_statistics_does_not_know_them(told, run_and_store, tmp_path):
    _, store = run_and_store
    shutil.copytree(store, tmp_path / "store")
    manifest = tmp_path / "store/iobench.json"
    values = json.loads(manifest.read_text())
    del values["statistics"], values["crc32c"]
    manifest.write_text(json.dumps(values))
    assert told(tmp_path / "store")["statistics"] is None
    text = " ".join(told(tmp_path / "store", json_too=False).split())
    assert "Statistics are unknown: the store was made before iobench kept them" in text


def test_a_run(told, run_and_store):
    run, _ = run_and_store
    answer = told(run)
    assert [one["format"] for one in answer["runs"]] == ["source", "numpy"]
    assert all(one["n_span_files"] > 0 for one in answer["runs"])
    assert "as source" in told(run, json_too=False)
    assert [one["format"] for one in told(run / "numpy")["runs"]] == ["numpy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["maelstrom-ens5minni"], "unknown dataset 'maelstrom-ens5minni': did you mean"),
        (["."], "is neither a store (it has no iobench.json) nor a run (no run.json)"),
        ([".", "--data-dir", "."], "are for datasets"),
        (["maelstrom-ens5mini", "--option", "date=13"], "expected MM, MMDD or YYYYMMDD"),
        (["maelstrom-ens5mini", "--data-dir", "nowhere"], "nowhere: no such folder"),
        (["maelstrom-ens5mini", "--data-dir", "."], "ens5mini.01.nc"),
    ],
)
def test_what_cannot_be_told_is_said_in_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["info", *arguments]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_damaged_run_is_said(capsys, tmp_path: Path):
    (tmp_path / "run.json").write_text("{")
    assert main(["info", str(tmp_path)]) == 1
    assert "run.json: is not JSON" in capsys.readouterr().err


def test_options_are_told_from_the_docstring():
    def factory(**options):
        """Return it.

        Parameters
        ----------
        size : {"5GB", "5TB"}
            Which of two,
            or ``none``.
        x, y : str, optional
            Where.

        Raises
        ------
        OptionError
            Else.
        """

    assert describe_options(factory) == [
        {"name": "size", "values": '{"5GB", "5TB"}', "text": "Which of two, or none."},
        {"name": "x", "values": "str, optional", "text": "Where."},
        {"name": "y", "values": "str, optional", "text": "Where."},
    ]
    assert describe_options(lambda: None) == []


@pytest.mark.parametrize("name", dataset_names())
def test_every_option_told_is_one_the_dataset_knows(name):
    """As the factory itself lists them when it is given one it does not know."""
    factory = dataset_factory(name)
    with pytest.raises((OptionError, UnknownNameError)) as error:
        factory(no_such_option="x")
    told = {option["name"] for option in describe_options(factory)}
    assert all(option in str(error.value) for option in told)
    assert "options" not in told


def test_long_lists_are_shortened_and_say_how_long_they_are():
    assert shortened(["a", "b"]) == "a, b"
    assert shortened([str(n) for n in range(10)], 4) == "0, 1, 2, ... 9 (10 in all)"
    assert said_in_words({"a": [True, None], "b": []}) == "a yes, none, b none"


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
    text = told(path, json_too=False)
    assert text.startswith(f"{path}: {found['format']}, ")
    assert text.rstrip().endswith(found["command"])
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
    assert "none.nc: no such file" in line
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
    text = told(tmp_path / "a.nc", json_too=False)
    assert "chunks 2 x 3 x 5; shuffle, zlib" in " ".join(text.split())
    assert "--sample-dim  time (4), y (3), x (5)" in text
    assert "\x1b" not in text


def test_a_zarr_store_of_others_is_told(told, tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3", reason="writes the store")
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("t", shape=(4, 6), chunks=(2, 6), dtype="f4", dimension_names=("time", "x"))[
        :
    ] = 1.0
    found = told(tmp_path / "a.zarr")
    assert found["format"] == "Zarr 3"
    [variable] = found["variables"]
    assert (variable["dims"], variable["chunk"]) == (["time", "x"], [2, 6])
    assert variable["codec"] == "zstd"
    assert found["sample_dims"] == ["time", "x"]


def test_what_a_file_holds_is_kept_for_the_next_command(told, tmp_path, monkeypatch):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 3)
        file.createVariable("t", "f4", ("time",))[:] = 0
    os.utime(path, (1.6e9, 1.6e9))
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "kept"))
    first = told(path)
    monkeypatch.setattr(inspected, "inspect_netcdf", None)
    assert told(path) == first
    assert [item.kind for item in list_items([tmp_path / "kept"])] == ["index"]
