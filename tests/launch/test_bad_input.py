"""Directories that cannot be used, disks that are full, jobs that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from iobench.cli import main
from iobench.errors import OptionError, StorageError
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

NO_BYTECODE = (
    "import os, sys; sys.dont_write_bytecode = True; os.environ['PYTHONDONTWRITEBYTECODE'] = '1'\n"
)
"""Python leaves half a file where it can write no more, and other tests find that."""

READS = """
import numpy, iobench
for _ in range(4):
    with iobench.stage("read"):
        pass
print("done")
"""


def test_a_directory_that_cannot_be_made_costs_the_recording_only(launch, script, tmp_path):
    (tmp_path / "file").write_text("")
    found = launch(sys.executable, script(READS), out=tmp_path / "file" / "run")
    assert (found.code, found.out, found.err) == (0, "done\n", "")
    (said,) = found.said
    assert said.startswith("nothing is recorded: ")
    assert "Not a directory" in said


def test_a_run_that_vanishes_leaves_the_script_alone(launch, script):
    path = script("import os, shutil; shutil.rmtree(os.environ['IOBENCH_RUN'])\n" + READS)
    found = launch(sys.executable, path)
    assert (found.code, found.out) == (0, "done\n")


@pytest.mark.long
def test_a_full_disk_leaves_the_script_alone(launch, script):
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2 << 20, 2 << 20))\n"
    limit = NO_BYTECODE + limit
    path = script(limit + READS.replace("range(4)", "range(50_000)"))
    found = launch(sys.executable, path, environment={**os.environ, "IOBENCH_KEEP": "2GB"})
    assert (found.code, found.out) == (0, "done\n")
    profile = found.profile
    assert profile.lost_spans > 0
    assert 0 < len(profile.spans) < 50_000


def test_a_killed_script_has_a_report(launch, script, capfd):
    found = launch(sys.executable, script(READS + "import os; os.kill(os.getpid(), 9)"))
    assert found.code == -signal.SIGKILL
    assert (found.profile.spans["kind"] == Kind.READ).sum() == 4
    (consumer,) = [facts for facts in found.facts if facts.role == "consumer"]
    assert consumer.ended is None
    assert found.launcher.ended == "SIGKILL"
    assert main(["report", str(found.run)]) == 0
    assert capfd.readouterr().out


@pytest.mark.long
def test_a_killed_launcher_leaves_a_run_that_is_read(tmp_path, script, cli):
    path = script(READS + "import sys; sys.stdout.flush(); input()")
    command = [*cli, "--out", str(tmp_path / "run"), "--", sys.executable, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        process.kill()
        profile = open_profile(tmp_path / "run")
        assert (profile.spans["kind"] == Kind.READ).sum() == 4


@pytest.mark.long
def test_a_report_that_fails_costs_no_exit_code(tmp_path, script, plainly, cli):
    path = script(
        f"{READS}\nimport os; os.remove(os.environ['IOBENCH_RUN'] + '/run.json')\nexit(3)"
    )
    found = plainly(*cli, "--out", tmp_path / "run", sys.executable, path, env=dict(os.environ))
    assert (found.returncode, found.stdout) == (3, "done\n")
    assert "iobench: no report: " in found.stderr


def test_what_cannot_be_used_starts_nothing(launch, script, tmp_path):
    path = script(f"import numpy; open({str(tmp_path / 'started')!r}, 'w')")
    with pytest.raises(OptionError):
        launch(sys.executable, path, detail="everything")
    assert not (tmp_path / "run").exists()
    assert launch(sys.executable, script(READS, "reads.py")).code == 0
    with pytest.raises(StorageError):
        launch(sys.executable, path)  # the directory holds a run
    assert not (tmp_path / "started").exists()
