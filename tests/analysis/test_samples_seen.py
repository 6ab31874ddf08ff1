"""Whether two runs delivered the same samples, on profiles written down."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import Sketch

from iobench.analysis.run import Run
from iobench.recording.digests import TABLE_DTYPE, DigestTable
from iobench.subjects.compare.samples_compared import SamplesVerdict, compare_samples
from iobench.subjects.samples.figures import samples_seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.profiles.contents import Profile

SAME, OTHER = SamplesVerdict.SAME_ORDER, SamplesVerdict.OTHER_ORDER
DIFFERENT, UNKNOWN = SamplesVerdict.DIFFERENT, SamplesVerdict.UNKNOWN
FIRST = 0xFFFF_FFFF_FFFF_FFFF_0000_0000_0000_0000
"""So that sums overflow 128 bits."""


def run(
    samples: Sequence[int],
    *,
    batch_size: int = 2,
    n_samples: int | None = None,
    changed: Sequence[int] = (),
    lost: Sequence[int] = (),
    numbered: bool = True,
    undelivered: int = 0,
) -> Profile:
    """Return a measured run that delivered these samples, whose digest is their number's.

    ``changed`` are places with other values, ``lost`` batches without their last record, and
    ``undelivered`` batches that a worker made for nobody.
    """
    n_samples = len(samples) if n_samples is None else n_samples
    sketch = Sketch({"digests": True, "batch_size": batch_size, "n_samples": n_samples})
    n_batches = -(-len(samples) // batch_size)
    for batch in range(n_batches):
        sketch.wait(batch, 10 * batch, 10 * batch + 5, "consumer", epoch=0)
    sketch.shutdown(10 * n_batches, 10 * n_batches + 1)
    sketch.round(0, 10 * n_batches + 1)
    rows = np.zeros(len(samples) + undelivered, TABLE_DTYPE)
    for place, sample in enumerate([*samples, *range(undelivered)]):
        digest = FIRST + sample + (1000 if place in changed else 0)
        batch, position = divmod(place, batch_size)
        rows[place] = (
            sample if numbered else -1, batch, 0, position,
            min(batch_size, len(samples) + undelivered - batch * batch_size),
            digest >> 64, digest & (1 << 64) - 1, 0, 0, 0,
        )  # fmt: skip
    gone = [min((batch + 1) * batch_size, len(rows)) - 1 for batch in lost]
    rows = np.delete(rows, gone)
    return replace(sketch.profile(), digests=DigestTable(rows, 0), ranks=(0,))


def test_the_same_samples_in_any_order_have_one_digest_which_counts_them() -> None:
    (epoch,) = samples_seen(Run(run([0, 1, 2, 3, 4]))).epochs
    assert epoch.digest == (5 * FIRST + 10) % (1 << 128)
    assert (epoch.is_complete, len(epoch), epoch.n_batches) == (True, 5, 3)
    assert samples_seen(Run(run([4, 2, 0, 3, 1], batch_size=3))).epochs[0].digest == epoch.digest
    twice = samples_seen(Run(run([0, 1, 1], n_samples=3))).epochs[0].digest
    assert twice not in (samples_seen(Run(run([0]))).epochs[0].digest, None)
    assert twice != samples_seen(Run(run([0, 2, 2], n_samples=3))).epochs[0].digest


def test_what_was_made_and_never_delivered_is_in_no_figure() -> None:
    seen = samples_seen(Run(run([0, 1, 2, 3], undelivered=2)))
    assert seen.n_samples == 4
    assert (
        compare_samples(Run(run([0, 1, 2, 3])), Run(run([0, 1, 2, 3], undelivered=2))).verdict
        is SAME
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_batch_size_does_not_matter_and_order_is_told(
    samples: list[int], one: int, other: int, random: object
) -> None:
    shuffled = [*samples]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = compare_samples(
        Run(run(samples, batch_size=one)), Run(run(shuffled, batch_size=other, numbered=False))
    )
    assert found.verdict is (SAME if shuffled == samples else OTHER)
    assert (found.n_compared, found.n_missing, found.n_extra) == (len(samples), 0, 0)
    assert not found.is_partial


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.data(),
    st.booleans(),
)
def test_a_single_changed_sample_is_found_and_named(
    samples: list[int], data: st.DataObject, numbered: bool
) -> None:
    place = data.draw(st.integers(0, len(samples) - 1))
    found = compare_samples(
        Run(run(samples)), Run(run(samples, changed=[place], numbered=numbered))
    )
    assert found.verdict is DIFFERENT
    assert (found.n_missing, found.n_extra) == (1, 1)
    first = found.first
    assert first is not None
    assert (first.place, first.batches[1]) == (place, place // 2)
    digest = FIRST + samples[place]
    assert first.digests == (f"{digest:032x}", f"{digest + 1000:032x}")
    assert first.sample == samples[place]


def test_a_changed_sample_in_another_order_is_named_by_its_number() -> None:
    found = compare_samples(Run(run([0, 1, 2, 3])), Run(run([3, 2, 1, 0], changed=[2])))
    assert found.verdict is DIFFERENT
    assert found.first is not None
    assert (found.first.sample, found.first.batches) == (1, (0, 1))


def test_missing_and_extra_samples_are_counted() -> None:
    found = compare_samples(Run(run([0, 1, 2, 2])), Run(run([0, 1, 2])))
    assert (found.verdict, found.n_missing, found.n_extra) == (DIFFERENT, 1, 0)
    assert found.first is not None
    assert (found.first.sample, found.first.digests[1]) == (2, None)
    found = compare_samples(Run(run([0, 1])), Run(run([0, 1, 5])))
    assert (found.verdict, found.n_missing, found.n_extra) == (DIFFERENT, 0, 1)
    assert found.first is not None
    assert (found.first.sample, found.first.digests[0]) == (5, None)


def test_of_runs_that_ended_early_the_beginning_both_have_is_compared() -> None:
    found = compare_samples(Run(run([5, 6, 7, 8], n_samples=9)), Run(run([5, 6], n_samples=9)))
    assert (found.verdict, found.n_compared, found.is_partial) == (SAME, 2, True)
    found = compare_samples(Run(run([0, 1, 2, 3], n_samples=9)), Run(run([0, 1, 2], changed=[1])))
    assert (found.verdict, found.is_partial) == (DIFFERENT, True)
    assert found.first is not None
    assert found.first.sample == 1


def test_parts_of_epochs_in_other_orders_are_compared_by_number() -> None:
    found = compare_samples(
        Run(run([0, 1, 2, 3], n_samples=9)), Run(run([8, 3, 2, 7], n_samples=9))
    )
    assert (found.verdict, found.n_compared, found.is_partial) == (OTHER, 2, True)
    changed = run([8, 3, 2, 7], n_samples=9, changed=[2])
    found = compare_samples(Run(run([0, 1, 2, 3], n_samples=9)), Run(changed))
    assert (found.verdict, found.n_compared, found.n_extra) == (DIFFERENT, 2, 1)
    for other in (run([8, 7], n_samples=9), run([8, 2], n_samples=9, numbered=False)):
        found = compare_samples(Run(run([0, 1, 2, 3], n_samples=9)), Run(other))
        assert (found.verdict, found.why_unknown) == (UNKNOWN, "no sample in common")
    # What a whole epoch does not have is another sample, whatever its number.
    for part, n_compared in (([8, 42], 2), ([*range(9), 42], 9)):
        for numbered in (True, False):
            other = run(part, n_samples=99, numbered=numbered)
            for found in (
                compare_samples(Run(run(range(9))), Run(other)),
                compare_samples(Run(other), Run(run(range(9)))),
            ):
                assert (found.verdict, found.n_compared) == (DIFFERENT, n_compared)
                assert (found.n_missing + found.n_extra, found.is_partial) == (1, True)
    # A part of an epoch that is whole in the other run needs no numbers.
    found = compare_samples(Run(run(range(9))), Run(run([8, 2], n_samples=9, numbered=False)))
    assert (found.verdict, found.is_partial) == (OTHER, True)


def test_lost_digests_make_it_unknown_unless_what_is_left_differs() -> None:
    lossy = run([0, 1, 2, 3], lost=[1])
    seen = samples_seen(Run(lossy))
    assert seen.n_unknown_batches == 1
    assert seen.epochs[0].digest is None
    found = compare_samples(Run(run([0, 1, 2, 3])), Run(lossy))
    assert (found.verdict, found.why_unknown) == (UNKNOWN, "digests are missing")
    assert found.n_unknown_batches[1] == 1
    found = compare_samples(Run(run([0, 1, 2, 3])), Run(run([0, 1, 2, 3], lost=[1], changed=[0])))
    assert found.verdict is DIFFERENT
    assert compare_samples(Run(run([0, 1])), Run(run([0, 1], lost=[0]))).verdict is UNKNOWN


def test_a_run_whose_digests_are_all_gone_is_unknown() -> None:
    gone = replace(run([0, 1]), digests=None)
    seen = samples_seen(Run(gone))
    assert (seen.recorded, seen.n_unknown_batches, seen.n_samples) == (True, 1, 0)
    assert compare_samples(Run(run([0, 1])), Run(gone)).verdict is UNKNOWN


def test_a_run_without_digests_is_unknown() -> None:
    plain = replace(run([0, 1]), digests=None, config={})
    assert compare_samples(Run(plain), Run(run([0, 1]))).why_unknown == "not recorded in a"
    assert compare_samples(Run(run([0, 1])), Run(plain)).why_unknown == "not recorded in b"


def test_batches_that_span_epochs_are_taken_apart() -> None:
    seen = samples_seen(Run(run([0, 1, 2, 2, 1, 0], batch_size=2, n_samples=3)))
    assert [(each.epoch, len(each), each.is_complete) for each in seen.epochs] == [
        (0, 3, True), (1, 3, True),
    ]  # fmt: skip
    assert len(set(seen.epoch_digests.values())) == 1
    found = compare_samples(Run(run([0, 1, 2, 2, 1, 0], n_samples=3)), Run(run([0, 1, 2])))
    assert (found.verdict, found.n_epochs, found.is_partial) == (SAME, 1, True)


def test_a_stream_of_unknown_length_is_one_epoch() -> None:
    (epoch,) = samples_seen(Run(run([0, 1, 2, 2, 1], n_samples=0))).epochs
    assert (epoch.epoch, len(epoch), epoch.is_complete) == (0, 5, False)


def test_two_tellings_of_one_sample_count_once_if_alike() -> None:
    once = run([0, 1])
    assert once.digests is not None
    rows = once.digests.rows
    twice = replace(once, digests=DigestTable(np.concatenate((rows, rows)), 0))
    assert compare_samples(Run(once), Run(twice)).verdict is SAME
    other = rows.copy()
    other["low"] += 1
    unlike = replace(once, digests=DigestTable(np.concatenate((rows, other)), 0))
    assert compare_samples(Run(once), Run(unlike)).verdict is UNKNOWN


def test_ranks_are_taken_together() -> None:
    whole = run([0, 1, 2, 3], batch_size=1, n_samples=4)
    parts = ranked([run([0, 2], batch_size=1, n_samples=2), run([1, 3], batch_size=1, n_samples=2)])
    seen = samples_seen(Run(parts))
    assert [epoch.rank.tolist() for epoch in seen.epochs] == [[0, 1, 0, 1]]
    assert seen.epoch_digests == samples_seen(Run(whole)).epoch_digests
    assert compare_samples(Run(whole), Run(parts)).verdict is SAME


def ranked(profiles: Sequence[Profile]) -> Profile:
    """Return one profile of these runs, each of a rank."""
    spans, processes, rows = [], [], []
    for rank, profile in enumerate(profiles):
        part = profile.spans.copy()
        part["process"] += len(processes)
        spans.append(part)
        processes += [replace(process, rank=rank) for process in profile.processes]
        assert profile.digests is not None
        of_rank = profile.digests.rows.copy()
        of_rank["rank"] = rank
        rows.append(of_rank)
    return replace(
        profiles[0],
        spans=np.concatenate(spans),
        processes=tuple(processes),
        digests=DigestTable(np.concatenate(rows), 0),
        ranks=tuple(range(len(profiles))),
    )


@pytest.mark.parametrize("n_damaged", [0, 3])
def test_damaged_records_are_told(n_damaged: int) -> None:
    profile = run([0, 1])
    assert profile.digests is not None
    damaged = replace(profile, digests=DigestTable(profile.digests.rows, n_damaged))
    assert samples_seen(Run(damaged)).n_damaged == n_damaged
