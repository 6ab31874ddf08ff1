"""Which samples a run delivered, in which order, by their digests."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.frozen import frozen
from iobench.json_keys import HIDDEN, figure
from iobench.recording.digests import TABLE_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Profile

Integers = NDArray[np.int64]
DIGEST_KEY: Final = np.dtype([("high", "<u8"), ("low", "<u8")])
"""A digest as NumPy sorts it."""
HALF: Final = 32
DIGESTING: Final = {"verify:digest", "other:digest"}
"""Where digests are made: in loading processes, or by the loop while the accelerator computes."""


@frozen
class EpochDigest:
    """What one loader delivered in one epoch.

    Parameters
    ----------
    loader : int or None
        Its number; None for the one of ``iobench profile``.
    epoch : int
        The pass over the samples.
    n_samples : int
        With a digest.
    is_complete : bool
        Whether all of the pass was delivered and recorded.
    digest : str or None
        Of all its samples in any order, in 32 hexadecimal digits; None where one of them is not
        known.
    """

    loader: int | None
    epoch: int
    n_samples: int
    is_complete: bool
    digest: str | None


@frozen
class SampleDigests:
    """What a run delivered by its digests, which are equal where samples are.

    Parameters
    ----------
    n_samples : int
        Delivered, with a digest.
    n_unknown_batches : int
        Delivered, of which some sample has none.
    n_damaged : int
        Records of digests that cannot be read.
    epochs : tuple of EpochDigest
        By loader, then epoch.
    spent_ns, wall_ns : int
        What digests took of all processes, and how long the run was.
    """

    n_samples: int
    n_unknown_batches: int
    n_damaged: int
    epochs: tuple[EpochDigest, ...]
    spent_ns: int = field(metadata=HIDDEN)
    wall_ns: int = field(metadata=HIDDEN)

    @figure
    def hash(self) -> str:
        """The function that makes a digest of a sample."""
        return "xxh3_128"


@frozen(eq=False)
class EpochSamples:
    """What one loader delivered in one epoch, over all training processes.

    Parameters
    ----------
    loader : int
        Its number; -1 for the one of ``iobench profile``.
    epoch : int
        The pass over the samples.
    is_complete : bool
        Whether all of the pass was delivered and recorded.
    n_batches : int
        Delivered.
    n_unknown_batches : int
        Of these, batches of which some sample has no digest, or no one that can be told.
    rank, batch, position, sample : ndarray of int64, shape (n_samples,)
        Of each sample with a digest, in order of delivery, the ranks by turns: who got it, its
        batch, its place in that, its number (-1 unknown).
    digests : ndarray of DIGEST_KEY, shape (n_samples,)
    """

    loader: int
    epoch: int
    is_complete: bool
    n_batches: int
    n_unknown_batches: int
    rank: Integers
    batch: Integers
    position: Integers
    sample: Integers
    digests: NDArray[Any]

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def digest(self) -> int | None:
        """The sum of the digests modulo 2^128: of the same samples in any order the same.

        A sum and not an exclusive or, in which a sample that comes twice would cancel out. None
        where a batch is unknown.
        """
        if self.n_unknown_batches:
            return None
        total = 0
        for shift, name in ((64, "high"), (0, "low")):
            halves = self.digests[name]
            low = int((halves & np.uint64((1 << HALF) - 1)).sum(dtype=np.uint64))
            high = int((halves >> np.uint64(HALF)).sum(dtype=np.uint64))
            total += (low + (high << HALF)) << shift
        return total % (1 << 128)


@frozen(eq=False)
class SamplesSeen:
    """All samples of a run.

    Parameters
    ----------
    recorded : bool
        Whether digests were asked for.
    epochs : tuple of EpochSamples
        By loader, then epoch.
    n_damaged : int
        Records of digests that cannot be read.
    """

    recorded: bool
    epochs: tuple[EpochSamples, ...]
    n_damaged: int

    @property
    def epoch_digests(self) -> Mapping[tuple[int, int], int | None]:
        """The digest of each epoch, by loader and epoch; None where a batch is unknown."""
        return {(each.loader, each.epoch): each.digest for each in self.epochs}

    @property
    def n_samples(self) -> int:
        """Samples with a digest."""
        return sum(len(each) for each in self.epochs)

    @property
    def n_unknown_batches(self) -> int:
        """Batches delivered of which some sample has no digest."""
        return sum(each.n_unknown_batches for each in self.epochs)


def sample_digests(run: RankRun) -> SampleDigests | None:
    """Return what a training process delivered by digests; None where none were asked for."""
    seen = samples_seen([run])
    if not seen.recorded:
        return None
    whole = run.exposure.whole
    spent = [(row.stage, row.busy_ns) for row in whole.stages]
    spent += [(row.stage, row.busy_ns) for row in whole.compute_stages]
    return SampleDigests(
        n_samples=seen.n_samples,
        n_unknown_batches=seen.n_unknown_batches,
        n_damaged=seen.n_damaged,
        epochs=tuple(
            EpochDigest(
                loader=None if each.loader < 0 else each.loader,
                epoch=each.epoch,
                n_samples=len(each),
                is_complete=each.is_complete,
                digest=None if each.digest is None else f"{each.digest:032x}",
            )
            for each in seen.epochs
        ),
        spent_ns=sum(busy_ns for stage, busy_ns in spent if stage in DIGESTING),
        wall_ns=whole.wall_ns,
    )


def samples_seen(runs: Iterable[RankRun]) -> SamplesSeen:
    """Return the samples that training processes of one run delivered.

    Parameters
    ----------
    runs : iterable of RankRun
        As all those of a `Run`; of one without digests nothing is known.

    Raises
    ------
    ProfileError
        If the waits of a training loop overlap.
    """
    parts = []
    profile: Profile | None = None
    for run in runs:
        profile = run.whole
        if profile.digests is None and not profile.about.digests:
            return SamplesSeen(recorded=False, epochs=(), n_damaged=0)
        parts.append(_of_rank(run))
    if profile is None:
        return SamplesSeen(recorded=False, epochs=(), n_damaged=0)
    table = np.concatenate([rows for rows, _ in parts]) if parts else np.zeros(0, SEEN_DTYPE)
    # Of the same place in the epoch, one rank after the other.
    table = table[np.lexsort((table["rank"], table["order"], table["epoch"], table["loader"]))]
    ends = {key for _, ended in parts for key in ended}
    epochs = []
    for key in sorted({*map(tuple, np.unique(table[["loader", "epoch"]]).tolist()), *ends}):
        rows = table[(table["loader"] == key[0]) & (table["epoch"] == key[1])]
        complete = all(ended.get(key, False) for _, ended in parts)
        epochs.append(_epoch(profile, rows, key, complete=complete))
    damaged = 0 if profile.digests is None else profile.digests.n_damaged
    return SamplesSeen(recorded=True, epochs=tuple(epochs), n_damaged=damaged)


SEEN_DTYPE: Final = np.dtype(
    [
        ("loader", "<i8"), ("epoch", "<i8"), ("rank", "<i8"), ("order", "<i8"), ("batch", "<i8"),
        ("position", "<i8"), ("sample", "<i8"), ("known", "?"), ("key", DIGEST_KEY),
    ]
)  # fmt: skip
"""A sample delivered, or one row for a batch of which nothing is known."""


def _of_rank(run: RankRun) -> tuple[NDArray[Any], dict[tuple[int, int], bool]]:
    """Return the samples one training process got, and which of its epochs came to their end."""
    profile, deliveries = run.profile, run.deliveries
    with_batch = np.flatnonzero(deliveries.batch >= 0)
    rows, of = _digests_of(profile, deliveries.batch[with_batch])
    table = np.zeros(len(of), SEEN_DTYPE)
    delivery = with_batch[of]
    table["loader"], table["epoch"] = deliveries.loader[delivery], deliveries.epoch[delivery]
    table["rank"], table["batch"] = run.rank, deliveries.batch[delivery]
    for name in ("position", "sample"):
        table[name] = rows[name]
    table["known"] = (rows["flags"] == 0) & (rows["n_samples"] > 0)
    for name in ("high", "low"):
        table["key"][name] = rows[name]
    evaluates = not profile.is_script and bool(deliveries.evaluates.any())
    if profile.is_script or evaluates:
        table["order"] = np.arange(len(table))
        ends = deliveries.ends_round
        return table, _ended(deliveries, ends & deliveries.evaluates if evaluates else ends)
    return table, _place_in_plan(table, profile)


def _digests_of(profile: Profile, batches: Integers) -> tuple[NDArray[Any], Integers]:
    """Return the digests of delivered batches in order, and the position of each one's batch.

    A batch that is not whole, or told differently twice, has one row of its own, without samples.
    """
    told = np.zeros(0, TABLE_DTYPE) if profile.digests is None else profile.digests.rows
    told = told[np.lexsort((told["position"], told["batch"]))]
    # What is told twice alike, as by a loop that two recordings saw, counts once.
    same = np.zeros(len(told), dtype=bool)
    if len(told) > 1:
        names = ["batch", "position", "high", "low", "n_samples", "flags"]
        same[1:] = np.all([told[name][1:] == told[name][:-1] for name in names], axis=0)
    told = told[~same]
    first = np.searchsorted(told["batch"], batches, side="left")
    count = np.searchsorted(told["batch"], batches, side="right") - first
    expected = np.zeros(len(batches), dtype=np.int64)
    there = count > 0
    expected[there] = told["n_samples"][first[there]]
    whole = there & (count == expected)
    count = np.where(whole, count, 1)
    of = np.repeat(np.arange(len(batches)), count)
    place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    rows = np.zeros(len(of), TABLE_DTYPE)
    good = whole[of]
    rows[good] = told[(first[of] + place)[good]]
    # As many rows as there should be, and yet not the right ones.
    wrong = np.zeros(len(batches), dtype=bool)
    wrong[of[good & (rows["position"] != place)]] = True
    bad = ~good | wrong[of]
    rows["n_samples"][bad], rows["position"][bad], rows["sample"][bad] = 0, -1, -1
    return rows, of


def _ended(deliveries: Deliveries, ends: NDArray[np.bool_]) -> dict[tuple[int, int], bool]:
    """Return of each loader's epochs whether one of these calls found nothing more.

    Where a profile evaluates, an epoch ends with that.
    """
    found: dict[tuple[int, int], bool] = {}
    for row in np.flatnonzero((deliveries.batch >= 0) | deliveries.ends_round).tolist():
        key = int(deliveries.loader[row]), int(deliveries.epoch[row])
        found[key] = found.get(key, False) or bool(ends[row])
    return found


def _place_in_plan(table: NDArray[Any], profile: Profile) -> dict[tuple[int, int], bool]:
    """Give each sample of a measured plan its own epoch and place in it; return which are whole.

    Its batches run on from one epoch to the next, and have the epoch of their first sample.
    """
    batch_size = profile.about.batch_size or 1
    weight = np.where(table["known"] | (table["position"] >= 0), 1, batch_size)
    order = np.cumsum(weight) - weight
    n_samples = profile.about.n_samples or 0
    # Of a stream of unknown length all is one epoch.
    table["order"], table["epoch"] = order, 0
    if n_samples > 0:
        table["epoch"], table["order"] = order // n_samples, order % n_samples
    found = {}
    for key in map(tuple, np.unique(table[["loader", "epoch"]]).tolist()):
        of_epoch = (table["loader"] == key[0]) & (table["epoch"] == key[1])
        found[key] = n_samples > 0 and int(weight[of_epoch].sum()) >= n_samples
    return found


def _epoch(
    profile: Profile, rows: NDArray[Any], key: tuple[int, int], *, complete: bool
) -> EpochSamples:
    known = rows["known"]
    batches = np.unique(rows[["rank", "batch"]])
    unknown = np.unique(rows[["rank", "batch"]][~known])
    rows = rows[known]
    steps = profile.about.steps
    return EpochSamples(
        loader=key[0],
        epoch=key[1],
        is_complete=complete and not len(unknown) and not steps,
        n_batches=len(batches),
        n_unknown_batches=len(unknown),
        rank=rows["rank"],
        batch=rows["batch"],
        position=rows["position"],
        sample=rows["sample"],
        digests=rows["key"],
    )
