"""Hand-made runs: figures small enough to check by eye, and consistent as measured ones are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnose
from iobench.analysis.exposure_figures import (
    ComputeStage,
    Exposure,
    PartExposure,
    Phase,
    StageExposure,
    StepFigures,
    StepStatistics,
)
from iobench.findings.advice.loading import Loading
from iobench.findings.advice.next_steps import NextSteps
from iobench.recording.kinds import Kind, stage_name
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.report.run_report import RunReport
from iobench.runs.run_facts import RunFacts

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
sys.path.append(str(Path(__file__).parents[1] / "support"))

MS = 1_000_000
CONFIG: Mapping[str, Any] = {
    "version": 1,
    "dataset": "maelstrom-ens10",
    "format": "source",
    "framework": "workers",
    "stand_in": True,
    "tiny": False,
    "workers": 2,
    "prefetch": 2,
    "batch_size": 1,
    "n_samples": 24,
    "sample_nbytes": 23_913_120,
    "compute": {
        "forward_ns": 5_250_000,
        "backward_ns": 15_870_000,
        "source": "MAELSTROM D2.3, table 4: U-Net, PyTorch 1.12.1, A100 40 GB, medians",
    },
    "published": {
        "exposed_io_s": [0.02158, 0.10881, 0.10577, 6.02123, 0.22815],
        "source": "MAELSTROM D2.3, table 4: PyTorch, data saved as NumPy",
    },
    "expected_workers": ["worker-0", "worker-1"],
    "cache": {"asked": "as-is", "resident_fraction_before": 0.9997},
    "cold_known": True,
    "setup": {"index": 0.412, "normalisation": 3.1},
    "store": None,
    "machine": {"cpus": 2},
    "iobench_version": "0.1.0",
    "command": "iobench profile maelstrom-ens10 --workers 2 --out runs/a",
    "files_hint": "stand-ins/ens10",
}


def stage(
    kind: Kind,
    busy_ms: int,
    exposed_ms: int,
    *,
    label: str = "",
    nbytes: int | None = None,
    n_spans: int = 0,
    cpu_ms: int | None = None,
) -> StageExposure:
    return StageExposure(
        stage=stage_name(kind, label),
        busy_ns=busy_ms * MS,
        hidden_ns=(busy_ms - exposed_ms) * MS,
        exposed_ns=exposed_ms * MS,
        nbytes=nbytes,
        n_spans=n_spans,
        cpu_ns=None if cpu_ms is None else cpu_ms * MS,
    )


def window(
    stages: tuple[StageExposure, ...], *, compute_ms: int, n_batches: int, median_ms: float = 1.5
) -> PartExposure:
    wait_ns = sum(row.exposed_ns for row in stages)
    mean_ns = wait_ns // n_batches if n_batches else 0
    return PartExposure(
        wall_ns=wait_ns + compute_ms * MS,
        wait_ns=wait_ns,
        compute_ns=compute_ms * MS,
        n_batches=n_batches,
        n_samples=n_batches,
        nbytes=n_batches * 23_913_120,
        stages=stages,
        compute_stages=(ComputeStage("forward", compute_ms * MS, n_batches),),
        waits_ns=(mean_ns,) * n_batches,
        wait=StepStatistics(n_batches, 20_000, mean_ns, int(median_ms * MS), 812 * MS, 12 * MS)
        if n_batches
        else None,
        read_nbytes=n_batches * 57_300_000,
        cold_fraction=0.031,
        overhead_fraction=0.00112,
    )


def make_exposure(scale: int = 100) -> Exposure:
    """Return 204 batches waited for; ``scale`` in per cent of an I/O-bound run's exposed work."""
    steady = (
        stage(Kind.DECODE, 11_000, 55 * scale, nbytes=4_700_000_000, n_spans=200, cpu_ms=10_900),
        stage(Kind.READ, 1_200, 6 * scale, nbytes=2_300_000_000, n_spans=200),
        stage(Kind.PREPROCESS, 4_000, 15 * scale, nbytes=4_700_000_000, n_spans=200),
        stage(Kind.COLLATE, 300, scale // 100, nbytes=4_700_000_000, n_spans=200),
        stage(Kind.HANDOVER, 20, 20),
    )
    start = (stage(Kind.STARTUP, 500, 500), stage(Kind.SHUTDOWN, 3, 3))
    whole = window((*steady, *start), compute_ms=4308, n_batches=204)
    part = window(steady, compute_ms=4224, n_batches=200)
    return Exposure(
        whole=whole,
        steady=part,
        phases=(
            Phase("startup", 521 * MS, 500 * MS, 1),
            Phase("fill", 63 * MS, 0, 3),
            Phase("steady", part.wall_ns, part.wait_ns, 200),
            Phase("drain", 3 * MS, 3 * MS, 1),
        ),
        long_waits=None,
        steps=StepFigures(204, 1, 1, 1, "loop"),
        n_rounds=1,
        n_unfinished_rounds=0,
        workers=2,
        prefetch=2,
        lost_spans=0,
        missing_workers=(),
    )


def make_report(exposure: Exposure | None = None, **config: Any) -> RunReport:
    exposure = make_exposure() if exposure is None else exposure
    nothing = config.get("compute", {}).get("forward_ns") == 0
    exposure = replace(exposure, has_compute=not nothing)
    facts = RunFacts.from_config({**CONFIG, **config})
    loading = Loading(path=Path("runs/a"), facts=facts, exposure=exposure)
    return RunReport(
        run="runs/a",
        facts=facts,
        exposure=exposure,
        diagnosis=diagnose(exposure),
        figures={"next_steps": NextSteps.after([loading])},
    )


def text_of(*reports: RunReport) -> str:
    return TerminalRenderer(StringIO()).render(report_document([], reports=reports))


@pytest.fixture
def bound() -> RunReport:
    """An I/O-bound run of the original files."""
    return make_report()


@pytest.fixture
def hidden() -> RunReport:
    """The same samples from a store: next to nothing is waited for."""
    store = {"path": "stores/a", "probe": True, "reused": False, "convert_s": 12.0, "nbytes": 10**9}
    exposure = make_exposure(1)
    return make_report(exposure, format="tfrecord", store=store)


@pytest.fixture
def unknown() -> RunReport:
    """A run of which nothing but its waits is known."""
    rows = (stage(Kind.UNKNOWN, 50, 50),)
    part = replace(
        window(rows, compute_ms=50, n_batches=2),
        n_samples=None,
        nbytes=None,
        read_nbytes=None,
        cold_fraction=None,
        overhead_fraction=None,
    )
    exposure = replace(make_exposure(), whole=part, steady=None, phases=())
    exposure = replace(exposure, lost_spans=7, missing_workers=("worker-1",))
    facts = RunFacts.from_config({})
    return RunReport(None, facts, exposure, diagnose(exposure), ("worker-0",), ("consumer",))


@pytest.fixture
def make() -> Callable[..., RunReport]:
    """``make(exposure=None, **config)``: a report of a run configured otherwise."""
    return make_report


@pytest.fixture
def show() -> Callable[..., str]:
    """``show(*reports)``: what is printed of them where there is no terminal."""
    return text_of


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
