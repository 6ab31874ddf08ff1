"""Reports of users' own scripts and of jobs, from run directories written by recorders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from process_files import loader, write_process

from iobench import exposure
from iobench.analysis.run import Run, open_runs
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.report.json_report import to_json
from iobench.report.run_report import make_reports
from iobench.runs.reading import open_profile
from iobench.testing import FakeClock

MS = 1_000_000
CONFIG: dict[str, Any] = {
    "kind": "script",
    "command": "python train.py --epochs 2",
    "job": "torch:1",
    "launcher": "torchrun",
    "world_size": 1,
    "machine": {"cpus": 4},
}


def write_rank(
    run: RunDirectory,
    *,
    rank: int = 0,
    world_size: int = 1,
    waits: tuple[int, ...] = (10, 10, 10),
    n_loaders: int = 1,
    **more: Any,
) -> None:
    """Loaders in the loop itself, asked in turn: ``waits`` in ms each, 5 ms of compute after."""
    recorder = run.recorder(role="consumer", rank=rank, clock=FakeClock(1000))
    maker, start = recorder.string("consumer"), 5_000
    now = start
    for batch, wait in enumerate(waits):
        of = {"batch": batch, "sample": batch % n_loaders}
        held = now + wait * MS
        recorder.emit(Kind.READ, now, held, nbytes=6_000_000, batch=batch)
        recorder.emit(Kind.WAIT, now, held, nbytes=8_000_000, detail=maker, **of)
        now = held + 5 * MS
        recorder.emit(Kind.FORWARD, held, now, batch=batch)
    recorder.emit(Kind.COMM, now, now + MS)
    for number in range(n_loaders):
        named = {"label": recorder.string("round"), "detail": recorder.string(f"loader-{number}")}
        recorder.emit(Kind.OTHER, start, now + MS, sample=number, **named)
    recorder.close()
    facts = {
        "rank": rank, "world_size": world_size, "local_rank": rank, "launcher": "torchrun",
        "loaders": [*map(loader, range(n_loaders))], "ended": "closed",
    }  # fmt: skip
    write_process(run.path, f"rank{rank}", **{**facts, **more})


def make_run(path: Path, **config: Any) -> RunDirectory:
    return RunDirectory.create(path, {**CONFIG, **config})


def document(path: Path) -> dict[str, Any]:
    found = json.loads(json.dumps(to_json(open_runs(path)), allow_nan=False))
    assert isinstance(found, dict)
    return found


def test_without_a_consumer_exposure_is_not_defined(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with run.recorder(role="consumer", clock=FakeClock(1000)) as recorder:
        recorder.emit(Kind.READ, 0, 30 * MS, nbytes=5_000_000)
        recorder.emit(Kind.DECODE, 30 * MS, 40 * MS)
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
    run = make_run(tmp_path / "job", world_size=4)
    write_rank(run, rank=0, world_size=4, waits=(10, 10, 10))
    write_rank(run, rank=1, world_size=4, waits=(30, 10, 10))
    write_rank(run, rank=2, world_size=4, waits=(10, 10, 10), ended="RuntimeError")
    return run.path


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
    run = make_run(tmp_path / "run")
    write_rank(run, waits=(10,))
    with run.recorder(role="worker", worker=0, clock=FakeClock(1000)) as worker:
        worker.emit(Kind.OTHER, 5, 5, 8_000_000, device, batch=0, flags=Flag.IO)
    (found,) = document(tmp_path / "run")["runs"]
    assert found["cold_fraction"] == expected
