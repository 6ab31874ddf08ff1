"""Commands on a real SLURM: tasks of srun, a job array, dask workers, the end of a time limit.

Each store is compared with that of one undisturbed process, byte by byte; of ``srun iobench run``
all launchers record into one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

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

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def environment(slurm, tmp_path):
    """Return an environment in which Python finds what is in the folder of the test."""
    folders = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**slurm, "PYTHONPATH": os.pathsep.join(folders)}


@pytest.fixture
def run(environment, tmp_path):
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

    def run_command(*command):
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )

    return run_command


def convert(out, arguments, *more):
    return [*IOBENCH, "convert", arguments[0], out, *arguments[1:], "--json", *more]


def content(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def assert_like_one_process(run, tmp_path, arguments):
    """Convert once more, without SLURM, and compare; verify what is there."""
    alone = run(*convert("alone", arguments))
    assert alone.returncode == 0, alone.stderr
    assert content(tmp_path / "out") == content(tmp_path / "alone")
    verified = run(*IOBENCH, "verify", "out")
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (["srun", f"--ntasks={N_TASKS}", "--output=task%t.json", "--error=task%t.err", "bash",
          "job.sh"], MEETING),
        (["sbatch", "--wait", f"--array=0-{N_TASKS - 1}", "--output=task%a.json",
          "--error=task%a.err", "job.sh"], OWN),
    ],
    ids=["srun", "array"],
)  # fmt: skip
def test_tasks_share_the_work(run, tmp_path, command, arguments):
    part = f"$((${{SLURM_ARRAY_TASK_ID:-$SLURM_PROCID}} + 1))/{N_TASKS}"
    (tmp_path / "job.sh").write_text(f'#!/bin/bash\nexec "$@" --part "{part}"\n')
    done = run(*command, *convert("out", arguments))
    assert done.returncode == 0, [path.read_text() for path in tmp_path.glob("task*.err")]
    outcomes = [json.loads((tmp_path / f"task{n}.json").read_text()) for n in range(N_TASKS)]
    assert arguments is OWN or all(outcome["n_written"] >= 1 for outcome in outcomes)
    assert sum(outcome["n_written"] for outcome in outcomes) == N_SAMPLES
    assert_like_one_process(run, tmp_path, arguments)


@contextmanager
def started(environment, cwd, *command):
    """Run a command beside; end it at the end of the block."""
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_dask_workers_of_srun_convert(environment, run, tmp_path):
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
def test_a_job_that_has_to_end_goes_on_in_the_next(environment, run, tmp_path, ends):
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


def wait_for(condition, limit_s=60.0):
    """Poll a condition that another process brings about; fail after the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the other process did not get there"
        time.sleep(0.05)


# -- iobench run: a launcher for each task, one run, one report -------------------------------

TRAIN = """
import os, signal, sys
import numpy
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import current_recording
recording = current_recording()
log = DeliveryLog(recording, recording.add_loader("own", "List", "numbers"))
for number in range(3):
    log.ask(number)
    log.deliver(number, maker="consumer")
log.ask()
log.end()
if sys.argv[1:]:
    told = {signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, told)
    print("ready", flush=True)
    signal.sigwaitinfo(told)
    count = 1
    while signal.sigtimedwait(told, 1):
        count += 1
    print("signals", count, flush=True)
"""


def test_the_tasks_of_a_step_record_into_one_run(run, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    done = run("srun", "-n", "3", *IOBENCH, "run", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "iobench-runs").iterdir()
    profile = open_profile(path)
    spans = profile.spans[(profile.spans["kind"] == Kind.WAIT) & (profile.spans["batch"] >= 0)]
    ranks = [profile.processes[process].rank for process in spans["process"]]
    assert sorted(ranks) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    facts = read_process_facts(path / "processes")
    assert {each.world_size for each in facts} == {3}
    assert [each.rank for each in facts if each.role == "launcher"] == [0, 1, 2]
    assert done.stderr.count(" --full\n") == 1


def test_a_signal_of_slurm_reaches_the_script_once(environment, run, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    command = ["srun", "-n", "1", "--job-name=once", *IOBENCH, "run", "--out", "run"]
    with started(environment, tmp_path, *command, sys.executable, "train.py", "wait") as process:
        assert process.stdout.readline() == "ready\n"
        assert run("scancel", "--signal=USR1", "--name=once").returncode == 0
        assert process.stdout.read() == "signals 1\n"
        assert process.wait(60) == 0
