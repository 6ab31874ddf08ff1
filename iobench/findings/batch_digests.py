"""Which batches a run delivered, in which order, by their digests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.findings.contract import Finding
from iobench.recording.digests import BATCHES, SAMPLES, TABLE_DTYPE
from iobench.report import units
from iobench.report.document import Column, Count, Section, Table, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Key = tuple[int, int]
N_EPOCHS: Final = 3
"""Epochs whose digest is shown."""
COLUMNS: Final = tuple(map(Column, ("epoch", "samples", "digest, in any order")))


class EpochDigest(msgspec.Struct, frozen=True):
    """What one loader delivered in one epoch; complete where all of the pass was recorded.

    Parameters
    ----------
    loader : int or None
        Its number; None for the one of ``iobench profile``.
    digest : str or None
        Of all its batches in any order; None where one of them is not known.
    """

    loader: int | None
    epoch: int
    n_samples: int
    is_complete: bool
    digest: str | None


class SampleDigests(msgspec.Struct, frozen=True):
    """What a run delivered by its digests (XXH3, 128 bits), which are equal where batches are.

    ``n_unknown_batches`` were delivered without a digest, or with one that cannot be read;
    ``scheme`` is what a digest is of: ``"batch"``, or ``"sample"`` in earlier versions.
    """

    epochs: tuple[EpochDigest, ...]
    n_unknown_batches: int
    scheme: str


class EpochDelivery(msgspec.Struct, frozen=True, eq=False):
    """What one loader (-1: that of ``iobench profile``) delivered in one epoch, ranks by turns."""

    loader: int
    epoch: int
    is_complete: bool
    rows: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_samples(self) -> int:
        """Samples in batches with a digest."""
        return int(self.rows["n_samples"][self.rows["known"]].sum())

    @property
    def n_unknown(self) -> int:
        """Batches without a digest."""
        return len(np.unique(self.rows[["rank", "batch"]][~self.rows["known"]]))

    @property
    def digests(self) -> list[int]:
        """The digest of each batch."""
        halves = zip(self.rows["high"].tolist(), self.rows["low"].tolist(), strict=True)
        return [(high << 64) + low for high, low in halves]

    @property
    def digest(self) -> int | None:
        """The sum of the digests modulo 2^128; None where a batch is unknown.

        A sum and not an exclusive or, in which a batch that comes twice would cancel out.
        """
        return None if self.n_unknown else sum(self.digests) % (1 << 128)


class DeliveredSamples(msgspec.Struct, frozen=True, eq=False):
    """All batches of a run, by loader, then epoch; recorded where digests were requested."""

    recorded: bool
    epochs: tuple[EpochDelivery, ...] = ()
    scheme: str = BATCHES
    n_damaged: int = 0

    @property
    def epoch_digests(self) -> dict[Key, int | None]:
        """The digest of each epoch, by loader and epoch; None where a batch is unknown."""
        return {(each.loader, each.epoch): each.digest for each in self.epochs}

    @property
    def n_samples(self) -> int:
        """Samples in batches with a digest."""
        return sum(each.n_samples for each in self.epochs)

    @property
    def n_unknown_batches(self) -> int:
        """Batches delivered without a digest."""
        return sum(each.n_unknown for each in self.epochs)


DELIVERED: Final = np.dtype(
    [
        ("loader", "<i8"), ("epoch", "<i8"), ("order", "<i8"), ("rank", "<i8"), ("batch", "<i8"),
        ("n_samples", "<i8"), ("known", "?"), ("high", "<u8"), ("low", "<u8"),
    ]
)  # fmt: skip
"""A batch that was delivered, or a sample of one."""


def delivered_samples(runs: Iterable[RankRun]) -> DeliveredSamples:
    """Return the batches that training processes of one run delivered.

    Parameters
    ----------
    runs : iterable of RankRun
        As all those of a `Run`; of one without digests nothing is known.

    Raises
    ------
    ProfileError
        If the waits of a training loop overlap.
    """
    tables, ends = [np.zeros(0, DELIVERED)], []
    profile: RunData | None = None
    for run in runs:
        profile = run.job or run
        if profile.digests is None and not profile.run_facts.digests:
            return DeliveredSamples(recorded=False)
        rows, ended = _of_rank(run)
        tables.append(rows)
        ends.append(ended)
    if profile is None:
        return DeliveredSamples(recorded=False)
    table = np.concatenate(tables)
    # Of the same place in the epoch, one rank after the other.
    table = table[np.lexsort((table["rank"], table["order"], table["epoch"], table["loader"]))]
    keys = {
        *map(tuple, table[["loader", "epoch"]].tolist()),
        *(key for each in ends for key in each),
    }
    epochs = []
    for key in sorted(keys):
        rows = table[(table["loader"] == key[0]) & (table["epoch"] == key[1])]
        complete = all(each.get(key, False) for each in ends) and bool(rows["known"].all())
        complete = complete and not profile.run_facts.steps
        epochs.append(EpochDelivery(key[0], key[1], complete, rows))
    if profile.digests is None:
        return DeliveredSamples(recorded=True, epochs=tuple(epochs))
    return DeliveredSamples(True, tuple(epochs), profile.digests.scheme, profile.digests.n_damaged)


def _of_rank(run: RankRun) -> tuple[NDArray[Any], dict[Key, bool]]:
    """Return the batches one training process got, and which of its epochs came to their end."""
    profile, deliveries = run, run.deliveries
    delivered = np.flatnonzero(deliveries.batch >= 0)
    rows, of = _digests_of(profile, deliveries.batch[delivered])
    place = delivered[of]
    table = np.zeros(len(of), DELIVERED)
    table["loader"], table["epoch"] = deliveries.loader[place], deliveries.epoch[place]
    table["rank"], table["batch"] = run.rank, deliveries.batch[place]
    table["order"] = np.arange(len(table))
    for name in ("n_samples", "known", "high", "low"):
        table[name] = rows[name]
    evaluates = not profile.is_script and bool(deliveries.evaluates.any())
    if not profile.is_script and not evaluates:
        return table, _place_in_plan(table, profile)
    ended: dict[Key, bool] = {}
    ends = deliveries.ends_round & deliveries.evaluates if evaluates else deliveries.ends_round
    for row in np.flatnonzero((deliveries.batch >= 0) | deliveries.ends_round).tolist():
        key = int(deliveries.loader[row]), int(deliveries.epoch[row])
        ended[key] = ended.get(key, False) or bool(ends[row])
    return table, ended


def _digests_of(profile: RunData, batches: Integers) -> tuple[NDArray[Any], Integers]:
    """Return the digests of delivered batches in order, and the place of each one's batch.

    A batch that is not whole, or was noted differently twice, has one row, without samples.
    """
    rows = np.zeros(1, TABLE_DTYPE)
    rows["batch"] = -1
    if profile.digests is not None:
        rows = np.concatenate((rows, profile.digests.rows))
    rows = np.unique(rows)  # by batch and position; what two recordings saw alike counts once
    first, end = (np.searchsorted(rows["batch"], batches, side=side) for side in ("left", "right"))
    last = len(rows) - 1
    is_whole = (end > first) & (end - first == rows["n_rows"][np.minimum(first, last)])
    count = np.where(is_whole, end - first, 1)
    of = np.repeat(np.arange(len(batches)), count)
    position = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    table = rows[np.minimum(first[of] + position, last)]
    table[~is_whole[of]] = np.zeros(1, TABLE_DTYPE)
    table["known"] &= table["position"] == position
    return table, of


def _place_in_plan(table: NDArray[Any], profile: RunData) -> dict[Key, bool]:
    """Give each batch of a measured plan the epoch of its first sample; return which are whole."""
    size, n_samples = profile.run_facts.batch_size or 1, profile.run_facts.n_samples or 0
    counts = np.where(table["n_samples"] > 0, table["n_samples"], size)
    first = np.cumsum(counts) - counts
    # Of a stream of unknown length all is one epoch.
    table["epoch"] = first // n_samples if n_samples else 0
    n_delivered = int(counts.sum())
    return {
        (loader, epoch): n_samples > 0 and n_delivered >= (epoch + 1) * n_samples
        for loader, epoch in set(map(tuple, table[["loader", "epoch"]].tolist()))
    }


def sample_digests(run: RankRun) -> SampleDigests | None:
    """Return what a training process delivered by digests; None where none were requested."""
    samples = delivered_samples([run])
    if not samples.recorded:
        return None
    return SampleDigests(
        tuple(
            EpochDigest(
                loader=None if each.loader < 0 else each.loader,
                epoch=each.epoch,
                n_samples=each.n_samples,
                is_complete=each.is_complete,
                digest=None if each.digest is None else f"{each.digest:032x}",
            )
            for each in samples.epochs
        ),
        samples.n_unknown_batches,
        samples.scheme,
    )


def samples_section(digests: SampleDigests) -> Section:
    """Return the digests of the first epochs, and what is not known of them."""
    rows = []
    for each in digests.epochs[:N_EPOCHS]:
        loader = "" if each.loader is None else f" of loader {each.loader}"
        part = "" if each.is_complete else ", a part of it"
        name = f"{each.epoch}{loader}{part}"
        rows.append((name, Count(each.n_samples), each.digest or units.UNKNOWN))
    table = Table("", COLUMNS, tuple(rows), note="Later epochs are in --json.")
    return Section("samples", "Samples", (table, *sentences([*_texts(digests)])), is_folded=True)


def _texts(digests: SampleDigests) -> Iterator[str]:
    if digests.scheme == SAMPLES:
        yield "They are of another scheme than today's, and can be compared with their like alone."
    if digests.n_unknown_batches:
        yield (
            f"{units.count(digests.n_unknown_batches)} batches have no digest: lost, or objects "
            "whose value iobench cannot read."
        )


FINDING: Final = Finding(name="digests", order=600, figures=sample_digests, section=samples_section)
"""Digests of samples, as the entry point names them."""
