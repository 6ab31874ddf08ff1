"""Reports of users' own scripts and of jobs, from sketched runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_runs import JOB, rank_sketch

from iobench import exposure
from iobench.analysis.run import Run, open_runs
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.run_report import make_reports
from iobench.runs.reading import open_profile
from tests.support.run_json import to_json
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000


def document(path: Path) -> dict[str, Any]:
    found = json.loads(json.dumps(to_json(open_runs(path)), allow_nan=False))
    assert isinstance(found, dict)
    return found


def test_without_a_consumer_exposure_is_not_defined(tmp_path: Path) -> None:
    run = SketchedRun(JOB)
    run.add(CONSUMER, Kind.READ, 0, 30 * MS, nbytes=5_000_000)
    run.add(CONSUMER, Kind.DECODE, 30 * MS, 40 * MS)
    run.write(tmp_path / "run")
    (found,) = document(tmp_path / "run")["runs"]
    assert found["wait_ns"] is None
    assert found["wall_ns"] is None
    assert found["exposed_ns"] is None
    assert found["diagnosis"]["verdict"] == "no consumer"
    ((process,),) = (each.processes for each in make_reports([Run(tmp_path / "run")]))
    assert [(row.stage, row.busy_ns) for row in process.stages] == [
        ("read", 30 * MS),
        ("decode", 10 * MS),
    ]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for rank, waits_ms in enumerate([(10, 10, 10), (30, 10, 10), (10, 10, 10)]):
        run = rank_sketch(waits_ms, rank, world_size=4)
        run.facts["ended"] = "RuntimeError" if rank == 2 else "closed"
        run.write(tmp_path / "job")
    return tmp_path / "job"


def test_a_job_is_compared_rank_by_rank(job: Path) -> None:
    found = document(job)
    assert [run["rank"] for run in found["runs"]] == [0, 1, 2]
    assert found["job"]["world_size"] == 4
    assert found["job"]["steps"] == 3
    assert [each["wait_ns"] for each in found["job"]["ranks"]] == [30 * MS, 50 * MS, 30 * MS]
    assert found["job"]["imbalance"] == pytest.approx(50 / (110 / 3))
    assert found["job"]["missing"] == {"ended with RuntimeError": [2], "never started": [3]}


def test_ranks_are_read_one_by_one_or_together(job: Path) -> None:
    (opened,) = open_runs(job)
    assert [each.rank for each in opened] == [0, 1, 2]
    assert exposure(open_profile(job, rank=1)).whole.wait_ns == 50 * MS
    assert exposure(open_profile(job), rank=1) == exposure(open_profile(job, rank=1))
    assert to_json([Run(open_profile(job))]) == to_json(open_runs(job))


@pytest.mark.parametrize(("device", "expected"), [(0, None), (2_000_000, 0.25)])
def test_a_script_that_read_nothing_from_a_device_may_not_have_been_counted(
    tmp_path: Path, device: int, expected: float | None
) -> None:
    run = rank_sketch([10])
    run.add(
        ("worker", 0), Kind.OTHER, 5, 5, nbytes=8_000_000, cpu_ns=device, batch=0, flags=Flag.IO
    )
    run.write(tmp_path / "run")
    (found,) = document(tmp_path / "run")["runs"]
    assert found["cold_fraction"] == expected
