"""Whether two runs delivered the same samples, and if not, which is the first that differs."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.frozen import frozen
from iobench.json_keys import key

if TYPE_CHECKING:
    from iobench.subjects.samples.figures import EpochSamples, SamplesSeen

Integers = NDArray[np.int64]


class SamplesVerdict(Enum):
    """What is proven of two runs; of several epochs, the last of these that one of them has."""

    SAME_ORDER = "identical samples, same order"
    OTHER_ORDER = "identical samples, different order"
    UNKNOWN = "unknown"
    DIFFERENT = "different samples"


@frozen
class FirstDifference:
    """The first sample, as the second run delivered them, that the first one does not have.

    Or, where it lacks one and has all others, the first that it lacks, as the first delivered it.

    Parameters
    ----------
    loader : int or None
        Its number in both runs; None where it has none.
    epoch : int
        Of both runs.
    place : int
        Samples of the epoch before it.
    sample : int or None
        Its number; None where it is not known.
    batches : tuple of (int or None)
        Where either run delivered it; None where one did not, or it is not known which it is there.
    digests : tuple of (str or None)
        What either run delivered, in hexadecimal digits; None likewise.
    """

    loader: int | None
    epoch: int
    place: int
    sample: int | None
    batches: tuple[int | None, int | None]
    digests: tuple[str | None, str | None]


@frozen
class SamplesComparison:
    """What two runs delivered, set against each other.

    Parameters
    ----------
    n_compared : int
        Samples of the first run of which it is known whether the second delivered them too.
    n_samples : tuple of int
        Of both runs, with a digest.
    n_missing, n_extra : int
        Samples that the second run lacks, and that only it has; as often as that is so.
    n_epochs : int
        That both runs have.
    is_partial : bool
        Whether more was delivered than could be compared: a run ended within an epoch.
    why_unknown : str
        One of ``"not recorded in a"``, ``"not recorded in b"``, ``"no epoch in common"``,
        ``"digests are missing"``, ``"no sample in common"``; ``""`` where the verdict is known.
    n_unknown_batches : tuple of int
        Of both runs, batches of which some sample has no digest.
    """

    verdict: SamplesVerdict
    n_compared: int = 0
    n_samples: tuple[int, int] = (0, 0)
    n_missing: int = 0
    n_extra: int = 0
    n_epochs: int = 0
    is_partial: bool = False
    first: FirstDifference | None = field(default=None, metadata=key("first_difference"))
    why_unknown: str = ""
    n_unknown_batches: tuple[int, int] = (0, 0)


def compare_seen(a: SamplesSeen, b: SamplesSeen) -> SamplesComparison:
    """Return whether two runs delivered the same samples, by what is known of these.

    Batch sizes do not matter, and ranks are taken together: an epoch is what all of them got. Of
    an epoch that one run did not finish, as many samples are compared as it has; in another
    order, those that both have by their numbers.
    """
    unknown = SamplesComparison(
        SamplesVerdict.UNKNOWN,
        n_samples=(a.n_samples, b.n_samples),
        n_unknown_batches=(a.n_unknown_batches, b.n_unknown_batches),
    )
    for name, seen in (("a", a), ("b", b)):
        if not seen.recorded:
            return replace(unknown, why_unknown=f"not recorded in {name}")
    # Where both runs have one loader, it is that one, whatever its number.
    is_only = all(len({each.loader for each in seen.epochs}) == 1 for seen in (a, b))
    of_a, of_b = (
        {(0 if is_only else each.loader, each.epoch): each for each in seen.epochs}
        for seen in (a, b)
    )
    found = [_compare_epoch(each, of_b[key]) for key, each in of_a.items() if key in of_b]
    if not found:
        return replace(unknown, why_unknown="no epoch in common")
    worst = max(found, key=lambda each: [*SamplesVerdict].index(each.verdict))
    return replace(
        unknown,
        verdict=worst.verdict,
        n_compared=sum(each.n_compared for each in found),
        n_missing=sum(each.n_missing for each in found),
        n_extra=sum(each.n_extra for each in found),
        n_epochs=len(found),
        is_partial=any(each.is_partial for each in found)
        or len(found) < max(len(a.epochs), len(b.epochs)),
        first=next((each.first for each in found if each.first is not None), None),
        why_unknown=worst.why_unknown,
    )


def _compare_epoch(a: EpochSamples, b: EpochSamples) -> SamplesComparison:
    """Return what is known of one epoch of both; the counts of batches are left to the caller."""
    missing = bool(a.n_unknown_batches or b.n_unknown_batches)
    whole = a.is_complete and b.is_complete
    if not missing:
        n_both = len(a) if whole and len(a) == len(b) else min(len(a), len(b))
        same = (a.digests[:n_both] == b.digests[:n_both]) if n_both else np.zeros(0, bool)
        # Of one that is whole there is no more to come.
        beyond = (a.is_complete and len(b) > n_both) or (b.is_complete and len(a) > n_both)
        if same.all() and (n_both or whole) and not beyond:
            partial = not whole or len(a) != len(b)
            return SamplesComparison(SamplesVerdict.SAME_ORDER, n_both, is_partial=partial)
        ids_a, ids_b = _ids(a.digests, b.digests)
        lacking, more = _surplus(ids_a, ids_b), _surplus(ids_b, ids_a)
        if whole:
            return _of_whole(a, b, lacking, more)
        in_order = 2 * int(same.sum()) > n_both  # but for some samples
        at = np.arange(n_both)
        if in_order and (different := _of_places(a, b, at, at)) is not None:
            return different
        # What a whole epoch has not, it never delivers; what a part has not, may still come.
        if (a.is_complete and more.any()) or (b.is_complete and lacking.any()):
            if not a.is_complete:
                more = np.zeros_like(more)
            if not b.is_complete:
                lacking = np.zeros_like(lacking)
            return replace(_of_whole(a, b, lacking, more), n_compared=n_both, is_partial=True)
        # A run that is a part of the other, in whatever order: nothing speaks against it.
        either = a.is_complete or b.is_complete
        if either or (len(a) == len(b) and not more.any()):
            return SamplesComparison(SamplesVerdict.OTHER_ORDER, n_both, is_partial=True)
    return _by_number(a, b, missing=missing)


def _of_whole(
    a: EpochSamples, b: EpochSamples, lacking: NDArray[np.bool_], more: NDArray[np.bool_]
) -> SamplesComparison:
    """Compare two epochs of which all is known."""
    n_missing, n_extra = int(lacking.sum()), int(more.sum())
    if not n_missing and not n_extra:
        return SamplesComparison(SamplesVerdict.OTHER_ORDER, len(a))
    if n_extra:
        place = int(np.flatnonzero(more)[0])
        first = _difference(a, b, _same_one(a, b, place), place)
    else:
        first = _difference(a, b, int(np.flatnonzero(lacking)[0]), None)
    return SamplesComparison(
        SamplesVerdict.DIFFERENT, len(a), n_missing=n_missing, n_extra=n_extra, first=first
    )


def _of_places(
    a: EpochSamples, b: EpochSamples, of_a: Integers, of_b: Integers
) -> SamplesComparison | None:
    """Compare samples that should be the same, by their places in either; None if they are."""
    differs = np.flatnonzero(a.digests[of_a] != b.digests[of_b])
    if not len(differs):
        return None
    return SamplesComparison(
        SamplesVerdict.DIFFERENT,
        len(of_a),
        n_missing=len(differs),
        n_extra=len(differs),
        is_partial=True,
        first=_difference(a, b, int(of_a[differs[0]]), int(of_b[differs[0]])),
    )


def _by_number(a: EpochSamples, b: EpochSamples, *, missing: bool) -> SamplesComparison:
    """Compare the samples that both have by their numbers, where one run has not all."""
    numbers, in_a, in_b = np.intersect1d(a.sample, b.sample, return_indices=True)
    known = np.flatnonzero(numbers >= 0)
    in_order = known[np.argsort(in_b[known])]
    different = _of_places(a, b, in_a[in_order], in_b[in_order])
    if different is not None:
        return different
    if missing or not len(known):
        why = "digests are missing" if missing else "no sample in common"
        return SamplesComparison(
            SamplesVerdict.UNKNOWN, len(known), is_partial=True, why_unknown=why
        )
    return SamplesComparison(SamplesVerdict.OTHER_ORDER, len(known), is_partial=True)


def _ids(a: NDArray[Any], b: NDArray[Any]) -> tuple[Integers, Integers]:
    """Return small numbers in place of digests, the same for the same ones."""
    _, ids = np.unique(np.concatenate((a, b)), return_inverse=True)
    ids = ids.reshape(-1).astype(np.int64)
    return ids[: len(a)], ids[len(a) :]


def _surplus(ids: Integers, others: Integers) -> NDArray[np.bool_]:
    """Tell which of the ids come more often than in the others: the last ones of each."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    n_before = np.arange(len(ids)) - np.searchsorted(sorted_ids, sorted_ids, side="left")
    n_others = np.bincount(others, minlength=int(ids.max(initial=-1)) + 1)
    found = np.zeros(len(ids), dtype=bool)
    found[order] = n_before >= n_others[sorted_ids]
    return found


