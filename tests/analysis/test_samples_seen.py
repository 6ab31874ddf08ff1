"""Whether two runs delivered the same samples, on profiles written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import Sketch

pytest.importorskip("xxhash", reason="digests need the extra 'digest'")

from iobench.analysis.run import Run
from iobench.recording.canonical import sample_digest
from iobench.recording.digests import DigestLog, read_digests
from iobench.subjects.compare.samples_compared import (
    SamplesComparison,
    SamplesVerdict,
    compare_seen,
)
from iobench.subjects.samples.figures import samples_seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.profiles.contents import Profile

SAME, OTHER = SamplesVerdict.SAME_ORDER, SamplesVerdict.OTHER_ORDER
DIFFERENT, UNKNOWN = SamplesVerdict.DIFFERENT, SamplesVerdict.UNKNOWN
CHANGED = 1000
"""Added to the value of a sample that was changed."""
HEADER_NBYTES, RECORD_NBYTES = 64, 48
"""Of a file of digests."""


def compared(a: Run, b: Run) -> SamplesComparison:
    return compare_seen(samples_seen(a), samples_seen(b))


def value_of(sample: int) -> np.ndarray:
    return np.array([sample], "<i8")


def digest_of(sample: int) -> int:
    return int.from_bytes(sample_digest(value_of(sample)))


def run(
    samples: Sequence[int],
    *,
    batch_size: int = 2,
    n_samples: int | None = None,
    changed: Sequence[int] = (),
    lost: Sequence[int] = (),
    numbered: bool = True,
    undelivered: int = 0,
    told_again: Sequence[int] | None = None,
) -> Profile:
    """Return a measured run that delivered these samples, each of which holds its number.

    ``changed`` are places with other values, ``lost`` batches whose last record was damaged, and
    ``undelivered`` batches that a worker made for nobody. Another process told these batches with
    other values at the places ``told_again``.
    """
    n_samples = len(samples) if n_samples is None else n_samples
    sketch = Sketch({"digests": True, "batch_size": batch_size, "n_samples": n_samples})
    n_batches = -(-len(samples) // batch_size)
    for batch in range(n_batches):
        sketch.wait(batch, 10 * batch, 10 * batch + 5, "consumer", epoch=0)
    sketch.shutdown(10 * n_batches, 10 * n_batches + 1)
    sketch.round(0, 10 * n_batches + 1)
    every = [*samples, *range(undelivered)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for places in (changed, *([] if told_again is None else [told_again])):
            write_digests(folder, every, batch_size, places, numbered=numbered)
        for file in (folder / "digests").glob("*.bin") if lost else ():
            data = bytearray(file.read_bytes())
            for batch in lost:
                row = min((batch + 1) * batch_size, len(every)) - 1
                data[HEADER_NBYTES + row * RECORD_NBYTES] ^= 1
            file.write_bytes(data)
        return replace(sketch.profile(), digests=read_digests(folder), ranks=(0,))


def write_digests(
    folder: Path,
    samples: Sequence[int],
    batch_size: int,
    changed: Sequence[int] = (),
    *,
    numbered: bool = True,
    rank: int = 0,
) -> None:
    log = DigestLog(folder, rank=rank)
    for first in range(0, len(samples), batch_size):
        places = range(first, min(first + batch_size, len(samples)))
        values = [value_of(samples[at] + CHANGED * (at in changed)) for at in places]
        numbers = [samples[at] for at in places] if numbered else None
        log.add_samples(first // batch_size, 0, numbers, values)
    log.close()


def test_the_same_samples_in_any_order_have_one_digest_which_counts_them() -> None:
    (epoch,) = samples_seen(Run(run([0, 1, 2, 3, 4]))).epochs
    assert epoch.digest == sum(map(digest_of, range(5))) % (1 << 128)
    assert (epoch.is_complete, len(epoch), epoch.n_batches) == (True, 5, 3)
    assert samples_seen(Run(run([4, 2, 0, 3, 1], batch_size=3))).epochs[0].digest == epoch.digest
    twice = samples_seen(Run(run([0, 1, 1], n_samples=3))).epochs[0].digest
    assert twice not in (samples_seen(Run(run([0]))).epochs[0].digest, None)
    assert twice != samples_seen(Run(run([0, 2, 2], n_samples=3))).epochs[0].digest


def test_what_was_made_and_never_delivered_is_in_no_figure() -> None:
    seen = samples_seen(Run(run([0, 1, 2, 3], undelivered=2)))
    assert seen.n_samples == 4
    assert compared(Run(run([0, 1, 2, 3])), Run(run([0, 1, 2, 3], undelivered=2))).verdict is SAME


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
    found = compared(
        Run(run(samples, batch_size=one)), Run(run(shuffled, batch_size=other, numbered=False))
    )
    assert found.verdict is (SAME if shuffled == samples else OTHER)
    assert (found.n_compared, found.n_missing, found.n_extra) == (len(samples), 0, 0)
    assert not found.is_partial


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.data(),
    st.booleans(),
)
def test_a_single_changed_sample_is_found_and_named(
    samples: list[int], data: st.DataObject, numbered: bool
) -> None:
    place = data.draw(st.integers(0, len(samples) - 1))
    found = compared(Run(run(samples)), Run(run(samples, changed=[place], numbered=numbered)))
    assert found.verdict is DIFFERENT
    assert (found.n_missing, found.n_extra) == (1, 1)
    first = found.first
    assert first is not None
    assert (first.place, first.batches[1]) == (place, place // 2)
    told = samples[place], samples[place] + CHANGED
    assert first.digests == tuple(f"{digest_of(each):032x}" for each in told)
    assert first.sample == samples[place]


def test_a_changed_sample_in_another_order_is_named_by_its_number() -> None:
    found = compared(Run(run([0, 1, 2, 3])), Run(run([3, 2, 1, 0], changed=[2])))
    assert found.verdict is DIFFERENT
    assert found.first is not None
    assert (found.first.sample, found.first.batches) == (1, (0, 1))


def test_missing_and_extra_samples_are_counted() -> None:
    found = compared(Run(run([0, 1, 2, 2])), Run(run([0, 1, 2])))
    assert (found.verdict, found.n_missing, found.n_extra) == (DIFFERENT, 1, 0)
    assert found.first is not None
    assert (found.first.sample, found.first.digests[1]) == (2, None)
    found = compared(Run(run([0, 1])), Run(run([0, 1, 5])))
    assert (found.verdict, found.n_missing, found.n_extra) == (DIFFERENT, 0, 1)
    assert found.first is not None
    assert (found.first.sample, found.first.digests[0]) == (5, None)


def test_of_runs_that_ended_early_the_beginning_both_have_is_compared() -> None:
    found = compared(Run(run([5, 6, 7, 8], n_samples=9)), Run(run([5, 6], n_samples=9)))
    assert (found.verdict, found.n_compared, found.is_partial) == (SAME, 2, True)
    found = compared(Run(run([0, 1, 2, 3], n_samples=9)), Run(run([0, 1, 2], changed=[1])))
    assert (found.verdict, found.is_partial) == (DIFFERENT, True)
    assert found.first is not None
    assert found.first.sample == 1


def test_parts_of_epochs_in_other_orders_are_compared_by_number() -> None:
    found = compared(Run(run([0, 1, 2, 3], n_samples=9)), Run(run([8, 3, 2, 7], n_samples=9)))
    assert (found.verdict, found.n_compared, found.is_partial) == (OTHER, 2, True)
    changed = run([8, 3, 2, 7], n_samples=9, changed=[2])
    found = compared(Run(run([0, 1, 2, 3], n_samples=9)), Run(changed))
    assert (found.verdict, found.n_compared, found.n_extra) == (DIFFERENT, 2, 1)
    for other in (run([8, 7], n_samples=9), run([8, 2], n_samples=9, numbered=False)):
        found = compared(Run(run([0, 1, 2, 3], n_samples=9)), Run(other))
        assert (found.verdict, found.why_unknown) == (UNKNOWN, "no sample in common")
    # What a whole epoch does not have is another sample, whatever its number.
    for part, n_compared in (([8, 42], 2), ([*range(9), 42], 9)):
        for numbered in (True, False):
            other = run(part, n_samples=99, numbered=numbered)
            for found in (
                compared(Run(run(range(9))), Run(other)),
                compared(Run(other), Run(run(range(9)))),
            ):
                assert (found.verdict, found.n_compared) == (DIFFERENT, n_compared)
                assert (found.n_missing + found.n_extra, found.is_partial) == (1, True)
    # A part of an epoch that is whole in the other run needs no numbers.
    found = compared(Run(run(range(9))), Run(run([8, 2], n_samples=9, numbered=False)))
    assert (found.verdict, found.is_partial) == (OTHER, True)


def test_lost_digests_make_it_unknown_unless_what_is_left_differs() -> None:
    lossy = run([0, 1, 2, 3], lost=[1])
    seen = samples_seen(Run(lossy))
    assert (seen.n_unknown_batches, seen.n_damaged) == (1, 1)
    assert samples_seen(Run(run([0, 1]))).n_damaged == 0
    assert seen.epochs[0].digest is None
    found = compared(Run(run([0, 1, 2, 3])), Run(lossy))
    assert (found.verdict, found.why_unknown) == (UNKNOWN, "digests are missing")
    assert found.n_unknown_batches[1] == 1
    found = compared(Run(run([0, 1, 2, 3])), Run(run([0, 1, 2, 3], lost=[1], changed=[0])))
    assert found.verdict is DIFFERENT
    assert compared(Run(run([0, 1])), Run(run([0, 1], lost=[0]))).verdict is UNKNOWN


def test_a_run_whose_digests_are_all_gone_is_unknown() -> None:
    gone = replace(run([0, 1]), digests=None)
    seen = samples_seen(Run(gone))
    assert (seen.recorded, seen.n_unknown_batches, seen.n_samples) == (True, 1, 0)
    assert compared(Run(run([0, 1])), Run(gone)).verdict is UNKNOWN


def test_a_run_without_digests_is_unknown() -> None:
    plain = replace(run([0, 1]), digests=None, config={})
    assert compared(Run(plain), Run(run([0, 1]))).why_unknown == "not recorded in a"
    assert compared(Run(run([0, 1])), Run(plain)).why_unknown == "not recorded in b"


def test_batches_that_span_epochs_are_taken_apart() -> None:
    seen = samples_seen(Run(run([0, 1, 2, 2, 1, 0], batch_size=2, n_samples=3)))
    assert [(each.epoch, len(each), each.is_complete) for each in seen.epochs] == [
        (0, 3, True), (1, 3, True),
    ]  # fmt: skip
    assert len(set(seen.epoch_digests.values())) == 1
    found = compared(Run(run([0, 1, 2, 2, 1, 0], n_samples=3)), Run(run([0, 1, 2])))
    assert (found.verdict, found.n_epochs, found.is_partial) == (SAME, 1, True)


def test_a_stream_of_unknown_length_is_one_epoch() -> None:
    (epoch,) = samples_seen(Run(run([0, 1, 2, 2, 1], n_samples=0))).epochs
    assert (epoch.epoch, len(epoch), epoch.is_complete) == (0, 5, False)


def test_two_tellings_of_one_sample_count_once_if_alike() -> None:
    once = run([0, 1])
    assert compared(Run(once), Run(run([0, 1], told_again=[]))).verdict is SAME
    unlike = run([0, 1], told_again=[0, 1])
    assert compared(Run(once), Run(unlike)).verdict is UNKNOWN


def test_ranks_are_taken_together() -> None:
    whole = run([0, 1, 2, 3], batch_size=1, n_samples=4)
    parts = ranked([0, 2], [1, 3])
    seen = samples_seen(Run(parts))
    assert [epoch.rank.tolist() for epoch in seen.epochs] == [[0, 1, 0, 1]]
    assert seen.epoch_digests == samples_seen(Run(whole)).epoch_digests
    assert compared(Run(whole), Run(parts)).verdict is SAME


def ranked(*of_ranks: Sequence[int]) -> Profile:
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
