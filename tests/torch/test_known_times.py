"""Loaders whose stages take known times: attributed as an independent reference does.

Times are measured, so what is compared is what each rule makes of the same starts and durations;
tests/benchmarks/known_times.py compares them with the times that were asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
from known_times import Sleeping, SleepingCollate, spend
from reference import reference, without_cpu_waits

import iobench
from iobench.analysis.run import exposure
from iobench.recording.kinds import WORKER_KINDS, Kind
from iobench.torch import DataLoader

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def check(profile, n_batches):
    """Assert that the parts are those of the reference, and all invariants; return the figures."""
    profile = without_cpu_waits(profile)
    found = exposure(profile)
    whole = found.whole
    assert whole.n_batches == n_batches
    waits = profile.spans[profile.spans["kind"] == Kind.WAIT]
    assert whole.wait_ns == int((waits["end_ns"] - waits["start_ns"]).sum())
    assert sum(whole.exposed_ns.values()) == whole.wait_ns
    assert whole.wait_ns + whole.own_ns + whole.compute_ns == whole.wall_ns
    for row in whole.stages:
        assert 0 <= row.exposed_ns <= row.busy_ns
    expected = reference(profile)
    assert sum(expected.values()) == whole.wait_ns
    for stage in expected | whole.exposed_ns:
        apart = abs(expected.get(stage, 0) - whole.exposed_ns.get(stage, 0))
        assert apart <= 0.01 * expected.get(stage, 0) + len(waits), stage
    return found


def run(path, *, workers, step_ms, n_batches=16, epochs=1, **options):
    loader = DataLoader(
        Sleeping(2 * n_batches), batch_size=2, num_workers=workers,
        collate_fn=SleepingCollate(), **options,
    )  # fmt: skip
    with iobench.record(path, detail="sample"):
        for _ in range(epochs):
            for _ in loader:
                spend(step_ms)
        del loader
    return iobench.open_profile(path)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("step_ms", [1, 9])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_what_is_waited_for_is_what_the_reference_says(tmp_path, workers, step_ms):
    profile = run(tmp_path / "run", workers=workers, step_ms=step_ms)
    figures = check(profile, 16)
    if not workers:
        rows = [row for row in figures.whole.stages if row.kind in WORKER_KINDS]
        assert all(row.hidden_ns == 0 for row in rows)
    delivered = profile.spans[profile.spans["kind"] == Kind.WAIT]["batch"]
    assert delivered[delivered >= 0].tolist() == sorted(delivered[delivered >= 0].tolist())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "options",
    [{"persistent_workers": True}, {}, {"in_order": False}, {"prefetch_factor": 1}],
    ids=str,
)
def test_over_epochs_as_well(tmp_path, options):
    profile = run(tmp_path / "run", workers=2, step_ms=1, n_batches=6, epochs=2, **options)
    check(profile, 12)
    delivered = profile.spans[profile.spans["kind"] == Kind.WAIT]["batch"]
    assert len(set(delivered[delivered >= 0].tolist())) == 12
