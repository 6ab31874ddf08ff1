"""Which epoch a delivery is of, and which epochs are all there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.loop import ONLY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData
    from iobench.runs.run_facts import RunFacts

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]


def with_epochs(profile: RunData, loop: TrainingLoop, deliveries: Deliveries) -> Deliveries:
    """Return deliveries that know their epochs, which of these are whole, and which come again.

    The loader that trains says which epoch it is, of several that one with most batches;
    deliveries of others are of the epoch before them in time. Passes that brought no batch, as
    Keras begins one more after each epoch, are none. Where a script makes its loader again for each
    epoch, its loaders are counted instead, and where a loader does not number its epochs, its
    rounds.
    """
    renewed = _renewed(loop, deliveries)
    found = replace(
        deliveries,
        of_main=np.isin(deliveries.loader, [*renewed, deliveries.main]),
        of_epoch=_numbers(deliveries, renewed),
    )
    return replace(
        found,
        complete_epochs=_complete(found, profile.run_facts, is_script=profile.is_script),
        # The rounds of iobench profile are turns, not epochs: its workers live on.
        repeated=_repeated(found) if profile.is_script else deliveries.repeated,
    )


def _numbers(deliveries: Deliveries, renewed: Sequence[int]) -> Integers:
    brought = np.unique(deliveries.round[deliveries.batch >= 0])
    main = (deliveries.loader == deliveries.main) & np.isin(deliveries.round, brought)
    if len(renewed) > 1:
        main = np.isin(deliveries.loader, renewed)
        told = _in_order(deliveries.loader, main)
    elif (deliveries.epoch[main] >= 0).any():
        own = (deliveries.loader == deliveries.main) & (deliveries.epoch >= 0)
        empty = np.setdiff1d(deliveries.epoch[own], deliveries.epoch[main])
        less = np.searchsorted(empty, deliveries.epoch)
        told = np.where(main & (deliveries.epoch >= 0), deliveries.epoch - less, -1)
    else:
        told = _in_order(deliveries.round, main)
    return _filled(told, deliveries.round)


def _repeated(deliveries: Deliveries) -> Marks:
    """Tell which deliveries are of epochs as a long training has them: whole, after the first.

    An epoch is whole that was recorded from its first batch to its end, or that the training went
    on from to the next one; of under half the batches of the longest it is no epoch like others.
    """
    number, of_main = deliveries.of_epoch, deliveries.of_main
    main = of_main & (deliveries.batch >= 0)
    found, counts = np.unique(number[main], return_counts=True)
    if len(found) < 2:
        return np.zeros(len(deliveries), dtype=bool)
    begun = np.isin(found, _begun(deliveries))
    ended = np.isin(found, number[of_main & deliveries.ends_round])
    ended[:-1] = True
    ended |= counts == counts.max()
    whole = begun & ended & (2 * counts >= counts.max())
    whole[0] = False
    repeated: Marks = np.isin(number, found[whole])
    return repeated


def _begun(deliveries: Deliveries) -> Integers:
    """Return the epochs whose first batch was recorded.

    It is the first one of a round that is not resumed, or follows the last one of the epoch before
    it in that round.
    """
    rows = np.flatnonzero(deliveries.of_main & (deliveries.batch >= 0))
    number, rounds = deliveries.of_epoch[rows], deliveries.round[rows]
    follows = np.append(False, (number[1:] != number[:-1]) & (rounds[1:] == rounds[:-1]))
    first = (deliveries.position[rows] == 0) & ~deliveries.resumed[rows]
    begun: Integers = np.unique(number[first | follows[: len(rows)]])
    return begun


def _complete(deliveries: Deliveries, about: RunFacts, *, is_script: bool) -> frozenset[int]:
    """Return the epochs of which all batches were measured.

    Those with as many batches as the configuration has (none where a batch is more than all
    samples, and so of several epochs); where it does not say, those whose round was recorded from
    its first batch to its end. A script that never asks for an end, as Keras does not where it
    knows how many batches there are, ends its epochs itself: of several, those with most batches.
    """
    number, with_batch = deliveries.of_epoch, deliveries.batch >= 0
    found, counts = np.unique(number[with_batch], return_counts=True)
    if about.n_samples is not None and about.batch_size:
        return frozenset(_full(found, counts, about.n_samples, about.batch_size))
    begun = number[deliveries.of_main & with_batch & (deliveries.position == 0)]
    ended = number[deliveries.of_main & deliveries.ends_round]
    begun = _begun(deliveries) if is_script else begun
    if is_script and not len(ended):
        found, counts = np.unique(number[deliveries.of_main & with_batch], return_counts=True)
        ended = found[counts == counts.max()] if len(found) > 1 else ended
    return frozenset(found.tolist()) & {*begun.tolist()} & {*ended.tolist()}


def _full(numbers: Integers, counts: Integers, n_samples: int, batch_size: int) -> list[int]:
    """Return the epochs that have all batches.

    An epoch may have one more than fit into it: its last batch is short, or of the next one as
    well. Whether the last epoch misses that one is told from the epochs before it.
    """
    if not len(numbers) or batch_size > n_samples:
        return []
    full = counts >= n_samples // batch_size
    most = int(counts[:-1][full[:-1]].max(initial=0)) or -(-n_samples // batch_size)
    full[-1] &= bool(counts[-1] >= most)
    return numbers[full].tolist()  # type: ignore[no-any-return]


def _in_order(values: Integers, chosen: Marks) -> Integers:
    """Return the place of each chosen value among them, by first appearance; -1 elsewhere."""
    place = np.full(len(values), -1, dtype=np.int64)
    found, first, inverse = np.unique(values[chosen], return_index=True, return_inverse=True)
    order = np.empty(len(found), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(found))
    place[chosen] = order[inverse.reshape(-1)]
    return place


def _filled(told: Integers, rounds: Integers) -> Integers:
    """Return epochs where all are known: as the next one of the round, else the one before."""
    size = len(told)
    if not size or (told < 0).all():
        return np.zeros(size, dtype=np.int64)
    rows = np.arange(size)
    known = told >= 0
    before = np.maximum.accumulate(np.where(known, rows, -1))
    after = np.minimum.accumulate(np.where(known, rows, size)[::-1])[::-1]
    later = np.minimum(after, size - 1)
    use_after = (before < 0) | ((after < size) & (rounds[later] == rounds))
    filled: Integers = told[np.where(use_after, later, before)]
    return filled


def _renewed(loop: TrainingLoop, deliveries: Deliveries) -> list[int]:
    """Return the loaders that are the one that trains, made again for each epoch.

    They are alike and have one round each, with as many batches, or cut off.
    """
    loaders, main = loop.loaders, deliveries.main
    if main == ONLY:
        return []
    settings = loaders[main]
    evaluates = bool(deliveries.evaluates[deliveries.loader == main].any())
    alike = [
        number
        for number, each in loaders.items()
        if number != ONLY
        and each.kept == settings.kept
        and bool(deliveries.evaluates[deliveries.loader == number].any()) == evaluates
    ]
    if len(alike) < 2:
        return []
    rounds, n_batches, ended = _of_loaders(deliveries, alike)
    if rounds[main] != 1:
        return []
    return [
        number
        for number in alike
        if rounds[number] == 1
        and (n_batches[number] == n_batches[main] or (n_batches[number] and not ended[number]))
    ]


def _of_loaders(
    deliveries: Deliveries, numbers: list[int]
) -> tuple[dict[int, int], dict[int, int], dict[int, bool]]:
    """Return each loader's rounds, its batches, and whether it was found to be at its end."""
    rounds, n_batches, ended = {}, {}, {}
    for number in numbers:
        rows = deliveries.loader == number
        rounds[number] = len(np.unique(deliveries.round[rows]))
        n_batches[number] = int((deliveries.batch[rows] >= 0).sum())
        ended[number] = bool(deliveries.ends_round[rows].any())
    return rounds, n_batches, ended
