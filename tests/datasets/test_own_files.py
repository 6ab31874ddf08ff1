"""Files of the user's own, and what cannot be used, through the command line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from iobench.cli import main

DATA = Path(__file__).parents[1] / "data"
LONG_AGO_S = 1_600_000_000
MEMBERS = "era5/era5-levels-members.grib"
YR = [f"maelstrom-yr/air_temperature/5GB/{day}.nc" for day in ("20200301T03Z", "20200302T09Z")]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Copy files of tests/data into the folder the command runs in; return their names."""
    monkeypatch.chdir(tmp_path)

    def copy(*names: str) -> list[str]:
        copies = [Path(shutil.copy(DATA / name, tmp_path)) for name in names]
        for path in copies:
            os.utime(path, (LONG_AGO_S, LONG_AGO_S))  # younger ones are not kept
        return [path.name for path in copies]

    return copy


@pytest.fixture
def runs(capsys: pytest.CaptureFixture[str]):
    """Profile in this process; return the JSON of its runs."""

    def run(*arguments: str) -> list[dict]:
        quick = ("--workers", "0", "--batches", "6", "--compute", "none", "--out", "run", "--json")
        assert main(["profile", *arguments, *quick]) == 0
        return json.loads(capsys.readouterr().out)["runs"]

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Profile what cannot be used; return the one line that is said."""

    def run(*arguments: str) -> str:
        before = set(tmp_path.iterdir())
        assert main(["profile", *arguments, "--workers", "0"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        [line] = said.err.splitlines()
        assert set(tmp_path.iterdir()) == before
        return line

    return run


def test_grib_members_in_every_format(own, runs) -> None:
    done = runs(*own(MEMBERS), "--sample-dim", "time", "--format", "source,numpy,tfrecord,zarr")
    assert [run["format"] for run in done] == ["source", "numpy", "tfrecord", "zarr"]
    for run in done:
        assert run["batches"] == 6
        assert run["dataset"] == "era5-levels-members.grib"
        assert run["stand_in"] is False
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]


def test_all_that_was_made_of_own_files_is_listed_and_nothing_lies_beside_them(
    own, runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = own(MEMBERS)
    runs(*names, "--sample-dim", "time", "--format", "numpy", "--store-dir", "kept")
    assert {path.name for path in tmp_path.iterdir()} == {*names, "run", "kept"}
    assert main(["cache", "--json", "--store-dir", "kept"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    own_items = [item for item in items if Path(item["path"]).is_relative_to(tmp_path)]
    assert sorted(item["kind"] for item in own_items) == ["index", "probe"]
    for item in own_items:
        shutil.rmtree(item["path"])
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    made = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert left == {*names, *made}


def test_an_unreadable_file(own, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = own(MEMBERS)
    opened = os.open

    def refuse(path, *rest, **more):
        if Path(path).name == name:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    line = refused(name, "--sample-dim", "time")
    assert line == f"iobench: {name}: cannot be opened: Permission denied"
