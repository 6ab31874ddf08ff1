"""What the machine did while the loop waited: known uses of a machine that a test moves on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from energy_files import source, write_energy
from page_runs import write_job
from run_files import write_run
from schedules import pool
from stand_in_machine import GIB, StandInMachine

from iobench.cli import main
from iobench.recording.this_process import host_name

MS = 1_000_000
BATCHES, WAIT_MS, STEP_MS = 4, 200, 300
Run = Callable[..., Path]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Write 4 batches, each of 200 ms that the loop waits and 300 ms of computing."""

    def run(waiting: dict[str, Any], computing: dict[str, Any], **about: Any) -> Path:
        path = tmp_path / "run"
        step = about.pop("look_ms", 100)
        made = pool([(50 * MS, 100 * MS, 50 * MS)] * BATCHES, workers=0, step_ns=STEP_MS * MS)
        write_run(path, made.profile())
        machine = StandInMachine(tmp_path, **about)
        reader = machine.reader(path, monkeypatch, period_ms=step)
        reader.read()
        for at in range(0, BATCHES * (WAIT_MS + STEP_MS), 100):
            machine.advance(100, **(waiting if at % (WAIT_MS + STEP_MS) < WAIT_MS else computing))
            if machine.ns % (step * MS) == 0:
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
        return " ".join(text.split("The machine during the run")[1].split("\n\n")[0].split())

    return say


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], Any]:
    def found(path: Path) -> Any:
        capsys.readouterr()
        assert main(["report", str(path), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["runs"][0]["machine_load"]

    return found


def test_saturated_cpus_are_told_with_what_they_did_else(recorded, words, figures):
    run = recorded({"cpus": [1, 1, 1, 0.9]}, {"cpus": [0.4] * 4})
    said = words(run)
    assert (
        "CPUs: 98 % busy while the loop waited, 40 % else, of the 4 CPUs that this job may use: "
        "saturated." in said
    )
    assert "Disks: idle." in said
    assert said.count("saturated") == 1
    assert "need not be its cause" in said
    (found,) = figures(run)["machines"]
    assert (found["cpus"], found["host"], found["step_s"]) == (4, "here", 0.1)
    assert found["cpu"]["wait_fraction"] == pytest.approx(0.975)
    assert found["separability"] == 1.0


def test_a_saturated_disk_is_separability_from_saturated_cpus(recorded, words):
    said = words(
        recorded({"cpus": [0.1] * 4, "disk": 0.99, "disk_nbytes": 12 << 20}, {"disk": 0.1})
    )
    assert "CPUs: 10 % busy while the loop waited, 0 % else" in said
    assert (
        "Disk sda: requests in flight for 99 % while the loop waited (126 MB/s), 10 % else: "
        "saturated." in said
    )
    assert said.count("saturated") == 1
    assert "may still deliver more" not in said


def test_a_damaged_file_of_a_machine_is_told(recorded, words, figures):
    run = recorded({"cpus": [1] * 4}, {"cpus": [0.4] * 4})
    (file,) = (run / "machine").iterdir()
    file.write_bytes(file.read_bytes()[20:])
    told = f"Damaged files, whose content is missing here: machine/{file.name}."
    assert words(run) == told
    found = figures(run)
    assert (found["machines"], found["damaged_files"]) == ([], [f"machine/{file.name}"])


def test_a_disk_that_serves_many_at_once_may_give_more(recorded, words):
    said = words(recorded({"disk": 1}, {"disk": 1}, disks={"nvme0n1": False}))
    assert "nvme0n1: requests in flight for 100 % while the loop waited" in said
    assert "A disk that serves many requests at once may still deliver more then." in said


def test_nothing_is_saturated_where_a_loop_waits_for_what_sleeps(recorded, words):
    said = words(recorded({"cpus": [0.1] * 4}, {"cpus": [0.9] * 4}))
    assert "CPUs: 10 % busy while the loop waited, 90 % else" in said
    assert "aturated" not in said
    assert "Disks: idle." in said


def test_cpus_are_those_of_the_quota(recorded, words, figures):
    run = recorded(
        {"cpus": [0.3] * 64, "quota": 0.98, "throttled": 0.5}, {"cpus": [0.1] * 64, "quota": 0.3},
        n_cpus=64, quota="400000 100000",
    )  # fmt: skip
    said = words(run)
    assert "CPUs: 98 % busy while the loop waited, 30 % else, of the 4 CPUs that the cgroup" in said
    assert "saturated." in said
    assert "The quota was used up in 50 % of its periods." in said
    assert figures(run)["machines"][0]["quota_cpus"] == 4.0


def test_memory_that_is_short_is_told_by_pressure_and_by_swap(recorded, words):
    said = words(recorded({"memory": 0.25}, {"memory": 0.02}))
    assert (
        "tasks were held up for lack of memory for 25 % while the loop waited, 2.0 % else: short "
        "of memory." in said
    )
    assert "Memory: at most 4.29 GB of 17.2 GB used, and 2.15 GB of page cache" in said


def test_swapping_is_short_of_memory_where_no_pressure_is_told(recorded, words):
    said = words(recorded({"swap_pages": 100}, {}, swap=True, pressure=False))
    assert "3.28 MB swapped: short of memory." in said
    assert "held up" not in said


def test_memory_is_that_of_the_cgroup(recorded, words):
    assert "Memory: at most 0 of 8.59 GB used" in words(recorded({}, {}, memory_limit=8 * GIB))


@pytest.mark.parametrize(
    ("links", "told"),
    [
        ({"eth0": 10_000}, "Network eth0: 96 % while the loop waited (1.20 GB/s), 0 % else, of "
         "1.25 GB/s: saturated."),
        ({"eth0": 0}, "Network eth0: 1.20 GB/s while the loop waited, of unknown speed."),
    ],
)  # fmt: skip
def test_a_network_is_saturated_by_what_its_link_carries(recorded, words, links, told):
    assert told in words(recorded({"net_nbytes": 120_000_000}, {}, links=links))


def test_what_the_system_does_not_tell_is_unknown(recorded, words):
    said = words(recorded({}, {}, disks={}, links={}, pressure=False))
    assert "Disks and network: unknown." in said
    assert "held up" not in said
    assert "swap" not in said


def test_looks_that_are_too_seldom_are_said_to_mix(recorded, words, figures):
    run = recorded({"cpus": [1] * 4}, {"cpus": [0] * 4}, look_ms=500)
    said = words(run)
    assert "CPUs: 40 % busy while the loop waited, 40 % else" in said
    assert (
        "Waits and other time alternate faster than the machine was sampled (every 500 ms)" in said
    )
    assert figures(run)["machines"][0]["separability"] == pytest.approx(0)


@pytest.mark.parametrize("step_ms", [0, 10])
def test_a_short_pass_within_a_look_is_said_to_mix_with_what_is_around_it(
    tmp_path, monkeypatch, words, figures, step_ms
):
    path = tmp_path / "run"
    made = pool([(5 * MS, 10 * MS, 5 * MS)] * 2, workers=0, step_ns=step_ms * MS)
    write_run(path, made.profile())
    machine = StandInMachine(tmp_path)
    reader = machine.reader(path, monkeypatch, period_ms=500)
    reader.read()
    machine.advance(500, cpus=[1] * 4)
    reader.read()
    assert "alternate faster than the machine was sampled (every 500 ms)" in words(path)
    assert figures(path)["machines"][0]["separability"] < 0.1


def test_the_memory_of_processes_that_did_not_tell_is_unknown(recorded, words):
    run = recorded({}, {})
    for each in run.glob("processes/*.json"):
        about = json.loads(each.read_text())
        each.write_text(json.dumps({**about, "peak_nbytes": None}))
    assert (
        "Its process at most: unknown for 1 that did not record it, such as a killed one."
    ) in words(run)


def test_gpus_are_told_by_the_same_waits(recorded, words, figures):
    run = recorded({}, {})
    rows = [[0, 0, 0]]
    for at in range(100, 2001, 100):
        waits = (at - 1) % 500 < 200
        rows += [[at * MS, 0, at], {"time_ns": at * MS, "usage": [[0, 3 if waits else 97, 1]]}]
    write_energy(run, *rows, sources=[source("gpu:a")])
    assert "NVIDIA A100: 3.0 % busy while the loop waited, 97 % else." in words(run)
    assert figures(run)["machines"][0]["gpus"][0]["saturated"] is False


def test_a_run_that_nobody_looked_at_has_no_such_section(tmp_path, words, figures):
    path = tmp_path / "run"
    write_run(path, pool([(50 * MS, 100 * MS, 50 * MS)] * 4, workers=0, step_ns=300 * MS).profile())
    assert words(path) == ""
    assert figures(path) is None


def test_a_job_has_one_section_for_each_machine(tmp_path, monkeypatch, capsys):
    path = write_job(tmp_path / "job")
    machine = StandInMachine(tmp_path)
    reader = machine.reader(path, monkeypatch, host="")
    reader.read()
    for _ in range(50):
        machine.advance(100, cpus=[1] * 4)
        reader.read()
    assert main(["report", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (whole,) = found["job"]["machine_load"]["machines"]
    assert (whole["host"], whole["rank"]) == (host_name(), 2)  # which waited longest
    assert len(whole["processes"]) == sum(
        len(each["machine_load"]["machines"][0]["processes"]) for each in found["runs"]
    )
    assert main(["report", str(path), "--full"]) == 0
    assert capsys.readouterr().out.count("The machine during the run") == 1
