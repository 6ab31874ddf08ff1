"""``IOBENCH_ENERGY`` and ``IOBENCH_MONITOR``: who reads a machine's counters, and for whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.launch.running import ScriptRun, run_script
from iobench.recording import meter
from iobench.runs.machine_samples import read_machines

MODULE = """
import numpy as np

class Numbered:
    def __len__(self):
        return 16
    def __getitem__(self, number):
        return {"field": np.full((3, 4), number, "f4")}
"""


@pytest.fixture(autouse=True)
def counters(tmp_path, monkeypatch):
    """A machine with a processor that counts, no GPU, and nothing else."""
    package = tmp_path / "sys/class/powercap/intel-rapl:0"
    package.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "9"), ("energy_uj", "5")):
        (package / name).write_text(f"{text}\n")
    monkeypatch.setattr(meter, "SYSTEM_ROOT", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("RUN", "RUN_TOKEN"):
        monkeypatch.delenv(f"IOBENCH_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("own_numbers.py").write_text(MODULE)


def profiled(capsys):
    quick = ("--batches", "4", "--compute", "none", "--workers", "0", "--json")
    assert main(["profile", "own_numbers:Numbered", "--out", "run", *quick]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return run


def test_a_profile_reads_what_it_may_read(capsys):
    found = profiled(capsys)["energy"]
    # The counter stood still: that is a count of 0, unlike what could not be read.
    assert found["kinds"]["cpu"]["total_j"] == 0
    assert found["kinds"]["cpu"]["covered_fraction"] == 1.0
    assert {each["kind"] for each in found["not_readable"]} == {"gpu", "memory"}


def test_off_reads_nothing(capsys, monkeypatch):
    monkeypatch.setattr(meter, "SYSTEM_ROOT", Path("/"))
    monkeypatch.setenv("IOBENCH_ENERGY", "off")
    monkeypatch.setenv("IOBENCH_MONITOR", "off")
    run = profiled(capsys)
    assert (run["energy"], run["machine_load"]) == (None, None)
    assert not Path("run/machine").exists()


@pytest.mark.parametrize(("name", "value"), [("ENERGY", "on"), ("MONITOR", "20")])
def test_another_word_is_refused_before_anything_is_made(name, value, capsys, monkeypatch):
    monkeypatch.setenv(f"IOBENCH_{name}", value)
    for words in (["profile", "own_numbers:Numbered"], ["run", "--", sys.executable, "-c", "1"]):
        assert main([words[0], "--out", "run", *words[1:]]) == 1
        assert f"IOBENCH_{name}" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("energy", "local_rank", "reads"),
    [("auto", "0", True), ("auto", "1", False), ("off", "0", False)],
)
def test_of_a_machines_launchers_the_first_one_reads_energy(energy, local_rank, reads):
    command = (sys.executable, "-S", "-c", "import time; time.sleep(0.7)")
    job = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": local_rank, "IOBENCH_ENERGY": energy}
    assert run_script(ScriptRun(command, out=Path("run")), print, os.environ | job).code == 0
    machines, _ = read_machines(Path("run"))
    known = [len(each.energy[0].time_ns) >= 2 for each in machines if each.energy]
    assert known == [True] * reads


SIGNALLED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getppid(), signal.SIGUSR1)
sys.exit(7 if signal.sigtimedwait({signal.SIGUSR1}, 60) else 1)
"""
"""Blocked until it is waited for: one that comes just before a `signal.pause` is never told."""
LAUNCHER = """
import sys
from pathlib import Path
from iobench.cli import main
from iobench.recording import meter
meter.SYSTEM_ROOT = Path(".")
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_signals_to_the_launcher_still_reach_the_command():
    # In a process of its own, with no thread but the reader's: any other might take the signal.
    asked = ["run", "--no-report", "--out", "run", "--", sys.executable, "-S", "-c", SIGNALLED]
    assert subprocess.run([sys.executable, "-c", LAUNCHER, *asked], check=False).returncode == 7
    assert any(each.energy for each in read_machines(Path("run"))[0])
