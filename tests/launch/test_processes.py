"""Who of a command's processes records, what they leave, and who is not seen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from iobench.recording.kinds import Kind

POOL = """
import sys, multiprocessing, concurrent.futures, numpy, iobench

def work(n):
    with iobench.stage("read"):
        return n * n

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        print(pool.map(work, range(3)))
        pool.close()
        pool.join()
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        print(list(pool.map(work, range(3))))
    with iobench.stage("decode"):
        pass
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_of_a_script_have_files_of_their_own(launch, script, method):
    found = launch(sys.executable, script(POOL), method)
    assert (found.code, found.out, found.err) == (0, "[0, 1, 4]\n[0, 1, 4]\n", "")
    profile = found.profile
    assert [process.role for process in profile.processes] == ["child", "child", "consumer"]
    assert [process.closed for process in profile.processes] == [True, True, True]
    spans = profile.spans
    ours = spans[(spans["kind"] == Kind.READ) & (spans["process"] != 2)]
    assert (ours["process"] == 0).sum() >= 3
    assert (ours["process"] == 1).sum() >= 3


@pytest.mark.long
def test_a_program_that_replaces_itself_is_followed(launch, script):
    path = script(
        """
        import os, sys, numpy
        if len(sys.argv) > 1:
            os.execvp("python-of-nobody" if sys.argv[1] == "x" else sys.executable,
                      [sys.executable, __file__])
        print("second")
        """
    )
    found = launch(sys.executable, path, "y")
    assert (found.code, found.out) == (0, "second\n")
    assert found.launcher.unseen == []


OWN_RECORDINGS = """
import multiprocessing, subprocess, sys
import iobench
from torch.utils.data import DataLoader

def load(path, **more):
    with iobench.record(path, **more) as recording:
        assert len(list(DataLoader(range(12), 4))) == 3
    return recording

if __name__ == "__main__":
    assert load("own").run.path == load("other", detail="sample", digests=True).run.path
    child = multiprocessing.get_context("spawn").Process(target=load, args=("spawned",))
    child.start()
    child.join()
    code = "from train import load; load('started')"
    sys.exit(child.exitcode or subprocess.run([sys.executable, "-c", code]).returncode)
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_recordings_of_a_script_and_its_processes_are_of_the_run(
    launch, script, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = launch(sys.executable, script(OWN_RECORDINGS))
    assert found.code == 0, found.err
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= {"run", "__pycache__"}
    data = found.profile
    batches = data.spans[(data.spans["kind"] == Kind.WAIT) & (data.spans["batch"] >= 0)]
    counts = np.unique(batches["process"], return_counts=True)[1]
    assert sorted(counts.tolist()) == [3, 3, 6]
    assert {each.ended for each in found.facts if each.role == "consumer"} == {"closed"}
    assert data.digests is not None
    assert len(data.digests) == 3


@pytest.mark.parametrize("flags", [["-I"], ["-BS"], ["-W", "error", "-E"]])
def test_a_python_that_keeps_us_out_runs_and_is_named(launch, script, flags):
    found = launch(sys.executable, *flags, script("print('done')"))
    assert (found.code, found.out, found.err) == (0, "done\n", "")
    (unseen,) = found.launcher.unseen
    assert "that keeps $PYTHONPATH" in unseen


def test_a_python_without_iobench_goes_on_and_is_named(launch, script, tmp_path):
    (tmp_path / "packages" / "numpy").mkdir(parents=True)
    (tmp_path / "packages" / "numpy" / "__init__.py").write_text("print('their numpy')")
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(os.path.realpath(sys.executable))
    (venv.parent / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    found = launch(venv / "python", script("import numpy"), environment=environment)
    assert (found.code, found.out, found.err) == (0, "their numpy\n", "")
    (unseen,) = found.launcher.unseen
    assert "iobench is not installed for its Python" in unseen


def test_it_is_said_after_the_command_that_nothing_was_recorded_and_why(
    cli, script, plainly, tmp_path
):
    job = script(f"{sys.executable} -I {script('')}; exit 6\n", "job.sh")
    done = plainly(*cli, "--no-report", "--out", tmp_path / "run", "--", "sh", job)
    assert done.returncode == 6
    assert done.stderr.splitlines()[-1].startswith("iobench: nothing was recorded: ")
    assert "no Python 3.11 or later" in done.stderr


SECRET = "QQsecretQQ"


@pytest.mark.long
def test_no_credentials_of_command_lines_are_written_down(script, launch):
    path = script(
        f"""
        import os, subprocess, sys, numpy, iobench
        with iobench.stage("read"):
            subprocess.run([sys.executable, "-c", "import numpy", "--api-key", "{SECRET}"])
        """
    )
    done = launch(sys.executable, path, "--mlflow", f"https://me:{SECRET}@host/", "--token", SECRET)
    assert done.code == 0
    assert done.launcher.command[2:] == ["--mlflow", "***", "--token", "***"]
    for file in done.run.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in done.err


def test_values_of_options_are_kept_when_asked(script, launch):
    path = script("import numpy")
    done = launch(sys.executable, path, "--lr", "0.25", "--api-key", SECRET, keep_command=True)
    assert done.code == 0
    assert done.launcher.command[2:] == ["--lr", "0.25", "--api-key", "***"]
    assert "--lr 0.25" in (done.run / "run.json").read_text()
