"""A run whose processes opened files again, for want of room, says so."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

N_FILES = 80


@pytest.mark.long
@pytest.mark.timeout(120)
def test_info_counts_files_that_were_opened_again(tmp_path: Path, iobench_here) -> None:
    xr = pytest.importorskip("xarray")
    for number in range(N_FILES):
        times = np.datetime64("2000-01-01", "ns") + np.array([number]) * np.timedelta64(1, "h")
        data = {"v": (("time", "x"), np.full((1, 20), number, "f4"))}
        path = tmp_path / f"{number:03d}.nc"
        xr.Dataset(data, {"time": times}).to_netcdf(path, format="NETCDF3_CLASSIC")
    files = sorted(map(str, tmp_path.glob("*.nc")))

    def info(*arguments: str) -> str:
        done = iobench_here("info", *arguments)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def iobench(*arguments: str, limit: int) -> None:
        def set_limit() -> None:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))

        command = [sys.executable, "-m", "iobench", *arguments]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=100,
            preexec_fn=set_limit,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    for limit, name, workers in ((64, "few", "1"), (1024, "enough", "0")):
        iobench(
            "profile", *files, "--sample-dim", "time", "--store-dir", "kept", "--pipeline", "own",
            "--framework", "workers", "--workers", workers, "--batch-size", "8",
            "--epochs", "2", "--compute", "none", "--out", name, limit=limit,
        )  # fmt: skip
    text = info("few")
    run = json.loads(info("few", "--json"))["runs"][0]
    (told,) = run["files_reopened"]
    assert (told["worker"], told["limit"]) == (0, 32)
    assert 0 < told["reopened"] <= told["opened"] - N_FILES // 2
    said = f"worker 0: {told['reopened']} of {told['opened']} files opened had been open before"
    assert said in " ".join(text.split())
    assert "reopened" not in info("enough")
