"""What the machine did while the loop waited: known uses of a machine that a test moves on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_runs import write_job
from schedules import pool
from stand_in_machine import StandInMachine

from iobench.cli import main

MS = 1_000_000
BATCHES, WAIT_MS, STEP_MS = 4, 200, 300
Run = Callable[..., Path]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Write 4 batches, each of 200 ms that the loop waits and 300 ms of computing."""

    def run(waiting: dict[str, Any], computing: dict[str, Any], **about: Any) -> Path:
        path = tmp_path / "run"
        made = pool([(50 * MS, 100 * MS, 50 * MS)] * BATCHES, workers=0, step_ns=STEP_MS * MS)
        made.write(path)
        machine = StandInMachine(tmp_path, **about)
        reader = machine.reader(path, monkeypatch, period_ms=100)
        reader.read()
        for at in range(0, BATCHES * (WAIT_MS + STEP_MS), 100):
            machine.advance(100, **(waiting if at % (WAIT_MS + STEP_MS) < WAIT_MS else computing))
            reader.read()
        return path

    return run


@pytest.fixture
def words(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    """Return what the report says of the machine, in one line."""

    def say(path: Path) -> str:
        capsys.readouterr()
        assert main(["report", str(path), "--full"]) == 0
        text = capsys.readouterr().out
        if "The machine during the run" not in text:
            return ""
        return " ".join(text.split("The machine during the run")[1].split("\nMLPerf")[0].split())

    return say


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], Any]:
    def found(path: Path) -> Any:
        capsys.readouterr()
        assert main(["report", str(path), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["runs"][0]["machine_load"]

    return found


MB = 1_000_000
QUOTA = {"n_cpus": 64, "quota": "400000 100000"}
WAIT_NET = {"net_nbytes": 120 * MB}


@pytest.mark.parametrize(
    ("waiting", "computing", "about", "name", "shares", "rate", "saturated"),
    [
        ({"cpus": [1, 1, 1, 0.9]}, {"cpus": [0.4] * 4}, {}, "cpus", (0.975, 0.4), None, True),
        ({"cpus": [0.1] * 4}, {"cpus": [0.9] * 4}, {}, "cpus", (0.1, 0.9), None, False),
        (
            {"cpus": [0.3] * 64, "quota": 0.98}, {"cpus": [0.1] * 64, "quota": 0.3}, QUOTA,
            "quota", (0.98, 0.3), None, True,
        ),
        (
            {"disk": 0.99, "disk_nbytes": 12 << 20}, {"disk": 0.1}, {},
            "disk sda", (0.99, 0.1), 10 * (12 << 20), True,
        ),
        ({"memory": 0.25}, {"memory": 0.02}, {}, "memory", (0.25, 0.02), None, True),
        (WAIT_NET, {}, {"links": {"eth0": 10_000}}, "network eth0", (0.96, 0), 1.2e9, True),
        (WAIT_NET, {}, {"links": {"eth0": 0}}, "network eth0", (None, None), 1.2e9, False),
    ],
)  # fmt: skip
def test_what_was_busy_in_waits_and_else_is_known(
    recorded, words, figures, waiting, computing, about, name, shares, rate, saturated
):
    run = recorded(waiting, computing, **about)
    (machine,) = figures(run)["machines"]
    by_name = {each["name"]: each for each in machine["resources"]}
    use = by_name[name]
    assert (use["wait_fraction"], use["other_fraction"]) == pytest.approx(shares, abs=1e-3)
    assert use["wait_bytes_per_s"] == (rate and pytest.approx(rate, rel=0.01))
    assert [each for each in by_name if by_name[each]["saturated"]] == [name] * saturated
    assert (" yes" in words(run)) == saturated
    assert machine["wait_ns"] == BATCHES * WAIT_MS * MS


def test_a_job_has_one_section_for_each_machine(tmp_path, monkeypatch, capsys):
    path = write_job(tmp_path / "job")
    machine = StandInMachine(tmp_path)
    reader = machine.reader(path, monkeypatch)
    reader.read()
    for _ in range(50):
        machine.advance(100, cpus=[1] * 4)
        reader.read()
    assert main(["report", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (whole,) = found["job"]["machine_load"]["machines"]
    waits = [each["machine_load"]["machines"][0]["wait_ns"] for each in found["runs"]]
    assert (whole["host"], whole["wait_ns"]) == ("here", max(waits))
    assert main(["report", str(path), "--full"]) == 0
    assert capsys.readouterr().out.count("The machine during the run") == 1
