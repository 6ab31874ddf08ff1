"""Joules in reports: never 0 where nothing was read, and each figure in JSON as well."""

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from schedules import pool
from scripts import LOOP, ScriptSketch

from iobench.analysis.run import Run
from iobench.recording.energy_counters import EnergySource, UnreadableEnergy
from iobench.recording.energy_file import EnergySeries, HostEnergy
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.report.document import Sentence, Table
from iobench.report.json_report import to_json
from iobench.report.renderers.quantities import spelled
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.report.run_report import make_reports
from iobench.report.subject_sections import run_sections

MS = 1_000_000
DENIED = UnreadableEnergy("cpu", "permission denied (/sys/class/powercap/intel-rapl:0/energy_uj)")


def counter(time_ns, energy_uj, *, kind="gpu", by="NVML", estimated=False, **more):
    source = EnergySource(f"{kind}:0", kind, "NVIDIA A100", by, 100 * MS, None, estimated)
    told = {"n_resets": 0, "n_failed": 0, **more}
    return EnergySeries(source, np.array(time_ns), np.array(energy_uj), **told)


def run(*found, unreadable=(), step_ms=300, config=None, host="here", n_damaged=0):
    """Return 4 batches, each of 200 ms of loading and a step; with what its counters showed."""
    times = (50 * MS, 100 * MS, 50 * MS)
    profile = pool([times] * 4, workers=0, step_ns=step_ms * MS).profile()
    energy = HostEnergy(
        host, "boot", 100 * MS, found, tuple(unreadable), 21, 21 * 85_000, 21, n_damaged, True
    )
    told = {"n_samples": 8, "batch_size": 4, **(config or {})}
    return replace(profile, config={**profile.config, **told}, energy=(energy,))


def report_of(profile):
    (report,) = make_reports([Run(profile)])
    return report


def energy_blocks(report, kind):
    return [
        block
        for section in run_sections(report)
        if section.key == "energy"
        for block in section.blocks
        if isinstance(block, kind)
    ]


def energy_lines(report):
    return [sentence.text for sentence in energy_blocks(report, Sentence)]


def energy_table(report):
    tables = energy_blocks(report, Table)
    return spelled(tables[0]) if tables else None


def text_of(*profiles):
    return TerminalRenderer(StringIO()).render(report_document([*map(Run, profiles)]))


def even(n_ms=2000, watts=100):
    return counter([0, n_ms * MS], [0, n_ms * watts * 1000])


def test_a_table_tells_joules_and_watt_hours_of_the_run_its_samples_and_its_waits():
    table = energy_table(report_of(run(even())))
    assert table.rows == (
        ("GPUs", "200 J", "55.6 mWh", "200 J", "12.5 J", "80.0 J", "22.2 mWh", "40 %"),
    )
    assert table.total == ()
    both = energy_table(report_of(run(even(), counter([0, 2000 * MS], [0, 10**8], kind="cpu"))))
    assert [row[:2] for row in (*both.rows, both.total)] == [
        ("GPUs", "200 J"), ("CPUs", "100 J"), ("together", "300 J"),
    ]  # fmt: skip


def test_a_whole_machine_is_not_added_to_its_parts():
    machine = counter([0, 2000 * MS], [0, 10**9], kind="machine", by="HPE Cray")
    table = energy_table(report_of(run(even(), machine)))
    assert [row[0] for row in table.rows] == ["GPUs", "whole machine"]
    assert table.total == ()


def test_what_is_not_readable_has_a_reason_and_no_figure():
    profile = run(unreadable=[DENIED, UnreadableEnergy("gpu", "no NVIDIA driver")])
    report = report_of(profile)
    assert energy_table(report) is None
    assert energy_lines(report) == [
        "Energy that is not readable here: CPUs: permission denied "
        "(/sys/class/powercap/intel-rapl:0/energy_uj); GPUs: no NVIDIA driver."
    ]
    found = to_json([Run(profile)])["runs"][0]["energy"]
    assert (found["readable"], found["kinds"], found["epochs"]) == (False, {}, [])
    assert [each["kind"] for each in found["not_readable"]] == ["cpu", "gpu"]
    assert "0 J" not in text_of(profile)


def test_where_nobody_looked_nothing_is_said():
    profile = replace(run(), energy=())
    assert energy_lines(report_of(profile)) == []
    assert to_json([Run(profile)])["runs"][0]["energy"] is None
    assert "nergy" not in text_of(profile)


