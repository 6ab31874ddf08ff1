"""Whether two runs delivered the same samples, and if not, the first batch that differs."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iobench.report import units
from iobench.report.document import Sentence

if TYPE_CHECKING:
    from iobench.findings.batch_digests import DeliveredSamples, EpochDelivery


class SamplesVerdict(Enum):
    """What is proven of two runs; of several epochs, the last of these that one of them has."""

    SAME_ORDER = "identical samples, same order"
    OTHER_ORDER = "identical samples, different order"
    UNKNOWN = "unknown"
    DIFFERENT = "different batches"


class FirstDifference(msgspec.Struct, frozen=True):
    """The first batch that differs: its place in the epoch, its number and digest in both runs."""

    epoch: int
    place: int
    batches: tuple[int | None, int | None]
    digests: tuple[str | None, str | None]


class SamplesComparison(msgspec.Struct, frozen=True):
    """What two runs delivered: samples in batches with a digest, and how many were compared."""

    verdict: SamplesVerdict
    why_unknown: str | None = None
    n_compared: int = 0
    n_samples: tuple[int, int] = (0, 0)
    first_difference: FirstDifference | None = None


UNKNOWN = SamplesComparison(SamplesVerdict.UNKNOWN)


def compare_samples(a: DeliveredSamples, b: DeliveredSamples) -> SamplesComparison:
    """Return whether two runs delivered the same samples; ranks are taken together."""
    # Where both runs have one loader, it is that one, whatever its number.
    is_only = all(len({each.loader for each in samples.epochs}) == 1 for samples in (a, b))
    of_a, of_b = (
        {(0 if is_only else each.loader, each.epoch): each for each in samples.epochs}
        for samples in (a, b)
    )
    epochs = [_compare_epoch(each, of_b[key]) for key, each in of_a.items() if key in of_b]
    worst = max(epochs, key=lambda each: [*SamplesVerdict].index(each.verdict), default=UNKNOWN)
    compared = replace(
        worst,
        n_compared=sum(each.n_compared for each in epochs),
        first_difference=next((e.first_difference for e in epochs if e.first_difference), None),
    )
    if not (a.recorded and b.recorded):
        compared = replace(UNKNOWN, why_unknown=f"not recorded in {'b' if a.recorded else 'a'}")
    elif a.scheme != b.scheme:
        compared = replace(UNKNOWN, why_unknown="digests of another scheme, of an earlier version")
    elif not epochs:
        compared = replace(UNKNOWN, why_unknown="no epoch in common")
    return replace(compared, n_samples=(a.n_samples, b.n_samples))


def _compare_epoch(a: EpochDelivery, b: EpochDelivery) -> SamplesComparison:
    n_both, partial = min(len(a), len(b)), not (a.is_complete and b.is_complete)
    sizes = [each.rows["n_samples"] for each in (a, b)]
    known = replace(UNKNOWN, n_compared=int(sizes[0][:n_both].sum()))
    if a.n_unknown or b.n_unknown:
        return replace(UNKNOWN, why_unknown="digests are missing")
    of_a, of_b = a.digests, b.digests
    # Of one that is whole there is no more to come.
    longer = (a.is_complete and len(b) > n_both) or (b.is_complete and len(a) > n_both)
    if of_a[:n_both] == of_b[:n_both] and (n_both or not partial) and not longer:
        return replace(known, verdict=SamplesVerdict.SAME_ORDER)
    if Counter(of_a) == Counter(of_b):
        return replace(known, verdict=SamplesVerdict.OTHER_ORDER)
    common = max(n_both - 1, 0)
    if (sizes[0][:common] != sizes[1][:common]).any():
        return replace(UNKNOWN, why_unknown="batches of other sizes")
    n_same = sum(one == other for one, other in zip(of_a, of_b, strict=False))
    if partial and 2 * n_same <= n_both:
        return replace(UNKNOWN, why_unknown="order differs in a part of an epoch")
    place = next((n for n in range(n_both) if of_a[n] != of_b[n]), n_both)
    (first, first_digest), (other, other_digest) = _batch_at(a, place), _batch_at(b, place)
    difference = FirstDifference(a.epoch, place, (first, other), (first_digest, other_digest))
    return replace(known, verdict=SamplesVerdict.DIFFERENT, first_difference=difference)


def _batch_at(epoch: EpochDelivery, place: int) -> tuple[int | None, str | None]:
    if place >= len(epoch):
        return None, None
    return int(epoch.rows["batch"][place]), f"{epoch.digests[place]:032x}"


def samples_sentences(of: SamplesComparison, a: str, b: str) -> tuple[Sentence, ...]:
    """Return the verdict, how much of the runs it is about, and the first batch that differs."""
    if of.verdict is SamplesVerdict.UNKNOWN:
        why = of.why_unknown or ""
        if why.startswith("not recorded"):
            why = f"{a if why.endswith(' a') else b} was made without --digests"
        return (Sentence(f"Samples of {a} and {b}: unknown, {why}.", "strong"),)
    n_a, n_b = map(units.count, of.n_samples)
    counts = f"{units.count(of.n_compared)} of {n_a} in {a} and {n_b} in {b} compared"
    verdict = Sentence(f"Samples: {of.verdict.value}, {counts}.", "strong")
    first = of.first_difference
    if first is None:
        return (verdict,)
    parts = ", ".join(
        f"no batch in {name}" if batch is None else f"{digest} in batch {batch} of {name}"
        for name, batch, digest in zip((a, b), first.batches, first.digests, strict=True)
    )
    where = f"epoch {first.epoch}, place {units.count(first.place)}"
    return verdict, Sentence(f"First batch that differs: {where}: {parts}.")
