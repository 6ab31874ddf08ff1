"""Whether two runs delivered the same samples, on profiles written down."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.findings.batch_digests import SamplesVerdict, compare_samples, delivered_samples
from iobench.recording.digests import BatchDigest
from tests.support.sketched_runs import CONSUMER, SketchedRun

SAME, OTHER = SamplesVerdict.SAME_ORDER, SamplesVerdict.OTHER_ORDER
DIFFERENT, UNKNOWN = SamplesVerdict.DIFFERENT, SamplesVerdict.UNKNOWN
BEGINNING = SamplesVerdict.SAME_BEGINNING
CHANGED = 1000
"""Added to the value of a sample that was changed."""


def compared(a, b):
    return compare_samples(delivered_samples(Run(a)), delivered_samples(Run(b)))


def digest_of(*samples):
    """Return a number for a batch; what digests are of real ones: recording/test_digests.py."""
    data = np.array(samples, "<i8").tobytes()
    return zlib.crc32(data) << 96 | zlib.adler32(data)


def noted(samples, batch_size, changed=(), lost=(), rank=0):
    """Return what a process noted of batches of samples, each of which holds its number."""
    values = [sample + CHANGED * (place in changed) for place, sample in enumerate(samples)]
    parts = [values[at : at + batch_size] for at in range(0, len(values), batch_size)]
    return [
        BatchDigest(rank, batch, len(part), digest_of(*part))
        for batch, part in enumerate(parts)
        if batch not in lost
    ]


def run(samples, *, batch_size=2, n_samples=None, undelivered=0, again=None, rank=0, **how):
    """Return a run that delivered these samples; ``changed`` are places with other values.

    Of ``lost`` batches there is no digest, ``undelivered`` batches were made for nobody. Another
    process noted the batches with other values at the places ``again``.
    """
    n_samples = len(samples) if n_samples is None else n_samples
    sketch = SketchedRun(digests=True, batch_size=batch_size, n_samples=n_samples)
    sketch.processes[CONSUMER] = {"rank": rank}
    n_batches = -(-len(samples) // batch_size)
    for batch in range(n_batches):
        sketch.wait(batch, 10 * batch, 10 * batch + 5, "consumer", epoch=0)
    sketch.shutdown(10 * n_batches, 10 * n_batches + 1)
    sketch.round(0, 10 * n_batches + 1)
    rows = noted([*samples, *range(undelivered)], batch_size, rank=rank, **how)
    if again is not None:
        rows += noted(samples, batch_size, again, rank=rank)
    return replace(sketch.data(), digests=tuple(rows))


def only_epoch(data):
    (epoch,) = delivered_samples(Run(data)).epochs.values()
    return epoch


def test_the_same_batches_in_any_order_have_one_digest_which_counts_them():
    epoch = only_epoch(run([0, 1, 2, 3, 4]))
    assert epoch.digest == sum(map(digest_of, (0, 2), (1, 3))) % (1 << 128) + digest_of(4)
    assert (len(epoch.batches), epoch.n_samples) == (3, 5)
    assert only_epoch(run([2, 3, 0, 1, 4])).digest == epoch.digest
    even, ahead = (only_epoch(run([0, 1], undelivered=n)) for n in (0, 2))
    assert (ahead.n_samples, ahead.digest) == (2, even.digest)
    assert only_epoch(run([0, 1] * 2, n_samples=4)).digest != even.digest


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 5),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_order_of_batches_does_not_make_them_others(samples, size, random):
    batches = [samples[at : at + size] for at in range(0, len(samples) // size * size, size)]
    shuffled = [*batches]
    random.shuffle(shuffled)
    one, other = ([each for batch in of for each in batch] for of in (batches, shuffled))
    same = compared(run(one, batch_size=size), run(other, batch_size=size))
    if batches:
        assert same.verdict is (SAME if shuffled == batches else OTHER)
        assert same.n_compared == len(one)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_the_first_batch_that_differs_is_named(samples, data):
    place = data.draw(st.integers(0, len(samples) - 1))
    result = compared(run(samples), run(samples, changed=[place]))
    first, batch = result.first_difference, samples[place // 2 * 2 : place // 2 * 2 + 2]
    assert result.verdict is DIFFERENT
    assert (first.place, first.batches) == (place // 2, (place // 2, place // 2))
    assert first.digests[0] == f"{digest_of(*batch):032x}" != first.digests[1]


def test_of_runs_that_ended_early_the_beginning_both_have_is_compared():
    same = compared(run([5, 6, 7, 8], n_samples=9), run([5, 6], n_samples=9))
    assert (same.verdict, same.n_compared, same.n_samples) == (BEGINNING, 2, (4, 2))
    longer = run([0, 1, 2, 3, 4, 5, 6], n_samples=9)
    assert compared(longer, run([0, 1, 2, 3, 4, 5], n_samples=9, changed=[5])).verdict is DIFFERENT


PLAIN = run([0, 1, 2, 3])
WITHOUT = replace(PLAIN, digests=None, config={})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (PLAIN, run([0, 1, 2, 3], batch_size=1)),
        (PLAIN, run([0, 1, 2, 3], lost=[1])),
        (PLAIN, replace(PLAIN, digests=None)),
        (WITHOUT, PLAIN),
        (PLAIN, WITHOUT),
        (run([0, 1]), run([0, 1], again=[0, 1])),  # two processes noted different ones
    ],
)
def test_what_cannot_be_compared_is_unknown(a, b):
    result = compared(a, b)
    assert result.verdict is UNKNOWN
    assert result.why_unknown


def test_what_is_alike_is_the_same_and_a_lost_batch_leaves_its_epoch_without_a_digest():
    assert compared(run([0, 1]), run([0, 1], again=[])).verdict is SAME
    assert only_epoch(run([0, 1, 2, 3], lost=[1])).digest is None


def test_a_batch_is_of_the_epoch_of_its_first_sample():
    epochs = delivered_samples(Run(run([0, 1, 2, 2, 1, 0], n_samples=3))).epochs.values()
    assert [(each.epoch, len(each.batches)) for each in epochs] == [(0, 2), (1, 1)]
    epoch = only_epoch(run([0, 1, 2, 2, 1], n_samples=0))  # of unknown length
    assert (epoch.epoch, epoch.n_samples) == (0, 5)


def test_ranks_are_taken_together():
    whole = run([0, 1, 2, 3], batch_size=1)
    first, second = run([0, 2], batch_size=1), run([1, 3], batch_size=1, rank=1)
    spans = second.spans.copy()
    spans["process"] += 1
    both = replace(
        first,
        spans=np.concatenate((first.spans, spans)),
        processes=(*first.processes, *second.processes),
        digests=(*first.digests, *second.digests),
        ranks=(0, 1),
    )
    epoch = only_epoch(both)
    assert [each.rank for each in epoch.batches] == [0, 1, 0, 1]
    assert epoch.digest == only_epoch(whole).digest
    assert compared(whole, both).verdict is SAME
