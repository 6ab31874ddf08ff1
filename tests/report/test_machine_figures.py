"""Joules, the machine during waits, and limits of storage: unknown where nothing was read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from energy_files import source, write_energy
from msgspec import to_builtins
from msgspec.structs import replace
from page_runs import write_job
from schedules import pool
from stand_in_machine import StandInMachine

from iobench.findings.limits import limit_of
from iobench.runs.run_facts import RunFacts
from iobench.storage.probe_figures import ReadFigures, StorageLimits

MS, SECOND, MB = 1_000_000, 10**9, 1_000_000
BATCHES, WAIT_MS, STEP_MS = 4, 200, 300
END = BATCHES * (WAIT_MS + STEP_MS) * MS
EVEN = [[0, 0], [END, 200_000_000]]
"""100 W, read as a run of `recorded` begins and as it ends."""


@pytest.fixture
def recorded(tmp_path):
    """Write 4 batches, each of 200 ms of loading and 300 of a step; with what counters showed."""

    def write(*rows, **energy):
        made = pool([(50 * MS, 100 * MS, 50 * MS)] * BATCHES, workers=0, step_ns=STEP_MS * MS)
        made.config["n_samples"] = 8
        made.write(tmp_path / "run")
        if rows or energy:
            write_energy(tmp_path / "run", *rows, **energy)
        return tmp_path / "run"

    return write


# -- energy -------------------------------------------------------------------------------


@pytest.fixture
def energy(said):
    return lambda path: said(path, "--json")["runs"][0]["energy"]


def test_a_run_its_epochs_and_its_waits_have_joules(recorded, energy):
    gpu = energy(recorded(*EVEN))["kinds"]["gpu"]
    assert (gpu["total_j"], gpu["wait_j"], gpu["covered_fraction"]) == pytest.approx((200, 80, 1))
    assert [*gpu["epochs_j"].values()] == pytest.approx([200])


def test_a_known_power_gives_known_joules_of_waits(recorded, energy):
    rows = [[0, 0]]
    for at in range(0, 2000, 50):
        watts = 40 if at % 500 < 200 else 100
        rows.append([(at + 50) * MS, rows[-1][1] + watts * 50_000])
    gpu = energy(recorded(*rows))["kinds"]["gpu"]
    assert gpu["wait_j"] == pytest.approx(4 * 40 * 0.2)
    assert gpu["total_j"] == pytest.approx(4 * (40 * 0.2 + 100 * 0.3))


def test_kinds_add_up_but_for_a_whole_machine_which_has_them_in_it(recorded, said, energy):
    sources = [source(name) for name in ("gpu:0", "gpu:1", "cpu:0", "memory:0", "machine:0")]
    last = [200_000_000, 100_000_000, 123_456_789, 1_234_567, 10**9]
    run = recorded([0] * 6, [END, *last], sources=sources)
    for row in ("GPUs 300 J", "CPUs 123 J", "memory 1.23 J", "together 425 J"):
        assert row in said(run)
    assert {name: each["total_j"] for name, each in energy(run)["kinds"].items()} == pytest.approx(
        {"gpu": 300, "cpu": 123.456789, "memory": 1.234567, "machine": 1000}
    )


RESET = [[0, 0], [END // 4, 9], [END // 2, 8], [END // 2 + 1, None]]
FEW = "NVIDIA A100: fewer than two readings during the run"


@pytest.mark.parametrize(
    ("rows", "about", "reasons"),
    [
        ((), {"sources": [], "unreadable": [("cpu", "denied"), ("gpu", "no driver")]},
         ["denied", "no driver"]),
        ((), {"sources": [source()]}, [FEW]),
        ([[1, 0]], {}, [FEW]),
        ([[-9 + END * 2, 0], [END * 2, 5]], {}, [FEW]),
        ([[END, 0], [END + 9, 5]], {}, [FEW]),
        (EVEN, {"sources": [source(estimated=True)]}, ["NVIDIA A100: readings of power alone"]),
        (RESET, {}, ["NVIDIA A100: reset during the run"]),
        (EVEN, {"host": "there", "boot_id": "else"}, ["it was not read there"] * 3),
    ],
)  # fmt: skip
def test_what_is_not_readable_has_a_reason_and_no_figure(
    recorded, said, energy, rows, about, reasons
):
    run = recorded(*rows, **about)
    found = energy(run)
    assert found["kinds"] == {}
    assert [each["reason"] for each in found["not_readable"]] == reasons
    text = said(run)
    assert "0 J" not in text
    assert all(reason in text.partition(" Energy ")[2] for reason in reasons)


def test_readings_that_cover_a_part_are_of_that_part(recorded, said, energy):
    run = recorded([END // 4, 0], [END * 5 // 8, 75_000_000])
    gpu = energy(run)["kinds"]["gpu"]
    assert (gpu["total_j"], gpu["wait_j"], gpu["covered_fraction"]) == pytest.approx(
        (75, 40, 0.375)
    )
    assert "GPUs: readings cover 38 % of the run" in said(run)


def test_ranks_of_one_machine_have_equal_parts_that_add_up_to_it(tmp_path, said):
    job = write_job(tmp_path / "job", ranks=2)
    write_energy(job, [5_000, 0], [5_000 + 100 * MS, 1001])
    found = said(job, "--json")
    parts = [each["energy"]["kinds"]["gpu"] for each in found["runs"]]
    assert [each["total_j"] for each in parts] == pytest.approx([5e-4, 5e-4], rel=2e-3)
    gpu = found["job"]["energy"]["kinds"]["gpu"]
    assert gpu["total_j"] == pytest.approx(1e-3, rel=2e-3)
    assert gpu["wait_j"] == pytest.approx(sum(each["wait_j"] for each in parts))
    assert said(job).count("Counters are for whole GPUs") == 1


# -- the machine during waits -------------------------------------------------------------


@pytest.fixture
def watched(recorded, tmp_path, monkeypatch):
    """Write the same run, during which a machine was used in a way while it waited, and else."""

    def write(waiting, computing, **about):
        path, machine = recorded(), StandInMachine(tmp_path, **about)
        reader = machine.reader(path, monkeypatch, period_ms=100)
        reader.read()
        for at in range(0, BATCHES * (WAIT_MS + STEP_MS), 100):
            machine.advance(100, **(waiting if at % (WAIT_MS + STEP_MS) < WAIT_MS else computing))
            reader.read()
        return path

    return write


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
    watched, said, waiting, computing, about, name, shares, rate, saturated
):
    run = watched(waiting, computing, **about)
    (machine,) = said(run, "--json")["runs"][0]["machine_load"]["machines"]
    by_name = {each["name"]: each for each in machine["resources"]}
    use = by_name[name]
    assert (use["wait_fraction"], use["other_fraction"]) == pytest.approx(shares, abs=1e-3)
    assert use["wait_bytes_per_s"] == (rate and pytest.approx(rate, rel=0.01))
    assert [each for each in by_name if by_name[each]["saturated"]] == [name] * saturated
    section = said(run).partition("The machine during the run")[2].partition(" MLPerf")[0]
    assert (" yes" in section) == saturated
    assert machine["wait_ns"] == BATCHES * WAIT_MS * MS


def test_a_job_has_one_section_for_each_machine(tmp_path, monkeypatch, said):
    path = write_job(tmp_path / "job")
    machine = StandInMachine(tmp_path)
    reader = machine.reader(path, monkeypatch)
    reader.read()
    for _ in range(50):
        machine.advance(100, cpus=[1] * 4)
        reader.read()
    found = said(path, "--json")
    (whole,) = found["job"]["machine_load"]["machines"]
    waits = [each["machine_load"]["machines"][0]["wait_ns"] for each in found["runs"]]
    assert (whole["host"], whole["wait_ns"]) == ("here", max(waits))
    assert said(path).count("The machine during the run") == 1


# -- limits of storage, by the probes of a run --------------------------------------------


def reads(served_by, gb_per_s, threads=1):
    nbytes = round(gb_per_s * 1e9)
    return ReadFigures(
        way="direct", threads=threads, n_reads=100, nbytes=nbytes, wall_ns=SECOND,
        bytes_per_s=float(nbytes), reads_per_s=100.0, served_by=served_by,
    )  # fmt: skip


LIMITS = StorageLimits(
    path="/data", mount="/data", host="here", file_system="ext4", wall_ns=1_795_500_000 * SECOND,
    like="samples of the store /data/store", request_nbytes=23_900_000, n_files=3,
    files_nbytes=4_000_000_000, spent_ns=3 * SECOND,
    reads=(
        reads("device", 1.5), reads("device", 2.0, threads=2),
        reads("page cache", 8.0), reads("page cache", 16.0, threads=4),
        reads("mixed", 99.0, threads=2), reads("unknown", 99.0, threads=2),
        ReadFigures(way="direct", threads=8, refused="tmpfs refuses O_DIRECT"),
    ),
)  # fmt: skip


def held(exposure, *limits, cold=None, gb_per_s=0.2, readers=1, **config):
    """Return how a run that read so much, so much of it from the device, is held against probes."""
    whole = exposure.whole
    nbytes = None if gb_per_s is None else round(gb_per_s * whole.wall_ns)
    whole = replace(whole, read_nbytes=nbytes, cold_fraction=cold)
    config = {"storage_limits": [to_builtins(each) for each in limits], **config}
    if limits:
        config.setdefault("storage_probed", "before")
    exposure = replace(exposure, whole=whole, workers=readers)
    return limit_of(SimpleNamespace(about=RunFacts.from_config(config), exposure=exposure))


@pytest.mark.parametrize(
    ("cold", "readers", "after", "limit"),
    [
        (1.0, 1, None, 1.5e9),
        (0.93, 2, None, 2.0e9),
        (1.0, 1, reads("device", 0.5), 1e9),  # of two probes the mean
    ],
)
def test_the_limit_is_that_of_the_storage(bound, cold, readers, after, limit):
    more = {"storage_after": to_builtins(replace(LIMITS, reads=(after,)))} if after else {}
    use = held(bound.exposure, LIMITS, cold=cold, readers=readers, **more)
    assert use.limit_bytes_per_s == pytest.approx(limit)
    assert use.used_bytes_per_s == pytest.approx(0.2e9)
    assert use.used_fraction == pytest.approx(0.2e9 / limit)


@pytest.mark.parametrize(
    ("rows", "cold", "gb_per_s", "why"),
    [
        (LIMITS.reads, None, 0.2, "how much of it came from storage is unknown"),
        (LIMITS.reads, 0.5, 0.2, "the page cache served it"),
        (LIMITS.reads[2:], 1.0, 0.2, "no reads of the storage itself"),
        (LIMITS.reads, 1.0, None, "were not counted"),
    ],
)
def test_without_the_evidence_there_is_no_limit(bound, rows, cold, gb_per_s, why):
    use = held(bound.exposure, replace(LIMITS, reads=rows), cold=cold, gb_per_s=gb_per_s)
    assert (use.limit_bytes_per_s, use.used_fraction) == (None, None)
    assert why in use.reason


@pytest.mark.parametrize(
    ("cache", "files_nbytes", "share"),
    [
        ({"resident_fraction_before": 0.0}, 10**12, 0.2 / 1.5),
        ({"resident_fraction_before": 0.0, "asked": "cold"}, 1, 0.2 / 1.5),
        ({"resident_fraction_before": 1.0}, 1, None),
        ({"resident_fraction_before": 0.0}, 1, None),  # read again and again: from where?
        ({"resident_fraction_before": 0.5}, 10**12, None),
        ({}, 10**12, None),
    ],
)
def test_where_nobody_counts_the_page_cache_tells_or_it_is_unknown(
    bound, cache, files_nbytes, share
):
    use = held(bound.exposure, LIMITS, cache=cache, files_nbytes=files_nbytes)
    assert use.used_fraction == (None if share is None else pytest.approx(share))
