"""What an epoch over all samples takes, by what it reads: figures told by hand."""

from __future__ import annotations

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.epoch_cost import BreakEven, epoch_cost
from iobench.recording.epoch_reads import EpochReads, LoadRates
from iobench.recording.kinds import Kind
from iobench.report.sentences import verdict_sentence
from tests.support.sketched_runs import CONSUMER, SketchedRun

GB = 10**9
MS = 1_000_000
RATES = LoadRates(first_s=10 / GB, again_s=5 / GB, sample_s=0.001)
KEPT = EpochReads(
    1000, first_nbytes=GB, later_nbytes=0, chunks_nbytes=2 * GB, cache_nbytes=3 * GB,
    samples_per_chunk=100.0,
)  # fmt: skip
AGAIN = EpochReads(
    1000, first_nbytes=2 * GB, later_nbytes=2 * GB, chunks_nbytes=2 * GB, cache_nbytes=GB,
    samples_per_chunk=100.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("reads", "step_s", "expected"),
    [
        (KEPT, 0.0, (11.0, 1.0)),
        (KEPT, 0.1, (10.0 + 96.5, 100.0)),  # chunks are read first: no step hides that
        (AGAIN, 0.0, (21.0, 11.0)),
        (AGAIN, 0.1, (100.0, 100.0)),  # read all the while, and hidden
        (EpochReads(10, 0, 0), 0.0, (0.01, 0.01)),
    ],
)
def test_an_epoch_takes_what_it_reads_and_does_not_hide(reads, step_s, expected) -> None:
    assert reads.epochs_s(RATES, step_s) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("spent_s", "saved_s", "first_saved_s", "expected"),
    [
        (6.0, 1.0, None, (6.0, False)),
        (6.0, 1.0, 12.0, (0.5, False)),
        (6.0, 0.0, 12.0, (0.5, False)),  # the first epoch alone pays
        (6.0, 0.5, 4.0, (5.0, False)),
        (6.0, 0.0, 4.0, (None, True)),
    ],
)
def test_a_conversion_pays_in_the_first_epoch_or_later(
    spent_s, saved_s, first_saved_s, expected
) -> None:
    found = BreakEven.of(spent_s, None, saved_s, first_saved_s)
    assert (found.epochs, found.never) == expected


def sketch(reads_nbytes: list[int], per_epoch: int, reads: EpochReads, **config: object):
    """A serial profile whose steps take 5 ms: reading 10 bytes takes 20 ms, making a sample 2."""
    run = SketchedRun(
        n_samples=10, n_samples_all=10, batch_size=1, workers=0, prefetch=0, format="source",
        epoch=to_builtins(reads), **config,
    )  # fmt: skip
    clock = 0
    for batch, nbytes in enumerate(reads_nbytes):
        stages = {Kind.READ: nbytes * 2 * MS, Kind.PREPROCESS: 2 * MS}
        end = run.work(CONSUMER, clock, stages, batch=batch, nbytes=nbytes)
        run.wait(batch, clock, end, "consumer", epoch=batch // per_epoch)
        clock = end + 5 * MS
    run.shutdown(clock, clock)
    run.round(0, clock)
    return run.open().of_rank()


READS = EpochReads(
    10,
    first_nbytes=20,
    later_nbytes=0,
    chunks_nbytes=1000,
    cache_nbytes=4000,
    samples_per_chunk=5.0,
)


def test_epochs_that_were_measured_are_what_they_took() -> None:
    run = sketch([10, 0, 0, 10, *[0] * 16], 10, READS)
    cost = epoch_cost(run)
    assert (cost.n_samples, cost.step_s) == (10, 0.005)
    assert cost.first_s == (2 * 20 + 10 * 2 + 10 * 5) / 1000
    assert cost.later_s == (10 * 2 + 10 * 5) / 1000
    rates = (cost.rates.first_s, cost.rates.again_s, cost.rates.sample_s)
    assert rates == pytest.approx((0.002, 0.002, 0.002))


def test_an_epoch_that_was_not_run_to_its_end_is_expected_by_what_it_reads() -> None:
    cost = epoch_cost(sketch([10, 0, 10, 0], 10, READS))
    assert (cost.first_s, cost.later_s) == pytest.approx((0.11, 0.07))  # the loop loads itself
    ahead = epoch_cost(sketch([10, 0, 10, 0], 10, READS, threads=1))
    assert (ahead.first_s, ahead.later_s) == pytest.approx((0.075, 0.05), rel=0.01)


def test_the_verdict_begins_with_a_first_epoch_that_is_much_of_the_run() -> None:
    diagnosis = diagnosis_of(sketch([10, 0, 0, 10, *[0] * 16], 10, READS))
    assert diagnosis.first_wait_ns == 2 * 20 * MS  # a batch of the second epoch waits 2 ms
    assert verdict_sentence(diagnosis).startswith(
        "The first epoch waits 40.0 ms longer for data than in steady state, 22 % of the run. Its "
        "chunks take 1.00 kB decoded, of 4.00 kB that may stay: later epochs have them in memory. "
    )
    again = diagnosis_of(sketch([10, 0, 0, 10, *[0] * 16], 10, replace(READS, cache_nbytes=500)))
    assert "later epochs decode again what does not fit" in verdict_sentence(again)
    steady = diagnosis_of(sketch([0] * 20, 10, READS))
    assert not verdict_sentence(steady).startswith("The first")
