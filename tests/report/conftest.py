"""Reports of sketched runs: figures small enough to check by eye."""

from __future__ import annotations

import json
import sys
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnose
from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.report.run_report import make_reports
from tests.support.sketched_runs import CONSUMER, SketchedRun

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
sys.path.append(str(Path(__file__).parents[1] / "support"))

MS = 1_000_000
CONFIG: dict[str, Any] = {
    "dataset": "maelstrom-ens10", "format": "source", "framework": "workers", "stand_in": True,
    "workers": 0, "prefetch": 0, "batch_size": 1, "n_samples": 24, "sample_nbytes": 404_000_000,
    "compute": {"forward_ns": 100 * MS, "backward_ns": 100 * MS, "source": "MAELSTROM D2.3"},
    "published": {"exposed_io_s": [0.02158, 0.10881, 0.10577, 6.02123, 0.22815], "source": "D2.3"},
    "cache": {"asked": "as-is", "resident_fraction_before": 0.9997}, "machine": {"cpus": 2},
    "iobench_version": "0.1.0",
    "command": "iobench profile maelstrom-ens10 --workers 2 --out runs/a",
}  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """``make(wait_ms=800, **config)``: a report of 40 steps of a second.

    ``wait_ms`` of each are waited: for reading, decoding and more.
    """
    numbers = count()

    def report(wait_ms=800, **config):
        run = SketchedRun(CONFIG, **config)
        for batch in range(40):
            of = {"batch": batch, "epoch": 0}
            start = batch * 1000 * MS
            ends = [start + wait_ms * MS * part // 8 for part in range(9)]
            run.add(CONSUMER, Kind.READ, ends[0], ends[2], nbytes=202_000_000, **of)
            run.add(CONSUMER, Kind.DECODE, ends[2], ends[6], nbytes=404_000_000, **of)
            run.add(CONSUMER, Kind.PREPROCESS, ends[6], ends[7], nbytes=404_000_000, **of)
            run.wait(batch, start, ends[8], "consumer", epoch=0, nbytes=404_000_000)
            run.add(CONSUMER, Kind.FORWARD, ends[8], start + 1000 * MS, **of)
        return make_reports([run.write(tmp_path / f"run-{next(numbers)}")])[0]

    return report


@pytest.fixture
def bound(make):
    """An I/O-bound run of the original files."""
    return make()


@pytest.fixture
def hidden(make):
    """The same samples from a store: next to nothing is waited for."""
    return make(8, format="tfrecord", store={"probe": True, "convert_s": 12.0, "nbytes": 10**9})


@pytest.fixture
def unknown(tmp_path):
    """A run of which nothing but its waits is known."""
    run = SketchedRun()
    for batch in range(2):
        run.wait(batch, batch * 50 * MS, (batch * 50 + 25) * MS, epoch=0)
    (report,) = make_reports([run.write(tmp_path / "unknown")])
    whole = replace(report.exposure.whole, overhead_fraction=None)
    exposure = replace(
        report.exposure, whole=whole, steady=None, lost_spans=7, missing_workers=("worker-1",)
    )
    return replace(report, exposure=exposure, diagnosis=diagnose(exposure))


@pytest.fixture
def show():
    """``show(*reports)``: what is printed of them where there is no terminal."""
    return lambda *reports: TerminalRenderer(StringIO()).render(
        report_document([], reports=reports)
    )


@pytest.fixture
def said(capsys):
    """``said(path)``: the words of a whole report; ``said(path, "--json")``: its document."""

    def say(path, *options):
        capsys.readouterr()
        assert main(["report", str(path), "--full", *options]) == 0
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in options else " ".join(text.split())

    return say


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
