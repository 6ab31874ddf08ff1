from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.cli.own_process import Interrupted
from iobench.profiling.profile_run import measure

GOING = '''
import multiprocessing
import numpy as np

class Going:
    """Samples that a worker makes; once under way it waits until somebody reads the pipe."""

    told = False

    def __len__(self):
        return 64

    def __getitem__(self, number):
        if number >= 64:
            raise IndexError(number)
        if multiprocessing.parent_process() is not None and not Going.told:
            Going.told = True
            open("going", "w").close()
        return {"x": np.full((8, 8), number, "f4")}
'''


@pytest.fixture
def tiny(iobench, iobench_here, store_dir: Path, tmp_path: Path):
    """Profile the tiny stand-in and return the JSON of its runs.

    Without workers in this process; those are forked from one of their own.
    """

    def run(*arguments: str) -> list[dict[str, Any]]:
        own = {"--store-dir": store_dir, "--batches": "12"}
        more = [word for pair in own.items() if pair[0] not in arguments for word in pair]
        alone = arguments[arguments.index("--workers") + 1] == "0"
        done = (iobench_here if alone else iobench)(
            "profile", "maelstrom-ens10", "--tiny", "--out", tmp_path / "run", "--json",
            *more, *arguments,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["runs"]

    return run


@pytest.mark.timeout(110)
def test_a_probe_is_reused(tiny, tmp_path: Path, iobench_here, store_dir: Path) -> None:
    tiny("--format", "numpy", "--workers", "0")
    done = iobench_here(
        "profile", "maelstrom-ens10", "--tiny", "--store-dir", store_dir, "--workers", "0",
        "--out", tmp_path / "again", "--batches", "12", "--format", "numpy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "again/run.json").read_text())["store"]["reused"] is True


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_store_cut_short_is_refused_until_it_is_removed(
    tiny, iobench_here, tmp_path: Path
) -> None:
    (run,) = tiny("--format", "numpy", "--workers", "0", "--store-dir", str(tmp_path / "own"))
    (shard,) = Path(run["store_path"]).glob("*.npy")
    os.truncate(shard, shard.stat().st_size - 1)
    again = (
        "profile", "maelstrom-ens10", "--tiny", "--format", "numpy", "--batches", "12",
        "--workers", "0", "--store-dir", tmp_path / "own", "--out", tmp_path / "again",
    )  # fmt: skip
    done = iobench_here(*again)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert f"{shard}: " in line
    assert f"'iobench cache --remove {shard.parent}'" in line
    removed = iobench_here("cache", "--store-dir", tmp_path / "own", "--remove", shard.parent)
    assert removed.returncode == 0, removed.stderr
    assert iobench_here(*again).returncode == 0


def test_a_quiet_profile_keeps_the_command_of_a_loud_one(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["profile", "maelstrom-power", "--tiny", "--batches", "3", "--workers", "0"]
    more = ["--compute", "none", "--store-dir", str(store_dir), "--out", "run"]
    monkeypatch.setattr(sys, "argv", ["iobench", "--quiet", *words, "--quiet", *more])
    assert main() == 0
    assert capsys.readouterr().err == ""
    config = json.loads(Path("run/run.json").read_text())
    assert config["command"] == shlex.join(["iobench", *words, *more])


def test_an_interrupted_profile_names_the_run_that_it_kept(
    iobench_here, tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(runs: list[Any], **more: Any) -> None:
        measure(runs, **more)
        raise Interrupted

    monkeypatch.setattr("iobench.profiling.profile_run.measure", interrupted)
    done = iobench_here(
        "profile", "maelstrom-power", "--tiny", "--store-dir", store_dir,
        "--batches", "3", "--workers", "0", "--compute", "none",
    )  # fmt: skip
    kept = "iobench-runs/maelstrom-power-1"
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].endswith(f"iobench report {kept}")
    assert iobench_here("report", kept).returncode == 0


@pytest.fixture
def going(tmp_path: Path):
    """Start a profile of 90 s with one worker, which waits for a reader of the pipe ``going``."""
    (tmp_path / "own.py").write_text(GOING)
    os.mkfifo(tmp_path / "going")
    command = [
        sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())",
        "profile", "own:Going", "--compute", "2ms", "--duration", "90", "--workers", "1",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip

    processes = []

    def start(**more: Any) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        processes.append(
            subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **more)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.timeout(110)
def test_ctrl_c_ends_everything_and_the_report_still_works(
    iobench_here, going, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = going(stderr=subprocess.PIPE, text=True)
    (tmp_path / "going").read_bytes()  # until a worker has begun
    assert len(list(out.glob("spans/*.spans"))) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "interrupted" in stderr
    assert iobench_here("report", out).returncode == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_killed_run_leaves_a_report(iobench_here, going, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = going()
    (tmp_path / "going").read_bytes()
    assert len(list(out.glob("spans/*.spans"))) == 2
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    (run,) = json.loads(iobench_here("report", out, "--json").stdout)["runs"]
    assert sum(run["exposed_ns"].values()) == run["wait_ns"]