def test_waits_shorter_than_readings_are_said_to_be_told_by_their_share():
    coarse = " ".join(energy_lines(report_of(run(even()))))
    assert "waits (median 200 ms) are shorter than the time between readings (2.00 s)" in coarse
    assert "It lies between 0 J and 200 J." in coarse
    edges = np.arange(0, 2001, 50) * MS
    fine = run(counter(edges, edges // 10))
    told = " ".join(energy_lines(report_of(fine)))
    assert "shorter" not in told
    assert "whatever happened between two readings" in told
    assert "by what was waited for: decode 40.0 J, collate 20.0 J, read 20.0 J." in told


def test_what_a_reader_has_to_know_is_said():
    told = " ".join(energy_lines(report_of(run(even()))))
    assert "all that ran on here is in them, other jobs too, and nothing is taken off" in told
    assert "every 100 ms took 85.0 us each, < 0.1 % of one CPU" in told
    half = energy_lines(report_of(run(counter([0, 1000 * MS], [0, 9], estimated=True))))
    assert "GPUs: an estimate, from readings of power; the driver counts no energy." in half
    assert "GPUs: readings cover 50 % of the run; the rest is in no figure." in half
    trouble = run(replace(even(), n_resets=1, n_failed=2), n_damaged=3)
    told = " ".join(energy_lines(report_of(trouble)))
    for part in ("set back once during", "could not be read 2 times", "3 readings cannot be read"):
        assert part in told


def test_an_emulated_step_is_no_training():
    emulated = {"compute": {"forward_ns": 300 * MS, "backward_ns": 0, "source": "25ms"}}
    assert "was emulated" in " ".join(energy_lines(report_of(run(even(), config=emulated))))
    assert "was emulated" not in " ".join(energy_lines(report_of(run(even()))))


@pytest.mark.parametrize(
    ("dataset", "kind", "shown"),
    [
        ("ENS10Dataset", "script", True),
        ("ENS10Dataset", "profile", False),
        ("cifar", "script", False),
    ],
)
def test_published_energy_stands_beside_a_training_of_ens10_alone(dataset, kind, shown):
    config = {"dataset": dataset, "kind": kind}
    told = " ".join(energy_lines(report_of(run(even(), config=config))))
    assert ("136 Wh to 158 Wh of its GPU, 22.6 Wh to 26.3 Wh an epoch" in told) == shown


def test_json_holds_the_same_figures_unrounded_and_exact():
    found = to_json([Run(run(even()))])["runs"][0]["energy"]
    json.dumps(found, allow_nan=False)
    gpu = found["kinds"]["gpu"]
    assert gpu["total_uj"] == gpu["wait_uj"] + gpu["compute_uj"] == 200_000_000
    assert sum(gpu["exposed_uj"].values()) == gpu["wait_uj"] == 80_000_000
    assert (gpu["total_j"], gpu["wait_j"], gpu["j_per_sample"]) == (200.0, 80.0, 12.5)
    assert gpu["total_wh"] == pytest.approx(200 / 3600)
    assert gpu["wait_between_j"] == [0.0, 200.0]
    assert found["epochs"] == [
        {
            "epoch": 0,
            "complete": True,
            "batches": 4,
            "kinds": {"gpu": {"total_j": 200.0, "wait_j": 80.0}},
        }
    ]
    (source,) = found["sources"]
    assert (source["by"], source["title"], source["covered_s"]) == ("NVML", "NVIDIA A100", 2.0)


def ranks(n_ranks):
    """Return a job of ranks on one machine, each waiting 200 ms of 500 ms four times."""
    facts = tuple(
        ProcessFacts(pid=1000, ppid=1, host="here", role="consumer", rank=rank, world_size=n_ranks)
        for rank in range(n_ranks)
    )
    found = []
    for rank in range(n_ranks):
        sketch = ScriptSketch(rank=rank, world_size=n_ranks)
        for batch in range(4):
            start = batch * 500 * MS
            fields = {"batch": batch, "detail": "consumer", "sample": 0, "epoch": 0}
            sketch.add(LOOP, Kind.WAIT, start, start + 200 * MS, **fields)
        sketch.add(LOOP, Kind.OTHER, 0, 2000 * MS, label="round", sample=0)
        energy = HostEnergy("here", "boot-here", 100 * MS, (even(),), (), 21, 1, 1, 0, True)
        profile = sketch.profile()
        found.append(
            replace(profile, facts=facts, ranks=tuple(range(n_ranks)), rank=rank, energy=(energy,))
        )
    return found


def test_a_job_has_the_energy_of_its_machine_once():
    document = to_json(map(Run, ranks(4)))
    assert document["job"]["energy"]["kinds"]["gpu"]["total_j"] == 200.0
    assert [each["energy"]["kinds"]["gpu"]["total_j"] for each in document["runs"]] == [50.0] * 4
    text = text_of(*ranks(4))
    assert text.count("Counters are of whole GPUs") == 1
    assert "Its 4 training processes have equal parts of it." in " ".join(text.split())


def test_a_terminal_of_80_columns_holds_the_table():
    cpu = counter([0, 2000 * MS], [0, 123_456_789], kind="cpu")
    memory = counter([0, 2000 * MS], [0, 1_234_567], kind="memory")
    machine = counter([0, 2000 * MS], [0, 10**9], kind="machine")
    text = text_of(run(even(), cpu, memory, machine))
    table = text[text.index("\nEnergy\n") :].split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "whole machine" in table
