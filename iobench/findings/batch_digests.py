"""Which batches a run delivered, in which order, by their digests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.findings.contract import Finding
from iobench.recording.digests import BATCHES, SAMPLES, TABLE_DTYPE
from iobench.report import units
from iobench.report.document import Column, Quantity, Section, Table, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.analysis.run import RankRun

Integers = NDArray[np.int64]
Key = tuple[int, int]
N_EPOCHS: Final = 3
"""Epochs whose digest is shown."""
COLUMNS: Final = tuple(map(Column, ("epoch", "samples", "digest, in any order")))
OF_PROFILE: Final = "profile"
"""The loader of ``iobench profile``, whose number is -1."""
DELIVERED: Final = np.dtype(
    [
        ("loader", "<i8"), ("epoch", "<i8"), ("order", "<i8"), ("rank", "<i8"), ("batch", "<i8"),
        ("n_samples", "<i8"), ("known", "?"), ("high", "<u8"), ("low", "<u8"),
    ]
)  # fmt: skip
"""A batch that was delivered, or of earlier versions a sample of one."""


class EpochDelivery(msgspec.Struct, frozen=True, eq=False):
    """What one loader delivered in one epoch, ranks by turns; rows are of `DELIVERED`."""

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
    def by_epoch(self) -> dict[str, EpochDelivery]:
        """The same by name: ``LOADER/EPOCH``."""
        return {
            f"{OF_PROFILE if each.loader < 0 else each.loader}/{each.epoch}": each
            for each in self.epochs
        }

    @property
    def n_samples(self) -> int:
        """Samples in batches with a digest."""
        return sum(each.n_samples for each in self.epochs)


def delivered_samples(runs: Iterable[RankRun]) -> DeliveredSamples:
    """Return the batches that training processes of one run delivered, as all those of a `Run`."""
    ranks = list(runs)
    job = (ranks[0].job or ranks[0]) if ranks else None
    if job is None or (job.digests is None and not job.run_facts.digests):
        return DeliveredSamples(recorded=False)
    tables, ends = zip(*map(_of_rank, ranks), strict=True)
    table = np.concatenate(tables)
    # Of the same place in the epoch, one rank after the other.
    table = table[np.lexsort((table["rank"], table["order"], table["epoch"], table["loader"]))]
    keys = {*map(tuple, table[["loader", "epoch"]].tolist()), *(key for of in ends for key in of)}
    epochs = []
    for loader, epoch in sorted(keys):
        rows = table[(table["loader"] == loader) & (table["epoch"] == epoch)]
        complete = all(each.get((loader, epoch), False) for each in ends)
        complete = complete and bool(rows["known"].all()) and not job.run_facts.steps
        epochs.append(EpochDelivery(loader, epoch, complete, rows))
    if job.digests is None:
        return DeliveredSamples(True, tuple(epochs))
    return DeliveredSamples(True, tuple(epochs), job.digests.scheme, job.digests.n_damaged)


def _of_rank(run: RankRun) -> tuple[NDArray[Any], dict[Key, bool]]:
    """Return the batches one training process got, and which of its epochs came to their end."""
    deliveries = run.deliveries
    delivered = np.flatnonzero(deliveries.batch >= 0)
    rows, of = _digests_of(run, deliveries.batch[delivered])
    place = delivered[of]
    table = np.zeros(len(of), DELIVERED)
    table["loader"], table["epoch"] = deliveries.loader[place], deliveries.epoch[place]
    table["rank"], table["batch"] = run.rank, deliveries.batch[place]
    table["order"] = np.arange(len(table))
    for name in ("n_samples", "known", "high", "low"):
        table[name] = rows[name]
    evaluates = not run.is_script and bool(deliveries.evaluates.any())
    if not run.is_script and not evaluates:
        return table, _place_in_plan(table, run)
    ended: dict[Key, bool] = {}
    ends = deliveries.ends_round & deliveries.evaluates if evaluates else deliveries.ends_round
    for row in np.flatnonzero((deliveries.batch >= 0) | deliveries.ends_round).tolist():
        key = int(deliveries.loader[row]), int(deliveries.epoch[row])
        ended[key] = ended.get(key, False) or bool(ends[row])
    return table, ended


def _digests_of(run: RankRun, batches: Integers) -> tuple[NDArray[Any], Integers]:
    """Return the digests of delivered batches in order, and the place of each one's batch.

    A batch that is not whole, or was recorded differently twice, has one row, without samples.
    """
    rows = np.zeros(1, TABLE_DTYPE)
    rows["batch"] = -1
    if run.digests is not None:
        rows = np.concatenate((rows, run.digests.rows))
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


def _place_in_plan(table: NDArray[Any], run: RankRun) -> dict[Key, bool]:
    """Give each batch of a measured plan the epoch of its first sample; return which are whole."""
    size, n_samples = run.run_facts.batch_size or 1, run.run_facts.n_samples or 0
    counts = np.where(table["n_samples"] > 0, table["n_samples"], size)
    first = np.cumsum(counts) - counts
    # Of a stream of unknown length all is one epoch.
    table["epoch"] = first // n_samples if n_samples else 0
    n_delivered = int(counts.sum())
    return {
        (loader, epoch): n_samples > 0 and n_delivered >= (epoch + 1) * n_samples
        for loader, epoch in set(map(tuple, table[["loader", "epoch"]].tolist()))
    }


class EpochDigest(msgspec.Struct, frozen=True):
    """What one loader delivered in one epoch; ``digest`` is of all its batches in any order.

    ``n_samples`` are those in batches with a digest; None where one of these is not known.
    """

    n_samples: int
    digest: str | None


class SampleDigests(msgspec.Struct, frozen=True):
    """What a run delivered by its digests (XXH3, 128 bits), which are equal where batches are.

    ``scheme`` is what a digest is of: ``"batch"``, or ``"sample"`` in earlier versions; epochs are
    by ``LOADER/EPOCH``.
    """

    scheme: str
    epoch_digests: dict[str, EpochDigest]


def sample_digests(run: RankRun) -> SampleDigests | None:
    """Return what a training process delivered by digests; None where none were requested."""
    samples = delivered_samples([run])
    if not samples.recorded:
        return None
    epochs = {
        name: EpochDigest(each.n_samples, None if each.digest is None else f"{each.digest:032x}")
        for name, each in samples.by_epoch.items()
    }
    return SampleDigests(samples.scheme, epochs)


def samples_section(digests: SampleDigests) -> Section:
    """Return the digests of the first epochs, and what is not known of them."""
    rows = [
        (
            name.removeprefix(f"{OF_PROFILE}/"),
            Quantity(each.n_samples, "count"),
            each.digest or units.UNKNOWN,
        )
        for name, each in [*digests.epoch_digests.items()][:N_EPOCHS]
    ]
    table = Table("", COLUMNS, tuple(rows), note="Later epochs are in --json.")
    notes = []
    if digests.scheme == SAMPLES:
        notes.append("They are of another scheme than today's; compare them with their like alone.")
    if any(each.digest is None for each in digests.epoch_digests.values()):
        notes.append("Some batches have no digest: lost, or objects that iobench cannot read.")
    return Section("samples", "Samples", (table, *sentences(notes)), is_folded=True)


FINDING: Final = Finding(
    name="digests", order=600, struct=SampleDigests, figures=sample_digests, section=samples_section
)
"""Digests of samples, as the entry point names them."""