def _same_one(a: EpochSamples, b: EpochSamples, place: int) -> int | None:
    """Return where the first run has what the second delivered at a place, by its number.

    Without numbers, at the same place, if what is before it is the same in both.
    """
    number = int(b.sample[place])
    if number >= 0:
        found = np.flatnonzero(a.sample == number)
        return int(found[0]) if len(found) else None
    if place < len(a) and (a.digests[:place] == b.digests[:place]).all():
        return place
    return None


def _difference(
    a: EpochSamples, b: EpochSamples, of_a: int | None, of_b: int | None
) -> FirstDifference:
    places = [(epoch, at) for epoch, at in ((b, of_b), (a, of_a)) if at is not None]
    numbers = [number for epoch, at in places if (number := int(epoch.sample[at])) >= 0]
    return FirstDifference(
        loader=None if a.loader < 0 else a.loader,
        epoch=a.epoch,
        place=places[0][1],
        sample=numbers[0] if numbers else None,
        batches=(_batch(a, of_a), _batch(b, of_b)),
        digests=(_digest(a, of_a), _digest(b, of_b)),
    )


def _batch(epoch: EpochSamples, place: int | None) -> int | None:
    return None if place is None else int(epoch.batch[place])


def _digest(epoch: EpochSamples, place: int | None) -> str | None:
    if place is None:
        return None
    key = epoch.digests[place]
    return f"{key['high']:016x}{key['low']:016x}"
