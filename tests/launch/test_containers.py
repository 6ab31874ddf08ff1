"""Runs in a container, and a job of which one rank is in one.

Namespaces of their own stand for Apptainer, which Debian has no package of: process numbers, host
name, mounts and clocks, which are moved by a day. There is no image: the files are the machine's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from iobench.runs.reading import open_profile

DAY_S = 86_400
BOX = (
    "unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount",
    "--mount-proc", "--uts", "--ipc", "--time", f"--monotonic={DAY_S}", f"--boottime={DAY_S}",
    "sh", "-euc", 'hostname boxed; mount --bind "$1" "$2"; shift 2; exec "$@"', "sh",
)  # fmt: skip
N_FILES, LATE_S = 6, 0.2
READS = """
import os, sys, time
from pathlib import Path
import numpy
from iobench import stage
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import current_recording

folder, late, meeting = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
recording = current_recording()
for name in meeting[:1]:  # begin at one time, whoever starts first
    Path(name).touch()
    while not all(map(os.path.exists, meeting)):
        time.sleep(0.01)
log = DeliveryLog(recording, recording.add_loader("own", "List", "files"))
for number, path in enumerate(sorted(folder.iterdir())):
    log.ask(number)
    with stage("read"):
        time.sleep(late)
        path.read_bytes()
    log.deliver(number, maker="consumer")
    time.sleep(0.05)
log.ask()
log.end()
"""


@pytest.fixture
def box(tmp_path):
    """Make data; return what a command in a container begins with, and where it has the data."""
    data, inside = tmp_path / "data", tmp_path / "inside"
    for folder in (data, inside):
        folder.mkdir()
    for number in range(N_FILES):
        (data / f"{number}.bin").write_bytes(bytes(100_000))
    command = [*BOX, str(data), str(inside)]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no namespaces that stand for a container: {error}")
    if tried.returncode:
        pytest.skip(f"no namespaces that stand for a container: {tried.stderr.strip()}")
    return command, data, inside


@pytest.mark.long
def test_a_run_of_a_container_has_one_report_in_it_and_outside(box, tmp_path, script, plainly, cli):
    command, _, inside = box
    run = tmp_path / "run"
    asked = [*cli, "--out", run, "--", sys.executable, script(READS), inside, "0"]
    done = plainly(*command, *asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = [*cli[:-1], "report", run]
    for form in ("--json", "--markdown"):
        there, here = plainly(*command, *report, form), plainly(*report, form)
        assert (there.returncode, here.returncode) == (0, 0), there.stderr + here.stderr
        assert there.stdout == here.stdout
    # What it is of: the container's own numbers and names.
    read = open_profile(run)
    assert {process.host for process in read.processes} == {"boxed"}
    assert all(process.pid < 1000 for process in read.processes)
    # Its start is the kernel's, on the container's clock.
    spent = json.loads(plainly(*report, "--json").stdout)["job"]
    assert 0 < spent["wall_ns"] < DAY_S / 2 * 10**9


@pytest.mark.long
def test_ranks_in_a_container_and_outside_make_one_job(box, tmp_path, script, plainly, cli):
    command, data, inside = box
    path, run = script(READS), tmp_path / "run"
    files = [tmp_path / "of-0", tmp_path / "of-1"]
    ranks = []
    for rank, (start, folder) in enumerate(((command, inside), ([], data))):
        named = {"PROCID": rank, "STEP_ID": 0, "STEP_NUM_TASKS": 2, "LOCALID": 0, "JOB_ID": 77}
        of_job = {f"SLURM_{name}": str(value) for name, value in named.items()}
        late = [LATE_S, 0][rank]
        script_line = [sys.executable, path, folder, late, *files[rank:], *files[:rank]]
        line = [*start, *cli, "--out", run, "--", *script_line]
        ranks.append(
            subprocess.Popen(
                list(map(str, line)), env=os.environ | of_job, cwd=tmp_path,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    said = [each.communicate(timeout=100) for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], said
    report = [*cli[:-1], "report", run]
    there, here = plainly(*command, *report, "--json"), plainly(*report, "--json")
    assert there.stdout == here.stdout, there.stderr + here.stderr
    told = json.loads(here.stdout)["job"]
    boxed, outside = told["ranks"]
    assert (boxed["host"], outside["batches"]) == ("boxed", N_FILES)
    assert boxed["wait_ns"] / 1e9 >= N_FILES * LATE_S
    # The two clocks are a day apart, and laid over each other by the wall clock.
    assert N_FILES * LATE_S <= told["steps_wall_ns"] / 1e9 < DAY_S / 2
    assert told["wait_ns"] / 1e9 >= 0.8 * N_FILES * LATE_S, "the first rank was last at most steps"
