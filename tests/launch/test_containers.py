"""Runs in a container.

Namespaces of their own stand for Apptainer, which Debian has no package of: process numbers, host
name, mounts and clocks, which are moved by a day. There is no image: the files are the machine's.
"""

from __future__ import annotations

import json
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
N_FILES = 6
READS = """
import sys
from pathlib import Path
import numpy
from iobench import stage
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import current_recording

recording = current_recording()
log = DeliveryLog(recording, recording.add_loader("own", "List", "files"))
for number, path in enumerate(sorted(Path(sys.argv[1]).iterdir())):
    log.ask(number)
    with stage("read"):
        path.read_bytes()
    log.deliver(number, maker="consumer")
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
    asked = [*cli, "--out", run, "--", sys.executable, script(READS), inside]
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
