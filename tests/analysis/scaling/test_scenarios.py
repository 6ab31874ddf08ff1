"""What staging would do, predicted from far reads, against the same loader that reads near."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from schedules import STAGES, pool

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.subjects.scaling.curve import simulate_ranks
from iobench.subjects.scaling.measured_job import measured_job
from iobench.subjects.scaling.scenarios import staged_scenario
from iobench.subjects.scaling.target import Hosts, SharedStorage

MS, SAMPLES = 10**6, 4
"""Samples of a batch of a sketch."""


def run_of(read_ms: float, nbytes: int, *, workers: int, step_ms: float, rest_ms: float) -> Run:
    times = [[round(each * MS) for each in (read_ms, rest_ms, 0.5)]] * 48
    sketch = pool(times, workers=workers, step_ns=round(step_ms * MS))
    for span in sketch.spans:
        if span["kind"] == Kind.READ:
            span["nbytes"], span["cpu_ns"] = nbytes, 0
        elif span["kind"] in STAGES:
            span["cpu_ns"] = span["end_ns"] - span["start_ns"]
    profile = sketch.profile()
    return Run(replace(profile, path=Path("run"), config={**profile.config, "n_samples": 1000}))


@pytest.fixture(autouse=True, scope="module")
def few_steps():
    """Simulate few steps: every batch of these runs is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iobench.subjects.scaling.job_simulation.MOST_STEPS", 40)
        yield


@pytest.mark.thorough
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    workers=st.integers(0, 4),
    step_ms=st.floats(1, 60),
    rest_ms=st.floats(0, 30),
    far_ms=st.floats(5, 200),
    latency_ms=st.floats(0, 3),
    mbytes=st.floats(0.1, 20),
    gbytes_per_s=st.floats(2, 8),
)
def test_epochs_after_staging_take_what_the_same_loader_takes_with_near_reads(
    workers, step_ms, rest_ms, far_ms, latency_ms, mbytes, gbytes_per_s
) -> None:
    shape = {"workers": workers, "step_ms": step_ms, "rest_ms": rest_ms}
    nbytes = round(mbytes * 1e6)
    # Readers of one node share what its storage gives, after a latency of their own.
    link_ms = mbytes / gbytes_per_s
    near_ms = max(SAMPLES * latency_ms, link_ms)
    job = measured_job(run_of(far_ms, nbytes, **shape), reads_per_sample=1.0)
    truth = run_of(near_ms, nbytes, **shape).of_rank().exposure.judged
    storage, hosts = SharedStorage(), Hosts(dataset_nbytes=250 * nbytes)
    curve = simulate_ranks(job.demand, storage, [1], hosts=hosts, n_seeds=1)
    found = staged_scenario(
        job, curve, storage, hosts,
        near_bytes_per_s=gbytes_per_s * 1e9, read_latency_ns=round(latency_ms * MS),
    )  # fmt: skip
    (point,) = found.points
    epoch_s = truth.wall_ns / truth.n_batches * 250 / 1e9
    least_s = 250 * link_ms / 1000
    assert point.epoch_s >= least_s * (1 - 1e-6)
    # Several readers at once get the link in turn, so that each may wait for the others' bytes.
    assert point.epoch_s == pytest.approx(epoch_s, rel=0.05, abs=250 * workers * link_ms / 1000)
    both = point.staging_s + (point.break_even.epochs or 0) * point.epoch_s
    if point.break_even.epochs is not None:
        assert both == pytest.approx(point.break_even.epochs * point.shared_epoch_s)
