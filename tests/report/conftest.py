"""Reports of sketched runs: figures small enough to check by eye."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnose
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.report.run_report import RunReport, make_reports
from iobench.testing.findings import SketchedSpan, sketch_run

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
sys.path.append(str(Path(__file__).parents[1] / "support"))

MS = 1_000_000
CONFIG: dict[str, Any] = {
    "dataset": "maelstrom-ens10",
    "framework": "workers",
    "stand_in": True,
    "workers": 0,
    "prefetch": 0,
    "batch_size": 1,
    "n_samples": 24,
    "sample_nbytes": 404_000_000,
    "compute": {"forward_ns": 100 * MS, "backward_ns": 100 * MS, "source": "MAELSTROM D2.3"},
    "published": {"exposed_io_s": [0.02158, 0.10881, 0.10577, 6.02123, 0.22815], "source": "D2.3"},
    "cache": {"asked": "as-is", "resident_fraction_before": 0.9997},
    "setup": {"index": 0.412, "normalisation": 3.1},
    "machine": {"cpus": 2},
    "iobench_version": "0.1.0",
    "command": "iobench profile maelstrom-ens10 --workers 2 --out runs/a",
}


def sketched(wait_ms: int) -> Iterator[SketchedSpan]:
    """Yield 40 steps of a second, ``wait_ms`` of each waited: for reading, decoding and more."""
    for batch in range(40):
        of: dict[str, int | str] = {"batch": batch, "epoch": 0}
        start = batch * 1000 * MS
        ends = [start + wait_ms * MS * part // 8 for part in range(9)]
        yield Kind.READ, ends[0], ends[2], {**of, "nbytes": 202_000_000}
        yield Kind.DECODE, ends[2], ends[6], {**of, "nbytes": 404_000_000}
        yield Kind.PREPROCESS, ends[6], ends[7], {**of, "nbytes": 404_000_000}
        yield Kind.WAIT, start, ends[8], {**of, "nbytes": 404_000_000, "detail": "consumer"}
        yield Kind.FORWARD, ends[8], start + 1000 * MS, of


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., RunReport]:
    """``make(wait_ms=800, **config)``: a report of a run configured otherwise."""
    numbers = count()

    def report(wait_ms: int = 800, **config: Any) -> RunReport:
        run = sketch_run(
            tmp_path / f"run-{next(numbers)}", sketched(wait_ms), **{**CONFIG, **config}
        )
        return make_reports([run])[0]

    return report


@pytest.fixture
def bound(make: Callable[..., RunReport]) -> RunReport:
    """An I/O-bound run of the original files."""
    return make()


@pytest.fixture
def hidden(make: Callable[..., RunReport]) -> RunReport:
    """The same samples from a store: next to nothing is waited for."""
    return make(8, format="tfrecord", store={"probe": True, "convert_s": 12.0, "nbytes": 10**9})


@pytest.fixture
def unknown(tmp_path: Path) -> RunReport:
    """A run of which nothing but its waits is known."""
    spans = [
        (Kind.WAIT, n * 50 * MS, (n * 50 + 25) * MS, {"batch": n, "epoch": 0}) for n in range(2)
    ]
    nothing = {"dataset": None, "format": None}
    (report,) = make_reports([sketch_run(tmp_path / "unknown", spans, **nothing)])
    whole = replace(report.exposure.whole, overhead_fraction=None)
    exposure = replace(
        report.exposure, whole=whole, steady=None, lost_spans=7, missing_workers=("worker-1",)
    )
    return replace(report, exposure=exposure, diagnosis=diagnose(exposure))


@pytest.fixture
def show() -> Callable[..., str]:
    """``show(*reports)``: what is printed of them where there is no terminal."""
    return lambda *reports: TerminalRenderer(StringIO()).render(
        report_document([], reports=reports)
    )


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
