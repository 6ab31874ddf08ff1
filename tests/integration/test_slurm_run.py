"""``srun iobench run`` on a real SLURM: a launcher for each task, one run, one report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

IOBENCH = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]
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


@pytest.mark.long
def test_the_tasks_of_a_step_record_into_one_run(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = ["srun", "-n", "3", *IOBENCH, "run", "--", sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=slurm, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "iobench-runs").iterdir()
    profile = open_profile(run)
    spans = profile.spans[(profile.spans["kind"] == Kind.WAIT) & (profile.spans["batch"] >= 0)]
    ranks = [profile.processes[process].rank for process in spans["process"]]
    assert sorted(ranks) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    facts = read_process_facts(run / "processes")
    assert {each.world_size for each in facts} == {3}
    assert [each.rank for each in facts if each.role == "launcher"] == [0, 1, 2]
    assert done.stderr.count(" --full\n") == 1


@pytest.mark.long
def test_a_signal_of_slurm_reaches_the_script_once(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = ["srun", "-n", "1", "--job-name=once", *IOBENCH, "run", "--out", "run"]
    with subprocess.Popen(
        [*command, sys.executable, "train.py", "wait"],
        cwd=tmp_path, env=slurm, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        subprocess.run(["scancel", "--signal=USR1", "--name=once"], env=slurm, check=True)
        assert process.stdout.read() == "signals 1\n"
    assert process.returncode == 0
