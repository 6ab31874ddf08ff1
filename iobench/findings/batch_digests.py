"""Which batches a run delivered, by their digests, and whether two runs delivered the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.findings.contract import Finding
from iobench.report import units
from iobench.report.document import Column, Quantity, Section, Sentence, Table, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iobench.analysis.run import RankRun

N_EPOCHS: Final = 3
"""Epochs whose digest is shown."""
COLUMNS: Final = tuple(map(Column, ("epoch", "samples", "digest, in any order")))
OF_PROFILE: Final = "profile"
"""The loader of ``iobench profile``, whose number is -1."""


class Delivered(NamedTuple):
    """A batch that a training loop got, at its turn among those of its rank."""

    turn: int
    rank: int
    batch: int
    n_samples: int
    digest: int | None


class EpochDelivery(msgspec.Struct, frozen=True):
    """What one loader delivered in one epoch, ranks by turns."""

    loader: int
    epoch: int
    batches: tuple[Delivered, ...]

    @property
    def n_samples(self) -> int:
        """Samples in batches with a digest."""
        return sum(each.n_samples for each in self.batches if each.digest is not None)

    @property
    def digest(self) -> int | None:
        """The sum of the digests modulo 2^128; None where a batch has none."""
        digests = [each.digest for each in self.batches if each.digest is not None]
        return sum(digests) % (1 << 128) if len(digests) == len(self.batches) else None


class DeliveredSamples(msgspec.Struct, frozen=True):
    """All batches of a run by ``LOADER/EPOCH``; recorded where digests were requested."""

    recorded: bool
    epochs: dict[str, EpochDelivery] = {}


def delivered_samples(runs: Iterable[RankRun]) -> DeliveredSamples:
    """Return the batches that training processes of one run delivered, as all those of a `Run`."""
    batches, recorded = defaultdict[tuple[int, int], list[Delivered]](list), False
    for run in runs:
        if run.digests is not None or run.run_facts.digests:
            recorded = True
            for key, each in _delivered(run):
                batches[key].append(each)
    epochs = {
        f"{OF_PROFILE if loader < 0 else loader}/{epoch}": EpochDelivery(
            loader, epoch, tuple(sorted(batches[loader, epoch]))
        )
        for loader, epoch in sorted(batches)
    }
    return DeliveredSamples(recorded, epochs)


def _delivered(run: RankRun) -> Iterator[tuple[tuple[int, int], Delivered]]:
    """Yield what a training process got by loader and epoch, which of a plan its samples say."""
    noted: dict[int, tuple[int, int | None]] = {}
    for rank, batch, n_samples, digest in run.digests or ():
        each = n_samples, digest
        if rank == run.rank and noted.setdefault(batch, each) != each:
            noted[batch] = 0, None  # two processes noted different ones
    of, n_epoch, n_before = run.deliveries, run.run_facts.n_samples or 0, 0
    got = np.flatnonzero(of.batch >= 0)
    is_plan = not run.is_script and not of.evaluates.any()
    columns = (each[got].tolist() for each in (of.loader, of.epoch, of.batch))
    for turn, (loader, epoch, batch) in enumerate(zip(*columns, strict=True)):
        n_samples, digest = noted.get(batch, (0, None))
        if is_plan:  # of a stream of unknown length all is one epoch
            epoch = n_before // n_epoch if n_epoch else 0
            n_before += n_samples or run.run_facts.batch_size or 1
        yield (loader, epoch), Delivered(turn, run.rank, batch, n_samples, digest)


class SamplesVerdict(Enum):
    """What is proven of two runs; of several epochs, the last of these that one of them has."""

    SAME_ORDER = "identical samples, same order"
    SAME_BEGINNING = "identical samples, same order, as far as both go"
    OTHER_ORDER = "identical samples, different order"
    UNKNOWN = "unknown"
    DIFFERENT = "different batches"


class FirstDifference(msgspec.Struct, frozen=True):
    """The first batch that differs: its place in the epoch, its number and digest in both runs."""

    epoch: int
    place: int
    batches: tuple[int, int]
    digests: tuple[str, str]


class SamplesComparison(msgspec.Struct, frozen=True):
    """What two runs delivered: samples in batches with a digest, and how many were compared."""

    verdict: SamplesVerdict
    why_unknown: str | None = None
    n_compared: int = 0
    n_samples: tuple[int, int] = (0, 0)
    first_difference: FirstDifference | None = None


def compare_samples(a: DeliveredSamples, b: DeliveredSamples) -> SamplesComparison:
    """Return whether two runs delivered the same samples; ranks are taken together."""
    # Where both runs have one loader, it is that one, whatever its number.
    every = [[*samples.epochs.values()] for samples in (a, b)]
    is_only = all(len({each.loader for each in epochs}) == 1 for epochs in every)
    of_a, of_b = (
        {(0 if is_only else each.loader, each.epoch): each for each in epochs} for epochs in every
    )
    epochs = [_compare_epoch(each, of_b[key]) for key, each in of_a.items() if key in of_b]
    why = None if epochs else "no epoch in common"
    if not (a.recorded and b.recorded):
        why = "one of them was made without --digests"
    worst = SamplesComparison(SamplesVerdict.UNKNOWN, why)
    if why is None:
        worst = max(epochs, key=lambda each: [*SamplesVerdict].index(each.verdict))
        worst = replace(worst, n_compared=sum(each.n_compared for each in epochs))
    n_a, n_b = (sum(each.n_samples for each in of.epochs.values()) for of in (a, b))
    return replace(worst, n_samples=(n_a, n_b))


def _compare_epoch(a: EpochDelivery, b: EpochDelivery) -> SamplesComparison:
    if a.digest is None or b.digest is None:
        return SamplesComparison(SamplesVerdict.UNKNOWN, "digests are missing")
    pairs = [*zip(a.batches, b.batches, strict=False)]
    n_compared = sum(first.n_samples for first, _ in pairs)
    place = next((at for at, (x, y) in enumerate(pairs) if x.digest != y.digest), None)
    if place is None:
        same = len(a.batches) == len(b.batches)
        verdict = SamplesVerdict.SAME_ORDER if same else SamplesVerdict.SAME_BEGINNING
        return SamplesComparison(verdict, None, n_compared)
    of_a, of_b = (Counter(each.digest for each in of.batches) for of in (a, b))
    if of_a == of_b:
        return SamplesComparison(SamplesVerdict.OTHER_ORDER, None, n_compared)
    if any(first.n_samples != other.n_samples for first, other in pairs[:-1]):
        return SamplesComparison(SamplesVerdict.UNKNOWN, "batches of other sizes")
    first, other = pairs[place]
    digests = f"{first.digest:032x}", f"{other.digest:032x}"
    difference = FirstDifference(a.epoch, place, (first.batch, other.batch), digests)
    return SamplesComparison(SamplesVerdict.DIFFERENT, None, n_compared, (0, 0), difference)


def samples_sentences(of: SamplesComparison, a: str, b: str) -> tuple[Sentence, ...]:
    """Return the verdict, how much of the runs it is about, and the first batch that differs."""
    if of.verdict is SamplesVerdict.UNKNOWN:
        return (Sentence(f"Samples of {a} and {b}: unknown, {of.why_unknown}.", "strong"),)
    n_a, n_b = map(units.count, of.n_samples)
    counts = f"{units.count(of.n_compared)} of {n_a} in {a} and {n_b} in {b} compared"
    verdict = Sentence(f"Samples: {of.verdict.value}, {counts}.", "strong")
    if of.first_difference is None:
        return (verdict,)
    first = of.first_difference
    where = f"epoch {first.epoch}, place {units.count(first.place)}"
    (of_a, of_b), (batch_a, batch_b) = first.digests, first.batches
    differ = f"{of_a} in batch {batch_a} of {a}, {of_b} in batch {batch_b} of {b}"
    return verdict, Sentence(f"First batch that differs: {where}: {differ}.")


class EpochDigest(msgspec.Struct, frozen=True):
    """What one loader delivered in one epoch."""

    n_samples: int  # in batches with a digest
    digest: str | None  # of all its batches in any order; None where one has none


class SampleDigests(msgspec.Struct, frozen=True):
    """What a run delivered by its digests (XXH3, 128 bits), which are equal where batches are."""

    scheme: str  # what a digest is of: "batch"
    epoch_digests: dict[str, EpochDigest]  # by LOADER/EPOCH


def sample_digests(run: RankRun) -> SampleDigests | None:
    """Return what a training process delivered by digests; None where none were requested."""
    samples = delivered_samples([run])
    if not samples.recorded:
        return None
    epochs = {
        name: EpochDigest(each.n_samples, None if each.digest is None else f"{each.digest:032x}")
        for name, each in samples.epochs.items()
    }
    return SampleDigests("batch", epochs)


def samples_section(digests: SampleDigests) -> Section:
    """Return the digests of the first epochs, and what is not known of them."""
    rows = [
        (name, Quantity(each.n_samples, "count"), each.digest or units.UNKNOWN)
        for name, each in [*digests.epoch_digests.items()][:N_EPOCHS]
    ]
    table = Table("", COLUMNS, tuple(rows), note="Later epochs are in --json.")
    notes = []
    if any(each.digest is None for each in digests.epoch_digests.values()):
        notes.append("Some batches have no digest: lost, or objects that iobench cannot read.")
    return Section("samples", "Samples", (table, *sentences(notes)), is_folded=True)


FINDING: Final = Finding(
    name="digests", order=600, struct=SampleDigests, figures=sample_digests, section=samples_section
)
"""Digests of samples, as the entry point names them."""
