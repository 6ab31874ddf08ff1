"""A store on slow storage: staging is advised, its commands run, and a trial obtains it."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xarray = pytest.importorskip("xarray", reason="the store is made from a NetCDF file")
pytest.importorskip("netCDF4", reason="the store is made from a NetCDF file")
pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_a_store_that_others_share_is_staged_where_that_gains(
    iobench_here, slow_storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "own.nc"
    values = np.random.default_rng(0).normal(size=(48, 64, 64)).astype(np.float32)
    xarray.Dataset({"t": (("time", "y", "x"), values)}).to_netcdf(source)
    done = iobench_here(
        "convert", source, tmp_path / "own.numpy", "--to", "numpy", "--sample-dim", "time"
    )
    assert done.returncode == 0, done.stderr
    far = Path(shutil.copytree(tmp_path / "own.numpy", slow_storage(latency_s=0.02) / "own.numpy"))
    near = tmp_path / "near"
    near.mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(near))
    words = ["--framework", "workers", "--workers", "0", "--batches", "24", "--batch-size", "2"]
    run = tmp_path / "run"
    # A process of its own, whose command line is kept.
    called = [sys.executable, "-m", "iobench", "profile", far, *words, "--compute", "5ms"]
    subprocess.run([*called, "--out", run], check=True, capture_output=True)
    advice = json.loads(iobench_here("advise", run, "--json").stdout)
    every = [*advice["changes"], *advice["to_measure"]]
    at, change = next((n, e) for n, e in enumerate(every, 1) if "stage" in e["settings"])
    assert change["settings"]["stage"] == str(near)
    assert change["break_even"]["epochs"] < 100
    staging, loading, profile = change["commands"]
    assert loading == f'iobench.loader("{near}/own.numpy", 2, shuffle=True)'
    assert iobench_here(*shlex.split(staging)[1:]).returncode == 0
    words = (*shlex.split(profile)[1:], "--out", tmp_path / "staged")
    done = iobench_here(*words, "--json")
    assert done.returncode == 0, done.stderr
    staged = json.loads(done.stdout)["runs"][0]["staging"]  # the copy tells what it took
    assert staged["nbytes"] >= values.nbytes
    assert staged["staging_to_epoch"] > 0
    shutil.rmtree(near)
    near.mkdir()
    done = iobench_here("advise", run, "--json", "--try", str(at), "--rounds", "1")
    assert done.returncode == 0, done.stderr
    tried = next(e for e in json.loads(done.stdout)["tried"] if "stage" in e["settings"])
    assert tried["saved_fraction"] > 0.3
    assert change["high_fraction"] > 0.3
    assert tried["staging_s"] > 0
    assert not [*near.iterdir()]  # the copy of a trial goes with it
