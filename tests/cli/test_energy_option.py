"""``IOBENCH_ENERGY`` for ``iobench profile`` and ``run``: who reads counters, and for whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.errors import OptionError
from iobench.launch.running import ScriptRun, run_script
from iobench.profiling.config import RunConfig
from iobench.recording import meter
from iobench.runs.machine_samples import HostEnergy, read_machines

MODULE = """
import numpy as np

class Numbered:
    def __len__(self):
        return 12
    def __getitem__(self, number):
        return {"field": np.full((3, 4), number, "f4")}
"""


@pytest.fixture(autouse=True)
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a processor that counts, no GPU, and nothing else."""
    package = tmp_path / "sys/class/powercap/intel-rapl:0"
    package.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "9"), ("energy_uj", "5")):
        (package / name).write_text(f"{text}\n")
    monkeypatch.setattr(meter, "SYSTEM_ROOT", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_TOKEN", "IOBENCH_RUN_ENERGY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("own_numbers.py").write_text(MODULE)
    return package


def profiled(capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    quick = ("--batches", "3", "--compute", "none", "--workers", "0", "--json")
    assert main(["profile", "own_numbers:Numbered", "--out", "run", *quick, *more]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return found


def test_a_profile_reads_what_it_may_read(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = profiled(capsys)
    found = run["energy"]
    # The counter stood still: that is a count of 0, unlike what could not be read.
    assert found["kinds"]["cpu"]["total_j"] == 0
    assert found["kinds"]["cpu"]["covered_fraction"] == 1.0
    assert {each["kind"]: each["reason"] for each in found["not_readable"]} == {
        "gpu": "no NVIDIA driver",
        "memory": "no counter",
    }
    assert json.loads(Path("run/run.json").read_text())["energy"] == "auto"


def test_formats_that_take_turns_have_the_same_readings(
    capsys: pytest.CaptureFixture[str], store_dir: Path
) -> None:
    runs = profiled(capsys, "--format", "source,numpy", "--store-dir", str(store_dir))
    assert [run["energy"]["kinds"]["cpu"]["covered_fraction"] for run in runs] == [1.0, 1.0]
    files = [path.read_bytes() for path in Path("run").glob("*/machine/*.samples")]
    assert len(files) == 2
    assert len(set(files)) == 1


def test_off_reads_nothing_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOBENCH_ENERGY", "off")
    monkeypatch.setenv("IOBENCH_MONITOR", "off")
    (run,) = profiled(capsys)
    assert run["energy"] is None
    assert not Path("run/machine").exists()
    assert json.loads(Path("run/run.json").read_text())["energy"] == "off"


def test_another_word_is_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="IOBENCH_ENERGY on"):
        RunConfig(targets=("x.nc",), energy="on")
    monkeypatch.setenv("IOBENCH_ENERGY", "on")
    assert main(["run", "--out", "run", "--", sys.executable, "-c", "1"]) == 1
    assert "IOBENCH_ENERGY on: expected auto or off" in capsys.readouterr().err
    assert not Path("run").exists()


def launched(code: str, environment: dict[str, str] | None = None, **more: Any) -> int:
    asked = ScriptRun((sys.executable, "-S", "-c", code), out=Path("run"), **more)
    return run_script(asked, print, {**os.environ, **(environment or {})}).code


def energy_read() -> list[HostEnergy]:
    found, _ = read_machines(Path("run"))
    return [each.energy for each in found if each.energy is not None]


def test_a_launcher_reads_while_its_command_runs() -> None:
    assert launched("pass") == 0
    (found,) = energy_read()
    assert len(found.series[0].time_ns) >= 2


def test_a_launcher_that_is_told_not_to_does_not() -> None:
    assert launched("pass", energy="off") == 0
    assert energy_read() == []


@pytest.mark.parametrize(("local_rank", "reads"), [("0", True), ("1", False)])
def test_of_a_machines_launchers_the_first_one_reads(local_rank: str, reads: bool) -> None:
    job = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": local_rank}
    assert launched("pass", job) == 0
    assert bool(energy_read()) == reads


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


def test_signals_to_the_launcher_still_reach_the_command() -> None:
    # In a process of its own, with no thread but the reader's: any other might take the signal.
    asked = ["run", "--no-report", "--out", "run", "--", sys.executable, "-S", "-c", SIGNALLED]
    assert subprocess.run([sys.executable, "-c", LAUNCHER, *asked], check=False).returncode == 7
    assert energy_read()
