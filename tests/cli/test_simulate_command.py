"""``iobench simulate`` as users call it: its sentences, its numbers, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import SketchedRun

MS = 1_000_000
NBYTES = 4_000_000
READ, DECODE, STEP = 10 * MS, 5 * MS, 25 * MS


def write_run(path: Path, *, n_batches: int = 40, ranks: int = 1, **config: object) -> Path:
    """Write a run whose training loop loads every batch itself: 15 ms before a step of 25 ms."""
    settings = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 2}
    run = SketchedRun({**settings, "framework": "workers", "n_samples": 1000}, **config)
    for rank in range(ranks):
        lane, now = ("consumer", -1, rank), 0
        run.processes[lane] = {"rank": rank}
        for batch in range(n_batches):
            of = {"nbytes": NBYTES, "epoch": 0}
            stages = {Kind.READ: READ, Kind.DECODE: DECODE}
            held = run.work(lane, now, stages, batch=batch, sample=0, **of)
            run.wait(batch, now, held, "consumer", lane=lane, **of)
            now = held + STEP
        # Reads of nothing that was trained on: a module, and what a killed run had asked for.
        for batch in (-1, n_batches):
            run.add(lane, Kind.READ, now, now, batch=batch, epoch=0 if batch >= 0 else -1)
        run.shutdown(now, now, lane)
        run.round(0, now, lane=lane)
    run.write(path)
    return path


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate few steps: every batch of these runs is the same."""
    monkeypatch.setattr("iobench.findings.scaling.MOST_STEPS", 40)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("measured") / "run")


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main(["simulate", *map(str, arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_numbers_are_in_json(run, capsys):
    document = json_of(capsys, run, "--ranks", "2,20", "--storage-iops", "0.5k/s")
    assert document["schema_version"] == 2
    assert document["saturation"] == {"ranks": 10, "by": "reads"}
    measured = document["measured"]
    assert (measured["rule"], measured["ahead"]) == ("serial", 0)
    two, many = document["points"]
    assert two["step_ns"] == 40 * MS
    assert two["exposed_fraction"] == pytest.approx(15 / 40)
    assert two["samples_per_s"] == pytest.approx(4 / 0.04)
    assert many["step_ns"] == (80 + 5 + 25) * MS
    document = json_of(capsys, run, "--ranks", "9", "--storage-bandwidth", "100MB/s")
    assert document["points"][0]["efficiency"] == pytest.approx(70 / 390)


def test_a_job_of_several_ranks_is_one_measurement(tmp_path, capsys):
    job = write_run(tmp_path / "job", ranks=3)
    document = json_of(capsys, job, "--ranks", "24")
    assert document["measured"]["ranks"] == 3
