"""Files of the user's own, and what cannot be used, through the command line."""

from __future__ import annotations

import errno
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


def test_two_netcdf_files_in_every_format(own, runs, tmp_path: Path) -> None:
    formats = ("--format", "source,numpy,tfrecord,zarr", "--pipeline", "own")
    done = runs(*own(*YR), "--sample-dim", "leadtime", *formats)
    assert len(done) == 4
    document = json.loads((tmp_path / "run/numpy/run.json").read_text())
    assert (document["n_samples"], document["dataset"]) == (6, "2 files")


def test_all_that_was_made_of_own_files_is_listed_and_removed_and_nothing_lies_beside_them(
    own, runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = own(MEMBERS)
    runs(*names, "--sample-dim", "time", "--format", "numpy", "--store-dir", "kept")
    assert {path.name for path in tmp_path.iterdir()} == {*names, "run", "kept"}
    assert main(["cache", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    own_items = [item for item in items if Path(item["path"]).is_relative_to(tmp_path)]
    assert sorted(item["kind"] for item in own_items) == ["index", "probe"]
    removals = [f"--remove={item['path']}" for item in own_items]
    assert main(["cache", *removals]) == 0
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    made = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert left == {*names, *made}


@pytest.mark.thorough
def test_nothing_lies_beside_read_only_files_of_one_name(own, runs) -> None:
    """Data that is read-only, two folders with files of one name, data that was moved."""
    [name] = own(MEMBERS)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        shutil.copy(name, f"{folder}/x.grib")
        Path(folder).chmod(0o555)
    runs("a/x.grib", "--sample-dim", "time", "--store-dir", "stores")
    shutil.rmtree("run")
    runs("b/x.grib", "--sample-dim", "time", "--store-dir", "stores")
    shutil.rmtree("run")
    Path("a").chmod(0o755)
    Path("a").rename("c")
    runs("c/x.grib", "--sample-dim", "time", "--store-dir", "stores")
    assert [path.name for folder in "bc" for path in Path(folder).iterdir()] == ["x.grib"] * 2


def test_a_folder_that_a_profile_failed_in_can_be_converted_into(own, capsys, tmp_path: Path):
    [name] = own(MEMBERS)
    Path("data").mkdir()
    Path("data/x.grib").write_bytes(Path(name).read_bytes()[:5000])
    assert main(["profile", "data/x.grib", "--sample-dim", "time", "--workers", "0"]) == 1
    Path("data/x.grib").unlink()
    command = ["convert", name, "data", "--to", "numpy", "--sample-dim", "time"]
    assert main(command) == 0, capsys.readouterr().err


def cut(name: str, nbytes: int) -> str:
    whole = Path(name)
    Path("cut").write_bytes(whole.read_bytes()[:nbytes])
    return "cut"


@pytest.mark.parametrize(
    ("name", "nbytes", "sample_dim"),
    [(MEMBERS, 1_000_000, "time"), ("era5/test4.nc", 300_000, "level"), (YR[0], 20_000, "x")],
)
def test_a_file_cut_short_is_named(own, refused, name: str, nbytes: int, sample_dim: str) -> None:
    [copied] = own(name)
    line = refused(cut(copied, nbytes), "--sample-dim", sample_dim)
    assert line.startswith("iobench: cut: ")
    assert line.count("cut: ") == 1
    assert "cut short" in line or "truncated" in line
    assert line.endswith("fetch the file again")


def test_a_corrupted_file_is_one_error(own, refused) -> None:
    line = refused(*own("era5/era5-levels-corrupted.grib"), "--sample-dim", "time")
    assert "era5-levels-corrupted.grib: the GRIB message at offset 0 is damaged" in line
    assert line.endswith("fetch the file again")


def test_an_unreadable_file(own, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = own(MEMBERS)
    opened = os.open

    def refuse(path, *rest, **more):
        if Path(path).name == name:
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    line = refused(name, "--sample-dim", "time")
    assert (
        line
        == f"iobench: {name}: cannot be opened: Permission denied; give yourself read permission"
    )


def test_a_full_disk_leaves_the_store_resumable(
    own, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", *own(MEMBERS), "--sample-dim", "time", "--format", "numpy", "--json"]
    command += ["--workers", "0", "--batches", "2", "--compute", "none", "--store-dir", "kept"]
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if "stores" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert main([*command, "--out", "a"]) in (1, 75)
    assert "the disk is full" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.rglob("iobench.json"))
    assert main([*command, "--out", "b"]) == 0
    assert len(list(tmp_path.rglob("iobench.json"))) == 1
