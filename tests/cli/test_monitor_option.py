"""``IOBENCH_MONITOR``: what a machine did while a loop waited, held against psutil's counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from iobench.cli import main
from iobench.errors import OptionError
from iobench.launch.running import ScriptRun, run_script
from iobench.profiling.config import RunConfig
from iobench.runs.machine_samples import read_machines

MODULE = """
import time
import numpy as np

class Slow:
    def __len__(self):
        return 16
    def __getitem__(self, number):
        time.sleep(0.15)
        return {"field": np.full((3, 4), number, "f4")}
"""
BURN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True:
    pass
"""
OFF = 0.25
"""What others on the machine may do between psutil's look and ours."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_TOKEN", "IOBENCH_RUN_MONITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IOBENCH_ENERGY", "off")
    monkeypatch.chdir(tmp_path)
    Path("own_sleepers.py").write_text(MODULE)


@contextmanager
def busy(cpus: list[int]) -> Iterator[None]:
    """Keep some CPUs busy."""
    words = [sys.executable, "-c", BURN]
    burning = [subprocess.Popen([*words, str(cpu)], stdout=subprocess.PIPE) for cpu in cpus]
    try:
        for each in burning:
            assert each.stdout is not None
            each.stdout.readline()
        yield
    finally:
        for each in burning:
            each.kill()
            each.communicate()


def profiled(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[Any, dict[int, float]]:
    """Return what a run that sleeps says of its machine, and how busy psutil saw each CPU."""
    quick = ("--batches", "16", "--compute", "none", "--workers", "0", "--json")
    before = psutil.cpu_times(percpu=True)
    assert main(["profile", "own_sleepers:Slow", "--out", "run", *quick, *more]) == 0
    after = psutil.cpu_times(percpu=True)
    told = json.loads(capsys.readouterr().out)["runs"][0]["machine_load"]
    return told, {cpu: _busy(before[cpu], after[cpu]) for cpu in sorted(os.sched_getaffinity(0))}


def _busy(before: Any, after: Any) -> float:
    idle, total = (
        sum(getattr(after, each, 0.0) - getattr(before, each, 0.0) for each in names)
        for names in (
            ("idle", "iowait"),
            ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"),
        )
    )
    return 1 - idle / total if total else 0.0


@pytest.mark.long
def test_cpus_that_are_all_busy_are_saturated(capsys: pytest.CaptureFixture[str]) -> None:
    with busy(sorted(os.sched_getaffinity(0))):
        told, _ = profiled(capsys)
    (found,) = told["machines"]
    assert found["resources"][0]["saturated"]
    assert found["resources"][0]["wait_fraction"] >= 0.9


@pytest.mark.thorough
@pytest.mark.skipif(len(psutil.Process().cpu_affinity()) < 2, reason="one CPU is all CPUs")
def test_one_busy_cpu_is_its_share_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    last = max(os.sched_getaffinity(0))
    with busy([last]):
        told, seen = profiled(capsys)
    (found,) = told["machines"]
    mean = sum(seen.values()) / len(seen)
    assert found["resources"][0]["wait_fraction"] == pytest.approx(mean, abs=OFF)
    if max(share for cpu, share in seen.items() if cpu != last) < 0.3:  # nobody else is busy here
        assert not found["resources"][0]["saturated"]


@pytest.mark.long
def test_a_loop_that_waits_for_sleep_saturates_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    told, seen = profiled(capsys)
    (found,) = told["machines"]
    mean = sum(seen.values()) / len(seen)
    assert found["resources"][0]["wait_fraction"] == pytest.approx(mean, abs=OFF)
    if mean < 0.6:  # else others are busy on this machine
        assert not found["resources"][0]["saturated"]
    (samples,), _ = read_machines(Path("run"))
    assert samples.head.period_ns == 500_000_000
    assert found["process_peak_nbytes"] > 10 << 20


@pytest.mark.thorough
def test_every_format_has_the_readings_of_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Of several runs in turns each has its own file, of one and the same thread."""
    options = ("--batches", "4", "--compute", "none", "--workers", "0")
    formats = ("--framework", "native,workers")
    assert main(["profile", "own_sleepers:Slow", "--out", "run", *options, *formats]) == 0
    capsys.readouterr()
    found = [read_machines(each.parent)[0][0] for each in sorted(Path("run").glob("*/run.json"))]
    assert len(found) == 2
    assert np.array_equal(found[0].time_ns, found[1].time_ns)


@pytest.mark.thorough
def test_off_looks_at_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOBENCH_MONITOR", "off")
    quick = ("--batches", "2", "--compute", "none", "--workers", "0", "--json")
    assert main(["profile", "own_sleepers:Slow", "--out", "run", *quick]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["machine_load"] is None
    assert not Path("run/machine").exists()
    assert json.loads(Path("run/run.json").read_text())["monitor"] == "off"


def test_a_launcher_looks_for_its_command() -> None:
    command = (sys.executable, "-c", "import time; time.sleep(0.7)")
    ended = run_script(ScriptRun(command, out=Path("run"), energy="off"), print)
    assert ended.code == 0
    (found,), _ = read_machines(Path("run"))
    assert (found.head.pid, len(found.time_ns) > 2) == (os.getpid(), True)


def test_another_word_is_refused_before_anything_begins() -> None:
    with pytest.raises(OptionError, match="IOBENCH_MONITOR 20: expected auto or off"):
        RunConfig(targets=("own_sleepers:Slow",), monitor="20")
    with pytest.raises(OptionError, match="IOBENCH_MONITOR fast"):
        run_script(ScriptRun((sys.executable,), out=Path("run"), monitor="fast"), print)
    assert not Path("run").exists()
