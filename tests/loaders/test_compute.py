"""The emulated compute stage, by a clock that is moved."""

from __future__ import annotations

import pytest

from iobench.datasets.contract import PublishedStep
from iobench.errors import OptionError
from iobench.loaders.contract import Batch, PlannedBatch
from iobench.loaders.measure import Compute, parse_compute
from iobench.recording.recorder import Recorder
from iobench.testing import FakeClock

STEP = PublishedStep(5_000_000, 15_000_000, batch_size=2, source="D2.3", sample_nbytes=100)


def batch_of(number, epoch=0):
    return Batch(PlannedBatch(number, epoch, ()), {}, -1)


def parsed(text, published=STEP, batch_size=2, sample_nbytes=100):
    return parse_compute(text, published, batch_size=batch_size, sample_nbytes=sample_nbytes)


def test_published_is_scaled_with_batch_and_bytes():
    compute = parsed("published", batch_size=4, sample_nbytes=50)
    assert (compute.forward_ns, compute.backward_ns) == (5_000_000, 15_000_000)
    assert "sample" in compute.source
    assert "batch 2 to 4" in compute.source


@pytest.mark.parametrize(
    ("text", "ns"), [("none", 0), ("25ms", 25_000_000), ("1.5ms", 1_500_000), ("10us", 10_000),
                     ("2s", 2_000_000_000)],
)  # fmt: skip
def test_a_time_may_be_given(text, ns):
    assert parsed(text).total_ns == ns


@pytest.mark.parametrize("text", ["", "25", "ms", "-1ms", "25 ms", "fast", "1e3ms", "9999999s"])
def test_anything_else_is_an_error(text):
    with pytest.raises(OptionError, match="25ms"):
        parsed(text)


@pytest.mark.parametrize(("spent_ns", "step_ns"), [(3, 30), (15, 30), (40, 40)])
def test_what_the_host_does_meanwhile_makes_only_what_exceeds_the_step_longer(
    run, spent_ns, step_ns
):
    clock = FakeClock(start_ns=1000)
    with Recorder(run.spans_path, role="consumer", clock=clock) as recorder:
        clock.advance(spent_ns)
        Compute(10, 20, "test").run(recorder, batch_of(0), since_ns=1000)
    assert clock.now_ns() == 1000 + step_ns


def test_a_published_step_of_several_batches_is_spread_over_them():
    step = PublishedStep(60_000_000, 0, batch_size=2, source="a WGAN", batches_per_step=6)
    assert parsed("published", step) == Compute(10_000_000, 0, "a WGAN", 6)
    # A time that is given is that of a batch.
    burning = parse_compute("cpu:30ms", step, batch_size=2, sample_nbytes=1)
    assert burning == Compute(30_000_000, 0, "--compute cpu:30ms", burns=True)
    assert parse_compute("30ms", step, batch_size=2, sample_nbytes=1).forward_ns == 30_000_000
