"""A plain loop, the real plugin, and windows, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.cpus import available_cpus


@pytest.fixture
def profile(capsys: pytest.CaptureFixture[str], tmp_path: Path, store_dir: Path, monkeypatch):
    """Profile in this process; return the JSON of its runs and what was said beside it."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[list[dict], str]:
        quick = ("--store-dir", str(store_dir), "--out", "run", "--json")
        assert main(["profile", *arguments, *quick]) == 0
        said = capsys.readouterr()
        return json.loads(said.out)["runs"], said.err

    return run


def test_a_plain_loop_beside_ours(profile, tmp_path: Path) -> None:
    pytest.importorskip("xarray", reason="the plain loop reads with xarray")
    runs, _ = profile(
        "maelstrom-radiation", "--tiny", "--pipeline", "upstream,own", "--batches", "6",
        "--compute", "1ms", "--batch-size", "2", "--split", "train",
    )  # fmt: skip
    assert [run["pipeline"] for run in runs] == ["upstream", "own"]
    upstream, own = runs
    assert (upstream["framework"], own["framework"]) == ("workers", "native")
    n_workers = own["workers"] or own["threads"]
    assert upstream["workers"] == n_workers == available_cpus()  # neither has more than the other
    facts = [
        json.loads((tmp_path / "run" / each / "run.json").read_text())
        for each in ("upstream", "source")
    ]
    assert facts[0]["prefetch"] == facts[1]["prefetch"]
    for run in runs:
        assert run["batches"] == 6
        assert run["nbytes"] == own["nbytes"]
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]
        assert all(row["hidden_ns"] >= 0 for row in run["stages"])
    names = {row["stage"] for row in upstream["stages"]}
    assert {"fused:read+decode", "preprocess", "collate"} <= names
    assert (tmp_path / "run" / "upstream" / "run.json").exists()


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Thirty steps of six hours, three of them missing."""
    netcdf4 = pytest.importorskip("netCDF4", reason="a NetCDF file is written here")
    path = tmp_path / "series.nc"
    with netcdf4.Dataset(path, "w") as file:
        file.createDimension("time", 30)
        file.createDimension("x", 5)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "hours since 2020-01-01"
        time[:] = [6.0 * step + (18 if step >= 12 else 0) for step in range(30)]
        field = file.createVariable("t2m", "f4", ("time", "x"))
        field[:] = [[step + x / 10 for x in range(5)] for step in range(30)]
    return path


def test_windows_of_own_files(profile, series: Path, tmp_path: Path) -> None:
    runs, _said = profile(
        str(series), "--sample-dim", "time", "--window=-1,0:1,2", "--format", "source,numpy",
        "--workers", "0", "--epochs", "1", "--compute", "none",
    )  # fmt: skip
    # 30 steps, 3 centres lost at the ends and 3 at the gap.
    for run in runs:
        assert run["n_samples"] == 24
        assert run["samples"] == 24
        assert "transform:window" in {row["stage"] for row in run["stages"]}
    document = json.loads((tmp_path / "run/source/run.json").read_text())
    assert document["windows"]["gaps"][0]["n_missing"] == 3
