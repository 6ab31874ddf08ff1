"""Whether two runs delivered the same samples, and if not, the first batch that differs."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec.structs import replace

from iobench.json_keys import key
from iobench.report import units
from iobench.report.document import Sentence

if TYPE_CHECKING:
    from iobench.findings.batch_digests import DeliveredSamples, EpochDelivery

REASONS: Final = {
    "no epoch in common": "they have no epoch of one loader in common",
    "digests are missing": "digests of delivered batches are missing",
    "batches of other sizes": "their batches have other sizes; digests are of batches",
    "other schemes": "digests of one are of batches, of the other of samples (an earlier version)",
    "order differs": "their batches come in another order, and one of them ended within an epoch",
}


class SamplesVerdict(Enum):
    """What is proven of two runs; of several epochs, the last of these that one of them has."""

    SAME_ORDER = "identical samples, same order"
    OTHER_ORDER = "identical samples, different order"
    UNKNOWN = "unknown"
    DIFFERENT = "different batches"


class FirstDifference(msgspec.Struct, frozen=True):
    """The first batch that differs: its place in the epoch, its number and digest in both runs."""

    loader: int | None
    epoch: int
    place: int
    batches: tuple[int | None, int | None]
    digests: tuple[str | None, str | None]


class SamplesComparison(msgspec.Struct, frozen=True):
    """What two runs delivered, set against each other.

    Parameters
    ----------
    n_compared : int
        Samples of the first run in batches that were compared.
    n_samples : tuple of int
        Of both runs, in batches with a digest.
    n_missing, n_extra : int
        Samples in batches that the second run lacks, and that only it has.
    n_epochs : int
        That both runs have.
    is_partial : bool
        Whether more was delivered than could be compared: a run ended within an epoch.
    why_unknown : str
        ``"not recorded in a"``, ``"not recorded in b"`` or one of `REASONS`; ``""`` where the
        verdict is known.
    n_unknown_batches : tuple of int
        Of both runs, batches without a digest.
    """

    verdict: SamplesVerdict
    n_compared: int = 0
    n_samples: tuple[int, int] = (0, 0)
    n_missing: int = 0
    n_extra: int = 0
    n_epochs: int = 0
    is_partial: bool = False
    first: FirstDifference | None = None
    why_unknown: str = ""
    n_unknown_batches: tuple[int, int] = (0, 0)
    JSON_KEYS: ClassVar = {
        "first": key("first_difference"),
    }


def compare_samples(a: DeliveredSamples, b: DeliveredSamples) -> SamplesComparison:
    """Return whether two runs delivered the same samples; ranks are taken together."""
    unknown = SamplesComparison(
        SamplesVerdict.UNKNOWN,
        n_samples=(a.n_samples, b.n_samples),
        n_unknown_batches=(a.n_unknown_batches, b.n_unknown_batches),
    )
    for name, samples in (("a", a), ("b", b)):
        if not samples.recorded:
            return replace(unknown, why_unknown=f"not recorded in {name}")
    if a.scheme != b.scheme:
        return replace(unknown, why_unknown="other schemes")
    # Where both runs have one loader, it is that one, whatever its number.
    is_only = all(len({each.loader for each in samples.epochs}) == 1 for samples in (a, b))
    of_a, of_b = (
        {(0 if is_only else each.loader, each.epoch): each for each in samples.epochs}
        for samples in (a, b)
    )
    epochs = [_compare_epoch(each, of_b[key]) for key, each in of_a.items() if key in of_b]
    if not epochs:
        return replace(unknown, why_unknown="no epoch in common")
    worst = max(epochs, key=lambda each: [*SamplesVerdict].index(each.verdict))
    return replace(
        unknown,
        verdict=worst.verdict,
        n_compared=sum(each.n_compared for each in epochs),
        n_missing=sum(each.n_missing for each in epochs),
        n_extra=sum(each.n_extra for each in epochs),
        n_epochs=len(epochs),
        is_partial=any(each.is_partial for each in epochs)
        or len(epochs) < max(len(a.epochs), len(b.epochs)),
        first=next((each.first for each in epochs if each.first is not None), None),
        why_unknown=worst.why_unknown,
    )


def _compare_epoch(a: EpochDelivery, b: EpochDelivery) -> SamplesComparison:
    """Return what is known of one epoch of both; the counts of batches are left to the caller."""
    n_both = min(len(a), len(b))
    sizes = [
        dict(zip(each.digests, each.rows["n_samples"].tolist(), strict=True)) for each in (a, b)
    ]
    partial = not (a.is_complete and b.is_complete)
    known = SamplesComparison(
        SamplesVerdict.UNKNOWN, int(a.rows["n_samples"][:n_both].sum()), is_partial=partial
    )
    if a.n_unknown or b.n_unknown:
        return replace(known, n_compared=0, why_unknown="digests are missing")
    of_a, of_b = a.digests, b.digests
    if of_a[:n_both] == of_b[:n_both] and (n_both or not partial):
        # Of one that is whole there is no more to come.
        longer = (a.is_complete and len(b) > n_both) or (b.is_complete and len(a) > n_both)
        if not longer:
            return replace(known, verdict=SamplesVerdict.SAME_ORDER)
    lacking, more = Counter(of_a) - Counter(of_b), Counter(of_b) - Counter(of_a)
    if not (lacking or more):
        return replace(known, verdict=SamplesVerdict.OTHER_ORDER)
    if (
        a.rows["n_samples"][: max(n_both - 1, 0)] != b.rows["n_samples"][: max(n_both - 1, 0)]
    ).any():
        return replace(known, n_compared=0, why_unknown="batches of other sizes")
    n_same = sum(one == other for one, other in zip(of_a, of_b, strict=False))
    if partial and 2 * n_same <= n_both:
        return replace(known, n_compared=0, why_unknown="order differs")
    place = next((n for n in range(n_both) if of_a[n] != of_b[n]), n_both)
    (batch_a, digest_a), (batch_b, digest_b) = _at(a, place), _at(b, place)
    return replace(
        known,
        verdict=SamplesVerdict.DIFFERENT,
        n_missing=sum(sizes[0][each] * n for each, n in lacking.items()),
        n_extra=sum(sizes[1][each] * n for each, n in more.items()),
        first=FirstDifference(
            None if a.loader < 0 else a.loader, a.epoch, place,
            (batch_a, batch_b), (digest_a, digest_b),
        ),
    )  # fmt: skip


def _at(epoch: EpochDelivery, place: int) -> tuple[int | None, str | None]:
    if place >= len(epoch):
        return None, None
    return int(epoch.rows["batch"][place]), f"{epoch.digests[place]:032x}"


def samples_sentences(comparison: SamplesComparison, a: str, b: str) -> list[Sentence]:
    """Return the verdict, how much of the runs it is about, and the first batch that differs."""
    if comparison.why_unknown.startswith("not recorded"):
        which = a if comparison.why_unknown.endswith(" a") else b
        line = (
            f"Samples: unknown, because {which} was made without digests. Make both with digests: "
            "iobench profile --digests, iobench run --digests -- COMMAND, or "
            "iobench.record(digests=True)"
        )
        return [Sentence(f"{line}.", "strong")]
    lines = [Sentence(f"Samples: {_verdict(comparison, a, b)}.", "strong")]
    if (first := comparison.first) is not None:
        loader = "" if first.loader is None else f" of loader {first.loader}"
        parts = (
            f"no batch in {name}" if batch is None else f"{digest} in batch {batch} of {name}"
            for name, batch, digest in zip((a, b), first.batches, first.digests, strict=True)
        )
        where = f"epoch {first.epoch}{loader}, place {units.count(first.place)}"
        lines.append(
            Sentence(
                f"First batch that differs: {where}: {', '.join(parts)}. Its samples are others, "
                "or the same in other batches."
            )
        )
    for name, n_unknown in zip((a, b), comparison.n_unknown_batches, strict=True):
        if n_unknown:
            lines.append(
                Sentence(
                    f"{units.count(n_unknown)} batches of {name} have no digest: lost, or objects "
                    "whose value iobench cannot read."
                )
            )
    return lines


def _verdict(comparison: SamplesComparison, a: str, b: str) -> str:
    verdict = comparison.verdict
    if verdict is SamplesVerdict.UNKNOWN:
        return f"{verdict.value}, {REASONS[comparison.why_unknown]}"
    epochs = f"{units.count(comparison.n_epochs)} epoch{'' if comparison.n_epochs == 1 else 's'}"
    samples = (
        f"{units.count(comparison.n_compared)} sample{'' if comparison.n_compared == 1 else 's'}"
    )
    text = f"{verdict.value}, {samples} in {epochs} compared"
    if verdict is SamplesVerdict.DIFFERENT:
        text += (
            f": batches with {units.count(comparison.n_missing)} samples of {a} are not in {b}, "
            f"with {units.count(comparison.n_extra)} of {b} not in {a}"
        )
    if comparison.is_partial:
        of_a, of_b = comparison.n_samples
        text += (
            f" (of {units.count(of_a)} in {a} and {units.count(of_b)} in {b}; nothing more is "
            "known, because not all epochs are complete in both)"
        )
    return text
