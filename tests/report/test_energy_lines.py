"""Joules in reports: never 0 where nothing was read, and each figure in JSON as well."""

import json

import pytest
from energy_files import source, write_energy
from page_runs import write_job
from schedules import pool

from iobench.cli import main

MS = 1_000_000
END = 2000 * MS
EVEN = [[0, 0, 0], [END, 0, 200_000_000]]
"""100 W, read as a run of `recorded` begins and as it ends."""


def recorded(path, *rows, step_ms=300, made=None, config=None, **energy):
    """Write 4 batches, each of 200 ms of loading and a step; with what its counters showed."""
    sketch = made or pool([(50 * MS, 100 * MS, 50 * MS)] * 4, workers=0, step_ns=step_ms * MS)
    sketch.config.update({"n_samples": 8, **(config or {})})
    sketch.write(path)
    if rows or energy:
        write_energy(path, *rows, **energy)
    return path


@pytest.fixture
def say(capsys):
    """Return what the command prints of a run: its words, or its document."""

    def run(path, *options):
        capsys.readouterr()
        assert main(["report", str(path), "--full", *options]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def words(say):
    return lambda path: " ".join(say(path).split())


@pytest.fixture
def figures(say):
    return lambda path: json.loads(say(path, "--json"))["runs"][0]["energy"]


def test_a_run_its_epochs_and_its_waits_have_joules(tmp_path, figures):
    gpu = figures(recorded(tmp_path / "run", *EVEN))["kinds"]["gpu"]
    assert (gpu["total_j"], gpu["wait_j"], gpu["covered_fraction"]) == pytest.approx((200, 80, 1))
    assert [*gpu["epochs_j"].values()] == pytest.approx([200])


def test_a_known_power_gives_known_joules_of_waits(tmp_path, figures):
    rows = [[0, 0, 0]]
    for at in range(0, 2000, 50):
        watts = 40 if at % 500 < 200 else 100
        rows.append([(at + 50) * MS, 0, rows[-1][2] + watts * 50_000])
    gpu = figures(recorded(tmp_path / "run", *rows))["kinds"]["gpu"]
    assert gpu["wait_j"] == pytest.approx(4 * 40 * 0.2)
    assert gpu["total_j"] == pytest.approx(4 * (40 * 0.2 + 100 * 0.3))


def test_kinds_add_up_but_for_a_whole_machine_which_has_them_in_it(tmp_path, words, figures):
    names = ("gpu:0", "gpu:1", "cpu:0", "memory:0", "machine:0")
    sources = [source(name) for name in names]
    last = [0, 200_000_000, 0, 100_000_000, 0, 123_456_789, 0, 1_234_567, 0, 10**9]
    run = recorded(tmp_path / "run", [0, *[0] * 10], [END, *last], sources=sources)
    for row in ("GPUs 300 J", "CPUs 123 J", "memory 1.23 J", "together 425 J"):
        assert row in words(run)
    kinds = figures(run)["kinds"]
    assert {name: each["total_j"] for name, each in kinds.items()} == pytest.approx(
        {"gpu": 300, "cpu": 123.456789, "memory": 1.234567, "machine": 1000}
    )


RESET = [[0, 0, 0], [END // 4, 0, 9], [END // 2, 0, 8], [END // 2 + 1, 0, None]]
FEW = "NVIDIA A100: fewer than two readings during the run"


@pytest.mark.parametrize(
    ("rows", "about", "reasons"),
    [
        ((), {"sources": [], "unreadable": [("cpu", "denied"), ("gpu", "no driver")]},
         ["denied", "no driver"]),
        ((), {"sources": [source()]}, [FEW]),
        ([[1, 0, 0]], {}, [FEW]),
        ([[-9 + END * 2, 0, 0], [END * 2, 0, 5]], {}, [FEW]),
        ([[END, 0, 0], [END + 9, 0, 5]], {}, [FEW]),
        (EVEN, {"sources": [source(estimated=True)]}, ["NVIDIA A100: readings of power alone"]),
        ([*RESET, "x", [0]], {}, ["NVIDIA A100: reset during the run"]),
        (EVEN, {"host": "there", "boot_id": "else"}, ["it was not read there"] * 3),
    ],
)  # fmt: skip
def test_what_is_not_readable_has_a_reason_and_no_figure(
    tmp_path, words, figures, rows, about, reasons
):
    run = recorded(tmp_path / "run", *rows, **about)
    found = figures(run)
    assert found["kinds"] == {}
    assert [each["reason"] for each in found["not_readable"]] == reasons
    assert "0 J" not in words(run)


def test_readings_that_cover_a_part_are_of_that_part(tmp_path, words, figures):
    rows = [[END // 4, 0, 0], [END * 5 // 8, 0, 75_000_000]]
    run = recorded(tmp_path / "run", *rows)
    gpu = figures(run)["kinds"]["gpu"]
    assert (gpu["total_j"], gpu["wait_j"]) == pytest.approx((75, 40))
    assert gpu["covered_fraction"] == 0.375
    assert "GPUs: readings cover 38 % of the run" in words(run)


def test_ranks_of_one_machine_have_equal_parts_that_add_up_to_it(tmp_path, say):
    job = write_job(tmp_path / "job", ranks=2)
    readings = [[5_000, 0, 0], [5_000 + 100 * MS, 0, 1001]]
    write_energy(job, *readings)
    found = json.loads(say(job, "--json"))
    parts = [each["energy"]["kinds"]["gpu"] for each in found["runs"]]
    assert [each["total_j"] for each in parts] == pytest.approx([5e-4, 5e-4], rel=2e-3)
    whole = found["job"]["energy"]
    gpu = whole["kinds"]["gpu"]
    assert gpu["total_j"] == pytest.approx(1e-3, rel=2e-3)
    assert gpu["wait_j"] == pytest.approx(sum(each["wait_j"] for each in parts))
    text = " ".join(say(job).split())
    assert text.count("Counters are for whole GPUs") == 1
