"""From a run directory with hand-made spans to both reports, through profiles and analysis."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest

from iobench.analysis.run import open_runs
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.report.json_report import to_json
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.testing import FakeClock

MS = 1_000_000
READ_NS, DECODE_NS, STEP_NS = 6 * MS, 4 * MS, 5 * MS


def write_serial_run(path: Path, *, killed: bool = False) -> None:
    """Three batches loaded by the training loop itself: 10 ms of wait and 5 ms of compute each."""
    compute = {"forward_ns": STEP_NS, "backward_ns": 0, "source": "--compute 5ms"}
    config = {"dataset": "grib", "format": path.name, "framework": "workers", "workers": 0}
    config |= {"prefetch": 0, "batch_size": 2, "stand_in": False, "compute": compute}
    run = RunDirectory.create(path, config)
    recorder = run.recorder(role="consumer", clock=FakeClock(1000))
    maker, now = recorder.string("consumer"), 5_000
    start = now
    for batch in range(3):
        read = now + READ_NS
        decoded = read + DECODE_NS
        recorder.emit(Kind.READ, now, read, nbytes=6_000_000, batch=batch, pieces=2)
        recorder.emit(Kind.DECODE, read, decoded, nbytes=8_000_000, batch=batch, pieces=2)
        recorder.emit(Kind.WAIT, now, decoded, nbytes=8_000_000, batch=batch, detail=maker)
        now = decoded + STEP_NS
        recorder.emit(Kind.FORWARD, decoded, now, batch=batch)
    if not killed:
        recorder.emit(Kind.WAIT, now, now + MS, label=recorder.string("shutdown"))
        recorder.emit(Kind.OTHER, start, now + MS, sample=0, label=recorder.string("round"))
        recorder.close()


def printed(path: Path) -> str:
    return TerminalRenderer(StringIO()).render(report_document(open_runs(path)))


def test_json_of_a_run_directory(tmp_path: Path) -> None:
    write_serial_run(tmp_path / "source")
    document = json.loads(json.dumps(to_json(open_runs(tmp_path)), allow_nan=False))
    (run,) = document["runs"]
    assert (run["dataset"], run["format"], run["batches"]) == ("grib", "source", 3)
    assert run["wait_ns"] == 31 * MS
    assert run["wall_s"] == 0.046
    assert run["exposed_ns"]["read"] == 18 * MS
    assert run["exposed_ns"]["decode"] == 12 * MS
    assert sum(run["exposed_ns"].values()) == 31 * MS
    assert run["steady"]["wait_ns"] == 20 * MS
    assert run["unclosed_processes"] == []


def test_terminal_of_a_run_directory(tmp_path: Path) -> None:
    write_serial_run(tmp_path / "source")
    text = printed(tmp_path / "source")
    assert "grib as source: loader workers, no worker processes, batch size 2, 3 batches\n" in text
    assert "Compute: 5.00 ms per step, emulated; from --compute 5ms.\n" in text
    assert "most of all for read (60 % of the wait)" in " ".join(text.split())


def test_the_original_files_come_first(tmp_path: Path) -> None:
    for name in ("numpy", "source"):
        write_serial_run(tmp_path / name)
    runs = to_json(open_runs(tmp_path))["runs"]
    assert [run["format"] for run in runs] == ["source", "numpy"]
    assert "Compared" in printed(tmp_path)


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_run_has_a_report(tmp_path: Path, times: int) -> None:
    write_serial_run(tmp_path / "source", killed=True)
    for _ in range(times):
        text = printed(tmp_path / "source")
    assert "Killed, or still running: consumer." in text
    assert "1 of 1 rounds have no recorded end; each is taken to end with its last span." in text
