"""One command on a real SLURM: tasks of srun, a job array, dask workers, the end of a time limit.

Each store is compared with that of one undisturbed process, byte by byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

IOBENCH = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]
N_SAMPLES = 24
N_TASKS = 4
OWN = ["own.nc", "--to", "tfrecord", "--sample-dim", "time", "--shard-size", "4096"]
MEETING = ["samples:Meeting", "--to", "numpy", "--shard-size", "4096"]
SLOW = ["samples:Slow", "--to", "numpy", "--shard-size", "32768"]
SAMPLES = f'''
import os
import threading
from pathlib import Path

import numpy as np


class Meeting:
    """Samples; the later ones are made once all tasks of the job have begun one."""

    def __len__(self):
        return {N_SAMPLES}

    def __getitem__(self, number):
        if number >= len(self):
            raise IndexError(number)
        if number >= 4 and "SLURM_PROCID" in os.environ:
            Path("task-" + os.environ["SLURM_PROCID"]).touch()
            for _ in range(600):
                if len(list(Path().glob("task-*"))) == {N_TASKS}:
                    break
                threading.Event().wait(0.1)
        return {{"x": np.full((32, 32), number, "f4")}}


class Slow:
    """Samples that take longer than the job may, while there is a file "slow"."""

    def __len__(self):
        return 600

    def __getitem__(self, number):
        if number >= len(self):
            raise IndexError(number)
        if number >= 16 and os.path.exists("slow"):
            threading.Event().wait(0.5)
        return {{"x": np.full((32, 32), number, "f4")}}
'''

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(240)]


@pytest.fixture
def environment(slurm: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Python finds what is in the folder of the test."""
    folders = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**slurm, "PYTHONPATH": os.pathsep.join(folders)}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """Run a command where jobs find their source; return what it said."""
    netcdf4 = pytest.importorskip("netCDF4", reason="writes the source")
    (tmp_path / "samples.py").write_text(SAMPLES)
    with netcdf4.Dataset(tmp_path / "own.nc", "w") as file:
        for dim, length in (("time", N_SAMPLES), ("y", 32), ("x", 32)):
            file.createDimension(dim, length)
        variable = file.createVariable(
            "t", "f4", ("time", "y", "x"), zlib=True, chunksizes=(5, 32, 32)
        )
        variable[:] = np.random.default_rng(0).normal(280, 10, (N_SAMPLES, 32, 32))

    def run_command(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )

    return run_command


def convert(out: str, arguments: list[str], *more: str) -> list[str]:
    return [*IOBENCH, "convert", arguments[0], out, *arguments[1:], "--json", *more]


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_like_one_process(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """Convert once more, without SLURM, and compare; verify what is there."""
    alone = run(*convert("alone", arguments))
    assert alone.returncode == 0, alone.stderr
    assert content(tmp_path / "out") == content(tmp_path / "alone")
    verified = run(*IOBENCH, "verify", "out")
    assert verified.returncode == 0, verified.stderr


def test_tasks_of_srun_share_the_work(run: Run, tmp_path: Path) -> None:
    done = run(
        "srun", f"--ntasks={N_TASKS}", "--output=task%t.json", "--error=task%t.err",
        *convert("out", MEETING),
    )  # fmt: skip
    assert done.returncode == 0, [path.read_text() for path in tmp_path.glob("task*.err")]
    outcomes = [json.loads((tmp_path / f"task{n}.json").read_text()) for n in range(N_TASKS)]
    assert all(outcome["n_written"] >= 1 for outcome in outcomes)
    assert sum(outcome["n_written"] for outcome in outcomes) == N_SAMPLES
    assert_like_one_process(run, tmp_path, MEETING)


def test_a_job_array_shares_the_work(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text('#!/bin/bash\nexec "$@"\n')
    done = run(
        "sbatch", "--wait", f"--array=0-{N_TASKS - 1}", "--output=task%a.json",
        "--error=task%a.err", "job.sh", *convert("out", OWN),
    )  # fmt: skip
    assert done.returncode == 0, [path.read_text() for path in tmp_path.glob("task*.err")]
    outcomes = [json.loads((tmp_path / f"task{n}.json").read_text()) for n in range(N_TASKS)]
    assert sum(outcome["n_written"] for outcome in outcomes) == N_SAMPLES
    assert_like_one_process(run, tmp_path, OWN)


@contextmanager
def started(
    environment: dict[str, str], cwd: Path, *command: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside; end it at the end of the block."""
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_dask_workers_of_srun_convert(
    environment: dict[str, str], run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="needs dask.distributed")
    dask = [sys.executable, "-m", "dask"]
    told = tmp_path / "scheduler.json"
    scheduler = [
        *dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--scheduler-file", str(told),
    ]  # fmt: skip
    worker = ["worker", "--scheduler-file", str(told), "--nthreads", "1", "--no-dashboard"]
    with started(environment, tmp_path, *scheduler):
        wait_for(lambda: told.exists() and told.stat().st_size > 0)
        with started(environment, tmp_path, "srun", "--ntasks=2", *dask, *worker, "--no-nanny"):
            address = json.loads(told.read_text())["address"]
            done = run(*convert("out", OWN, "--scheduler", address))
    assert done.returncode == 0, done.stderr
    assert_like_one_process(run, tmp_path, OWN)


@pytest.mark.parametrize("ends", ["its time limit", "scancel"])
def test_a_job_that_has_to_end_goes_on_in_the_next(
    environment: dict[str, str], run: Run, tmp_path: Path, ends: str
) -> None:
    """SLURM's warning before the limit, or the SIGTERM of who wants the job gone: exit 75."""
    (tmp_path / "slow").touch()
    # The limit is a minute; SLURM looks every half minute, so its warning may come so much earlier.
    command = ["srun", "--ntasks=1", "--time=1", "--signal=USR1@15", "--job-name=slow"]
    with started(environment, tmp_path, *command, *convert("out", SLOW)) as job:
        if ends == "scancel":
            wait_for(lambda: list((tmp_path / "out").glob("shard-*.npy")) != [])
            assert run("scancel", "--signal=TERM", "--name=slow").returncode == 0
        _, stderr = job.communicate(timeout=180)
    assert job.returncode == 75, stderr
    assert "finished work is kept; run it again: iobench convert samples:Slow out" in stderr
    assert not (tmp_path / "out/iobench.json").exists()
    n_shards = len(list((tmp_path / "out").glob("shard-*.npy")))
    (tmp_path / "slow").unlink()
    again = run("srun", "--ntasks=1", *convert("out", SLOW))
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["n_resumed"] == n_shards > 0
    assert_like_one_process(run, tmp_path, SLOW)


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Poll a condition that another process brings about; fail after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the other process did not get there"
        time.sleep(0.05)
