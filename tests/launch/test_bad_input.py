"""Directories that cannot be used, disks that are full, jobs that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.errors import OptionError, StorageError
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

Launch = Callable[..., Any]
Script = Callable[..., Path]
Plainly = Callable[..., subprocess.CompletedProcess[str]]

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


def test_a_directory_that_cannot_be_made_costs_the_recording_only(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    found = launch(sys.executable, script(READS), out=tmp_path / "file" / "run")
    assert (found.code, found.out, found.err) == (0, "done\n", "")
    (said,) = found.said
    assert said.startswith("nothing is recorded: ")
    assert "Not a directory" in said


def test_a_directory_that_holds_another_run_is_refused(launch: Launch, script: Script) -> None:
    assert launch(sys.executable, script(READS)).code == 0
    with pytest.raises(StorageError, match="holds a run already"):
        launch(sys.executable, script("print('started')"))


@pytest.mark.parametrize(
    "options", [{"steps": "300:100"}, {"steps": "all"}, {"detail": "everything"}]
)
def test_options_that_cannot_be_used_start_nothing(
    launch: Launch, script: Script, tmp_path: Path, options: dict[str, str]
) -> None:
    path = script(f"open({str(tmp_path / 'started')!r}, 'w')")
    with pytest.raises(OptionError):
        launch(sys.executable, path, **options)
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "run").exists()


def test_a_run_that_vanishes_leaves_the_script_alone(launch: Launch, script: Script) -> None:
    path = script("import os, shutil; shutil.rmtree(os.environ['IOBENCH_RUN'])\n" + READS)
    found = launch(sys.executable, path)
    assert (found.code, found.out) == (0, "done\n")


def test_a_full_disk_leaves_the_script_alone(launch: Launch, script: Script) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2 << 20, 2 << 20))\n"
    limit = NO_BYTECODE + limit
    found = launch(sys.executable, script(limit + READS.replace("range(4)", "range(50_000)")))
    assert (found.code, found.out) == (0, "done\n")
    profile = found.profile
    assert profile.lost_spans > 0
    assert 0 < len(profile.spans) < 50_000


def test_a_disk_without_any_room_leaves_the_script_alone(
    tmp_path: Path, script: Script, plainly: Plainly, cli: list[str]
) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (0, r.RLIM_INFINITY))\n"
    limit = NO_BYTECODE + limit
    path = script(limit + READS)
    found = plainly(*cli, "--no-report", "--out", tmp_path / "run", sys.executable, path)
    assert (found.returncode, found.stdout) == (0, "done\n")


def test_a_killed_script_has_a_report(
    launch: Launch, script: Script, capfd: pytest.CaptureFixture[str]
) -> None:
    found = launch(sys.executable, script(READS + "import os; os.kill(os.getpid(), 9)"))
    assert found.code == -signal.SIGKILL
    assert (found.profile.spans["kind"] == Kind.READ).sum() == 4
    (consumer,) = [facts for facts in found.facts if facts.role == "consumer"]
    assert consumer.ended is None
    assert found.launcher.ended == "SIGKILL"
    assert main(["report", str(found.run)]) == 0
    assert capfd.readouterr().out


def test_a_killed_launcher_leaves_a_run_that_is_read(
    tmp_path: Path, script: Script, cli: list[str]
) -> None:
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


@pytest.mark.thorough
def test_a_script_without_a_loader_has_its_reads(
    tmp_path: Path, script: Script, plainly: Plainly, cli: list[str]
) -> None:
    path = script(
        """
        import numpy as np
        np.save("x.npy", np.random.default_rng(1).random((2000, 8)))
        x = np.load("x.npy")
        print(np.linalg.lstsq(x[:, :-1], x[:, -1], rcond=None)[0].shape)
        """
    )
    arguments = ["--out", tmp_path / "run", "--json", tmp_path / "told.json", "--", sys.executable]
    found = plainly(*cli, *arguments, path, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (0, "(7,)\n")
    assert "nothing asked a loader for batches" in found.stderr
    assert json.loads((tmp_path / "told.json").read_text())
    spans = open_profile(tmp_path / "run").spans
    assert 128_000 in spans[spans["kind"] == Kind.READ]["nbytes"]


def test_steps_bound_what_is_recorded_of_a_loop(launch: Launch, script: Script) -> None:
    path = script(
        """
        import numpy, iobench
        from iobench.recording.delivery_log import DeliveryLog
        from iobench.recording.session import current_recording
        recording = current_recording()
        log = DeliveryLog(recording, recording.add_loader("own", "List", "numbers"))
        for number in range(10):
            log.ask(number)
            with iobench.stage("read"):
                pass
            log.deliver(number)
        log.ask()
        log.end()
        """
    )
    found = launch(sys.executable, path, steps="3:5")
    assert found.code == 0
    spans = found.profile.spans
    assert spans[spans["kind"] == Kind.WAIT]["batch"].tolist() == [3, 4]
    assert (spans["kind"] == Kind.READ).sum() == 2


@pytest.mark.thorough
def test_default_directories_are_named_after_the_script(
    tmp_path: Path, script: Script, plainly: Plainly, cli: list[str]
) -> None:
    path = script("import numpy", "my train.py")
    for number in (1, 2):
        found = plainly(*cli, "--no-report", sys.executable, path, cwd=tmp_path)
        run = tmp_path / "iobench-runs" / f"my-train-{number}"
        kept = f"iobench: kept in {run}; show this report again with: iobench report {run}\n"
        begun, *rest = found.stderr.splitlines(keepends=True)
        assert (found.returncode, "".join(rest)) == (0, kept)
        assert begun.startswith(f"iobench: recording into {run.relative_to(tmp_path)}; ")
        assert read_process_facts(run / "processes")


@pytest.mark.thorough
def test_an_iobench_run_inside_another_is_a_run_of_its_own(
    launch: Launch, script: Script, cli: list[str], tmp_path: Path
) -> None:
    program = script(f"{cli[2]}", "iobench")
    inner = ["run", "--no-report", "--out", tmp_path / "inner", sys.executable, script(READS)]
    found = launch(sys.executable, program, *inner)
    assert (found.code, found.out) == (0, "done\n")
    assert (open_profile(tmp_path / "inner").spans["kind"] == Kind.READ).sum() == 4
    assert len(found.profile.spans) == 0


@pytest.mark.thorough
def test_a_report_that_fails_costs_no_exit_code(
    tmp_path: Path, script: Script, plainly: Plainly, cli: list[str]
) -> None:
    path = script(
        f"{READS}\nimport os; os.remove(os.environ['IOBENCH_RUN'] + '/run.json')\nexit(3)"
    )
    found = plainly(*cli, "--out", tmp_path / "run", sys.executable, path, env=dict(os.environ))
    assert (found.returncode, found.stdout) == (3, "done\n")
    assert "iobench: no report: " in found.stderr
