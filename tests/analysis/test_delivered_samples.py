"""Whether two runs delivered the same samples, on profiles written down."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.sketched_runs import SketchedRun

pytest.importorskip("xxhash", reason="digests need the extra 'digest'")

from iobench.analysis.run import Run
from iobench.findings.batch_digests import (
    SamplesComparison,
    SamplesVerdict,
    compare_samples,
    delivered_samples,
)
from iobench.recording.digests import DigestLog, DigestTable, batch_digest, read_digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.contents import RunData

SAME, OTHER = SamplesVerdict.SAME_ORDER, SamplesVerdict.OTHER_ORDER
DIFFERENT, UNKNOWN = SamplesVerdict.DIFFERENT, SamplesVerdict.UNKNOWN
BEGINNING = SamplesVerdict.SAME_BEGINNING
CHANGED = 1000
"""Added to the value of a sample that was changed."""


def compared(a: RunData, b: RunData) -> SamplesComparison:
    return compare_samples(delivered_samples(Run(a)), delivered_samples(Run(b)))


def digest_of(*samples: int) -> int:
    return int.from_bytes(batch_digest(np.array(samples, "<i8")))


def run(
    samples: Sequence[int],
    *,
    batch_size: int = 2,
    n_samples: int | None = None,
    changed: Sequence[int] = (),
    lost: Sequence[int] = (),
    undelivered: int = 0,
    again: Sequence[int] | None = None,
) -> RunData:
    """Return a measured run that delivered these samples, each of which holds its number.

    ``changed`` are places with other values, ``lost`` batches without a digest, and ``undelivered``
    batches that a worker made for nobody. Another process noted these batches with other values at
    the places ``again``.
    """
    n_samples = len(samples) if n_samples is None else n_samples
    sketch = SketchedRun({"digests": True, "batch_size": batch_size, "n_samples": n_samples})
    n_batches = -(-len(samples) // batch_size)
    for batch in range(n_batches):
        sketch.wait(batch, 10 * batch, 10 * batch + 5, "consumer", epoch=0)
    sketch.shutdown(10 * n_batches, 10 * n_batches + 1)
    sketch.round(0, 10 * n_batches + 1)
    every = [*samples, *range(undelivered)]
    with TemporaryDirectory() as name:
        for places in (changed, *([] if again is None else [again])):
            write_digests(Path(name), every, batch_size, places, lost=lost)
        return replace(sketch.data(), digests=read_digests(Path(name)), ranks=(0,))


def write_digests(
    folder: Path,
    samples: Sequence[int],
    batch_size: int,
    changed: Sequence[int] = (),
    *,
    lost: Sequence[int] = (),
    rank: int = 0,
) -> None:
    log = DigestLog(folder, rank=rank)
    for first in range(0, len(samples), batch_size):
        places = range(first, min(first + batch_size, len(samples)))
        values = [samples[at] + CHANGED * (at in changed) for at in places]
        if first // batch_size not in lost:
            log.add(first // batch_size, 0, np.array(values, "<i8"), len(values))
    log.close()


def test_the_same_batches_in_any_order_have_one_digest_which_counts_them():
    (epoch,) = delivered_samples(Run(run([0, 1, 2, 3, 4]))).epochs.values()
    parts = [digest_of(0, 1), digest_of(2, 3), digest_of(4)]
    assert epoch.digest == sum(parts) % (1 << 128)
    assert (len(epoch.batches), epoch.n_samples) == (3, 5)
    assert delivered_samples(Run(run([2, 3, 0, 1, 4]))).epochs["profile/0"].digest == epoch.digest
    even, ahead = (delivered_samples(Run(run([0, 1], undelivered=n))) for n in (0, 2))
    assert (ahead.epochs["profile/0"].n_samples, ahead.epochs["profile/0"].digest) == (
        2,
        even.epochs["profile/0"].digest,
    )
    once, twice = (
        delivered_samples(Run(run(each))).epochs["profile/0"].digest
        for each in ([0, 1], [0, 1] * 2)
    )
    assert once != twice


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_order_of_batches_does_not_make_them_others(samples, size, random):
    batches = [samples[at : at + size] for at in range(0, len(samples) // size * size, size)]
    shuffled = [*batches]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = ([each for batch in of for each in batch] for of in (batches, shuffled))
    found = compared(run(one, batch_size=size), run(other, batch_size=size))
    if batches:
        assert found.verdict is (SAME if shuffled == batches else OTHER)
        assert found.n_compared == len(one)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_the_first_batch_that_differs_is_named(samples, data):
    place = data.draw(st.integers(0, len(samples) - 1))
    found = compared(run(samples), run(samples, changed=[place]))
    batch = samples[place // 2 * 2 : place // 2 * 2 + 2]
    assert found.verdict is DIFFERENT
    first = found.first_difference
    assert first is not None
    assert (first.place, first.batches) == (place // 2, (place // 2, place // 2))
    assert first.digests[0] == f"{digest_of(*batch):032x}" != first.digests[1]


def test_of_runs_that_ended_early_the_beginning_both_have_is_compared():
    found = compared(run([5, 6, 7, 8], n_samples=9), run([5, 6], n_samples=9))
    assert (found.verdict, found.n_compared, found.n_samples) == (BEGINNING, 2, (4, 2))
    changed = run([0, 1, 2, 3, 4, 5], n_samples=9, changed=[5])
    found = compared(run([0, 1, 2, 3, 4, 5, 6], n_samples=9), changed)
    assert found.verdict is DIFFERENT


def test_what_cannot_be_compared_is_unknown():
    plain = run([0, 1, 2, 3])
    old = replace(plain, digests=DigestTable(plain.digests.rows, "sample"))
    without = replace(plain, digests=None, config={})
    for a, b in (
        (plain, run([0, 1, 2, 3], batch_size=1)),
        (plain, old),
        (plain, run([0, 1, 2, 3], lost=[1])),
        (plain, replace(plain, digests=None)),
        (without, plain),
        (plain, without),
    ):
        found = compared(a, b)
        assert found.verdict is UNKNOWN
        assert found.why_unknown
    assert compared(old, old).verdict is SAME
    assert delivered_samples(Run(run([0, 1, 2, 3], lost=[1]))).epochs["profile/0"].digest is None


def test_a_batch_is_of_the_epoch_of_its_first_sample():
    seen = delivered_samples(Run(run([0, 1, 2, 2, 1, 0], batch_size=2, n_samples=3)))
    assert [(each.epoch, len(each.batches)) for each in seen.epochs.values()] == [(0, 2), (1, 1)]
    (epoch,) = delivered_samples(
        Run(run([0, 1, 2, 2, 1], n_samples=0))
    ).epochs.values()  # of unknown length
    assert (epoch.epoch, epoch.n_samples) == (0, 5)


def test_a_batch_that_two_processes_noted_counts_once_if_alike():
    assert compared(run([0, 1]), run([0, 1], again=[])).verdict is SAME
    assert compared(run([0, 1]), run([0, 1], again=[0, 1])).verdict is UNKNOWN


def test_ranks_are_taken_together():
    whole = run([0, 1, 2, 3], batch_size=1, n_samples=4)
    parts = ranked([0, 2], [1, 3])
    seen = delivered_samples(Run(parts))
    assert [[each.rank for each in epoch.batches] for epoch in seen.epochs.values()] == [
        [0, 1, 0, 1]
    ]
    assert (
        seen.epochs["profile/0"].digest == delivered_samples(Run(whole)).epochs["profile/0"].digest
    )
    assert compared(whole, parts).verdict is SAME


def ranked(*of_ranks: Sequence[int]) -> RunData:
    """Return one run whose ranks delivered these samples, one a batch."""
    profiles = [run(samples, batch_size=1) for samples in of_ranks]
    spans, processes = [], []
    with TemporaryDirectory() as name:
        for rank, profile in enumerate(profiles):
            part = profile.spans.copy()
            part["process"] += len(processes)
            spans.append(part)
            processes += [replace(process, rank=rank) for process in profile.processes]
            write_digests(Path(name), of_ranks[rank], 1, rank=rank)
        digests = read_digests(Path(name))
    return replace(
        profiles[0],
        spans=np.concatenate(spans),
        processes=tuple(processes),
        digests=digests,
        ranks=tuple(range(len(profiles))),
    )
