"""What the training loop asked for and when it held it, by round, epoch and step of the optimiser.

An epoch is what the loader that trains says it is. A step ends where the optimiser steps; of
several, as of a GAN, that one bounds it that steps least often. The batches of a step are those
that were delivered to train on since the step before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from iobench.analysis.exposure_figures import StepFigures
from iobench.analysis.loop import ONLY, find_rounds, outermost
from iobench.analysis.time_intervals import places_of, union
from iobench.recording.kinds import Kind, Trait, is_one_of, kinds_that

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.loop import Rounds, TrainingLoop
    from iobench.recording.facts import LoaderFacts
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]
Texts = NDArray[np.str_]

STARTUP, FILL, FIRST_EPOCH, STEADY, DRAIN = range(5)
"""Phases of each round: its ``iter()`` and first delivery; others until its loader's queues are
full; of `iobench profile` the first of several whole epochs; the rest; calls without a batch."""

SERIAL: Final = "consumer"
"""What a delivery's detail says where the training loop made the batch itself."""
IN_THREADS: Final = "threads"
"""And where other threads of its process did."""
TRAINING: Final = "training"
EVALUATION: Final = "evaluation"
VALIDATION: Final = "validation"
EVALUATIONS: Final = (EVALUATION, VALIDATION, "test", "prediction")
"""Roles of passes that do not train; the first one where it is unknown which of the others."""
STEPPED: Final = "trains"
"""What a pass says in which an optimiser took a step."""
TRAINS: Final = kinds_that(Trait.TRAINS)
REGULAR_FRACTION: Final = 2 / 3
"""Of the steps, at least this share takes as many batches as most do: else nothing is said."""
KERAS: Final = "tensorflow"
"""Whose steps have several spans of a backward pass each, in the batches that were traced."""


class Waits(msgspec.Struct, frozen=True):
    """The waits of one training loop, in order of time, as their spans say; a row for each."""

    requested_ns: Integers
    delivered_ns: Integers
    from_ns: Integers
    until_ns: Integers
    own_ns: Integers  # recording's, after it and before the next one: neither wait nor computing
    batch: Integers  # -1 for a wait that brought no batch
    epoch: Integers  # as the delivery says
    nbytes: Integers  # of the batch, -1 where unknown
    maker: tuple[str, ...]  # "worker-<n>", "consumer", "threads", "" where unknown
    starts: Marks  # the wait was for iter(loader) itself,
    failed: Marks  # was cut off by an exception,
    ends_round: Marks  # or there was no further batch
    reads: Marks  # the loop read by itself meanwhile, and its batch was not whole
    round: Integers  # place of the round in time, from 0
    position: Integers  # deliveries of the round before this one
    loader: Integers  # number of the loader
    workers: Integers  # its loading processes
    numbered: Marks  # whether it is of a script, whose waits say who made their batches
    resumed: Marks  # whether its pass goes on where one of an earlier process was
    generator: NDArray[np.object_]  # that asked; "" where none did, None where nobody noted it
    process: int  # where the training loop runs, as `thread`; -1 if it never waited
    thread: int

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def wait_ns(self) -> Integers:
        """Length of each wait."""
        return self.delivered_ns - self.requested_ns

    @property
    def wall_ns(self) -> Integers:
        """Each delivery's share of the wall time."""
        return self.until_ns - self.from_ns

    def at(self, time_ns: Integers) -> Integers:
        """Return the delivery in whose share of a round each instant lies, -1 outside rounds."""
        if not len(self):
            return np.full(len(time_ns), -1, dtype=np.int64)
        place = np.searchsorted(self.from_ns, time_ns, side="right") - 1
        inside = (place >= 0) & (time_ns < self.until_ns[place])
        return np.where(inside, place, -1).astype(np.int64)

    @property
    def followed(self) -> Marks:
        """Tell after which the loop asked on, for a batch or for the end of its round."""
        asked_on = (self.batch >= 0) | self.ends_round
        followed: Marks = np.append(asked_on[1:], False)[: len(self)]
        return followed

    @property
    def overtaken(self) -> Marks:
        """Tell which are of a pass whose batches were taken as they came: not in order."""
        rows = np.flatnonzero(self.batch >= 0)
        rows = rows[np.argsort(self.round[rows], kind="stable")]
        same = np.diff(self.round[rows]) == 0
        late = rows[1:][same & (np.diff(self.batch[rows]) < 0)]
        return np.isin(self.round, self.round[late])

    def of_batch(self, batches: Integers) -> Integers:
        """Return the delivery that brought each batch, -1 where none did."""
        return places_of(batches, self.batch)

    def waiting_at(self, time_ns: Integers) -> Integers:
        """Return the delivery being waited for at each instant, -1 where none, or a round's end."""
        place = self.at(time_ns)
        if not len(self):
            return place
        waiting = (place >= 0) & ~self.ends_round[place]
        waiting &= (time_ns >= self.requested_ns[place]) & (time_ns < self.delivered_ns[place])
        return np.where(waiting, place, -1)


class Deliveries(Waits, frozen=True):
    """The waits of one training loop, and what follows from all of them together."""

    role: Texts  # of its pass: `TRAINING`, one of `EVALUATIONS`, or "" where unknown
    main: int  # number of the loader that trains, of several that one with most batches
    n_samples: Integers  # of its batch; 0 without one, -1 where the batch size is unknown
    of_epoch: Integers  # number of its epoch, from 0, of all loaders together
    of_main: Marks  # whether it is of the loader that trains, made again for each epoch or not
    complete_epochs: frozenset[int]  # of which all batches were measured
    repeated: Marks  # whether it is of an epoch of a script after the first, and whole
    step: Integers  # the step that takes its batch, from 0; -1: none, or unknown
    steps: StepFigures | None  # what is known of these steps
    phase: Integers  # `STARTUP`, `FILL`, `FIRST_EPOCH`, `STEADY` or `DRAIN`

    def in_part(self, window: Window) -> Marks:
        """Tell which are of a part of the run: all; or `repeated`, or in steady state."""
        if window == "whole":
            return np.ones(len(self), dtype=bool)
        chosen = self.repeated if window == "recurring" else self.phase == STEADY
        return chosen & self.trains

    def by_step(self, chosen: Marks, amounts: Integers) -> Integers:
        """Sum amounts, of shape (n_deliveries, ...), over steps all of whose batches are chosen.

        Exact integers, in the order of the steps; none where a step's batches are unknown.
        """
        number = np.where(chosen, self.step, -1)
        n_steps = int(self.step.max(initial=-1)) + 1
        of_all = np.bincount(self.step[self.step >= 0], minlength=n_steps)
        inside = np.bincount(number[number >= 0], minlength=n_steps)
        sums = np.zeros((n_steps, *amounts.shape[1:]), dtype=np.int64)
        np.add.at(sums, number[number >= 0], amounts[number >= 0])
        whole: Integers = sums[(inside == of_all) & (of_all > 0)]
        return whole

    @property
    def trains(self) -> Marks:
        """Tell which are not of an evaluation: all, where nothing else was done."""
        return np.ones(len(self), dtype=bool) if self.evaluates.all() else ~self.evaluates

    @property
    def evaluates(self) -> Marks:
        """Tell which are of a validation, a test or a prediction."""
        return np.isin(self.role, EVALUATIONS)


def find_deliveries(profile: RunData, loop: TrainingLoop) -> Deliveries:
    """Return what a training loop waited for: each column from those before it."""
    rounds = find_rounds(profile, loop)
    settings = [loop.loaders.get(number, loop.loaders[ONLY]) for number in rounds.loader.tolist()]
    waits = _find_waits(profile, loop, rounds, settings)
    role = _roles(profile, loop, waits, rounds.role[rounds.of_wait])
    zipped = _zipped(waits, role)
    for each in zipped:
        rows = np.isin(waits.loader, each)
        role[rows & (role == "")] = TRAINING if TRAINING in role[rows] else ""
    trains = ~np.isin(role, EVALUATIONS)
    trains |= not trains.any()
    numbers = by_importance(waits, roles_of_loaders(waits, role))
    main = numbers[0] if numbers else min(loop.loaders, key=lambda each: (each == ONLY, each))
    main = _that_ends(waits, next((each for each in zipped if main in each), [main]))
    renewed = _renewed(loop, waits, role, main, zipped)
    of_main = np.isin(waits.loader, [*renewed, main])
    of_epoch = _epochs(waits, main, renewed)
    cut = _cut(profile, waits, of_epoch)
    complete = _complete(waits, of_epoch, of_main, profile) - {*cut.tolist()}
    phase = _phases(waits, rounds, settings)
    repeated = np.zeros(len(waits), dtype=bool)
    if profile.is_script:
        repeated = _repeated(waits, of_epoch, of_main) & ~np.isin(of_epoch, cut)
    else:  # the rounds of iobench profile are turns, not epochs: its workers live on
        phase = _without_first_epoch(phase, of_epoch, complete)
    step, steps = _steps(profile, loop, waits, trains, of_epoch, zipped)
    return Deliveries(
        **asdict(waits),
        role=role,
        main=main,
        n_samples=_n_samples(loop, waits),
        of_epoch=of_epoch,
        of_main=of_main,
        complete_epochs=complete,
        repeated=repeated,
        step=step,
        steps=steps,
        phase=phase,
    )


def _cut(profile: RunData, waits: Waits, of_epoch: Integers) -> Integers:
    """Return the epochs of which some batches have no details."""
    summed = profile.summed
    if summed is None:
        return np.empty(0, dtype=np.int64)
    at = (waits.until_ns == summed.from_ns) | (waits.from_ns == summed.until_ns)
    return np.unique(of_epoch[at])


def _find_waits(
    profile: RunData, loop: TrainingLoop, rounds: Rounds, settings: Sequence[LoaderFacts]
) -> Waits:
    spans, of_wait = loop.waits, rounds.of_wait
    requested, batch = spans["start_ns"].astype(np.int64), spans["batch"].astype(np.int64)
    starts, failed = (
        (batch < 0) & (spans["label"] == profile.string_number(label))
        for label in ("startup", "failed")
    )
    reads = (batch < 0) & (spans["flags"] != 0) & (spans["end_ns"] > spans["start_ns"])
    from_ns, until_ns = _shares(rounds, requested)
    numbered = rounds.numbered[of_wait]
    return Waits(
        requested_ns=requested,
        delivered_ns=spans["end_ns"].astype(np.int64),
        from_ns=from_ns,
        until_ns=until_ns,
        own_ns=_own(spans, until_ns),
        batch=batch,
        epoch=spans["epoch"].astype(np.int64),
        nbytes=spans["nbytes"].astype(np.int64),
        maker=tuple(
            "" if number < 0 else SERIAL if own else profile.strings[detail]
            for number, detail, own in zip(
                batch.tolist(), spans["detail"].tolist(), spans["flags"].tolist(), strict=True
            )
        ),
        starts=starts,
        failed=failed,
        ends_round=(batch < 0) & ~starts & ~failed & ~reads,
        reads=reads,
        round=of_wait,
        position=_positions(rounds, counted=~numbered | (batch >= 0)),
        loader=np.array([each.number for each in settings], dtype=np.int64)[of_wait],
        workers=np.array([each.workers for each in settings], dtype=np.int64)[of_wait],
        numbered=numbered,
        resumed=rounds.resumed[of_wait],
        generator=rounds.generator[of_wait],
        process=loop.process,
        thread=loop.thread,
    )


def _own(waits: NDArray[Any], until_ns: Integers) -> Integers:
    """Return what recording took after each wait, as the next one of its stretch says."""
    requested, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    own = np.append(waits["cpu_ns"][1:], 0)[: len(waits)].astype(np.int64)
    own[until_ns != np.append(requested[1:], -1)[: len(waits)]] = 0
    return np.clip(own, 0, until_ns - delivered)


def _roles(profile: RunData, loop: TrainingLoop, waits: Waits, said: Texts) -> Texts:
    """Return what the pass of each delivery is for, as far as that is known.

    A pass trains if an optimiser took a step in it, or a backward pass or a step follows one of its
    batches. Else it is what it says of itself; and evaluates if it lies within an evaluation or
    evaluations alone follow its batches, most of them, or its loader was asked with gradients
    switched off alone. An evaluation that asks another loader meanwhile tells of that one.
    """
    spans = profile.spans
    spans = spans[
        (spans["process"] == loop.process) & is_one_of(spans["kind"], TRAINS | {Kind.EVALUATE})
    ]
    result = said.astype("U16")
    stepped = result == STEPPED
    without = [number for number, each in loop.loaders.items() if each.gradients is False]
    result[(result == "") & np.isin(waits.loader, without)] = EVALUATION
    trains = is_one_of(spans["kind"], TRAINS)
    place = waits.at(spans["start_ns"].astype(np.int64))
    around = spans[~trains]
    evaluated = _evaluated_rounds(waits, around, place[~trains])
    starts, ends = union(around["start_ns"].astype(np.int64), around["end_ns"].astype(np.int64))
    at = np.searchsorted(starts, waits.requested_ns, side="right") - 1
    inside = (at >= 0) & (waits.requested_ns < np.append(ends, 0)[at])
    within = np.unique(waits.round[inside])
    result[(result == "") & np.isin(waits.round, evaluated)] = EVALUATION
    result[~np.isin(result, EVALUATIONS) & np.isin(waits.round, within)] = EVALUATION
    trained = np.unique(waits.round[place[trains & (place >= 0)]])
    result[stepped | np.isin(waits.round, trained)] = TRAINING
    return result


def _evaluated_rounds(waits: Waits, evaluations: NDArray[Any], place: Integers) -> Integers:
    """Return the rounds of which evaluations follow at least half of the batches."""
    low, high = (
        np.searchsorted(waits.requested_ns, evaluations[name].astype(np.int64), side="left")
        for name in ("start_ns", "end_ns")
    )
    of_another = [
        bool((waits.round[first:last] != waits.round[at]).any())
        for first, last, at in zip(low.tolist(), high.tolist(), place.tolist(), strict=True)
    ]
    followed = np.unique(place[(place >= 0) & ~np.array(of_another, dtype=bool)])
    n_rounds = int(waits.round.max(initial=-1)) + 1
    n_followed = np.bincount(waits.round[followed], minlength=n_rounds)
    n_batches = np.bincount(waits.round[waits.batch >= 0], minlength=n_rounds)
    result: Integers = np.flatnonzero((n_followed > 0) & (2 * n_followed >= n_batches))
    return result


def roles_of_loaders(waits: Waits, role: Texts) -> dict[int, str]:
    """Return what loaders are for, by number, those of which it is known."""
    result: dict[int, str] = {}
    for number in np.unique(waits.loader).tolist():
        rows = (waits.loader == number) & (waits.batch >= 0)
        roles = {*role[rows].tolist()}
        if TRAINING in roles:
            result[number] = TRAINING
        elif roles and "" not in roles:
            result[number] = roles.pop() if len(roles) == 1 else EVALUATION
    return result


def by_importance(waits: Waits, roles: Mapping[int, str]) -> list[int]:
    """Return the loaders that brought batches: that trains first, that evaluate last."""
    numbers, counts = np.unique(waits.loader[waits.batch >= 0], return_counts=True)
    rank = {TRAINING: 0} | dict.fromkeys(EVALUATIONS, 2)
    return sorted(
        numbers.tolist(),
        key=lambda number: (
            rank.get(roles.get(number, ""), 1),
            -counts[numbers == number][0],
            number,
        ),
    )


def _positions(rounds: Rounds, *, counted: Marks) -> Integers:
    """Return how many deliveries of its round came before each wait."""
    position = np.zeros(len(counted), dtype=np.int64)
    order = np.argsort(rounds.of_wait, kind="stable")
    number = rounds.of_wait[order]
    before: Integers = np.cumsum(counted[order]) - counted[order]
    if len(order):
        first = np.flatnonzero(np.diff(number, prepend=-1) > 0)
        position[order] = before - before[first][number] + rounds.n_before[number]
    return position


def _shares(rounds: Rounds, requested: Integers) -> tuple[Integers, Integers]:
    """Return from when until when each wait has the wall time, by the stretches of rounds.

    An evaluation's last one has no time of the training around it.
    """
    of_round = rounds.stretch
    stretch = of_round[rounds.of_wait]
    starts = rounds.start_ns[np.flatnonzero(np.diff(of_round, prepend=-1))]
    ends = np.full(len(starts), np.iinfo(np.int64).min)
    np.maximum.at(ends, of_round, rounds.end_ns)
    first = np.diff(stretch, prepend=-1) > 0
    last = np.append(first[1:], True)
    following = np.append(requested[1:], 0)
    evaluates = np.isin(rounds.role[rounds.of_wait], EVALUATIONS)
    ends = np.where(evaluates, rounds.end_ns[rounds.of_wait], ends[stretch])
    return (
        np.where(first, starts[stretch], requested),
        np.where(last[: len(requested)], ends, following[: len(requested)]),
    )


def _phases(waits: Waits, rounds: Rounds, settings: Sequence[LoaderFacts]) -> Integers:
    filled = np.array([each.filled_after for each in settings], dtype=np.int64)
    position, filled_after = waits.position, filled[rounds.of_wait]
    phase = np.full(len(position), STEADY, dtype=np.int64)
    phase[position < filled_after] = FILL
    phase[position == 0] = STARTUP
    phase[(waits.batch < 0) & ~waits.reads] = DRAIN
    phase[waits.starts] = STARTUP
    return phase


def _without_first_epoch(phase: Integers, of_epoch: Integers, complete: frozenset[int]) -> Integers:
    """Return phases in which the first of several whole epochs is no part of the steady state."""
    steady, number = phase == STEADY, of_epoch.min(initial=0)
    first = steady & (of_epoch == number)
    if not complete > {number} or not (steady & ~first).any():
        return phase
    return np.where(first, FIRST_EPOCH, phase)


def _n_samples(loop: TrainingLoop, waits: Waits) -> Integers:
    """Return the samples of each batch."""
    with_batch = waits.batch >= 0
    samples = np.where(with_batch, -1, 0).astype(np.int64)
    for number in np.unique(waits.loader[with_batch]).tolist():
        batch_size = loop.loaders.get(number, loop.loaders[ONLY]).batch_size
        if not batch_size:
            continue
        rows = np.flatnonzero(with_batch & (waits.loader == number))
        samples[rows] = batch_size
        last = _last_of_rounds(waits.round[rows], max(int(waits.workers[rows[0]]), 1))
        sizes = np.unique(waits.nbytes[rows[~last]])
        if len(sizes) != 1 or sizes[0] <= 0:
            continue
        held = waits.nbytes[rows] * batch_size
        short = last & (held > 0) & (held < sizes[0] * batch_size) & (held % sizes[0] == 0)
        samples[rows[short]] = held[short] // sizes[0]
    return samples


def _last_of_rounds(rounds: Integers, n_last: int) -> Marks:
    """Mark the last waits of each round: one for each process that may end with a rest."""
    order = np.argsort(rounds, kind="stable")
    _, first, counts = np.unique(rounds[order], return_index=True, return_counts=True)
    from_end = np.repeat(first + counts, counts) - np.arange(len(rounds))
    marks = np.zeros(len(rounds), dtype=bool)
    marks[order] = from_end <= n_last
    return marks


def _epochs(waits: Waits, main: int, renewed: Sequence[int]) -> Integers:
    """Return the epoch of each delivery.

    The loader that trains says which epoch it is; deliveries of others are of the epoch before them
    in time. Passes that brought no batch, as Keras begins one more after each epoch, are none.
    Where a script makes its loader again for each epoch, its loaders are counted instead, and where
    a loader does not number its epochs, its rounds.
    """
    brought = np.isin(waits.round, np.unique(waits.round[waits.batch >= 0]))
    own = waits.loader == main
    if len(renewed) > 1:
        said = _order_of(waits.loader, np.isin(waits.loader, renewed))
    elif (waits.epoch[own & brought] >= 0).any():
        numbered = waits.epoch >= 0
        empty = np.setdiff1d(waits.epoch[own & numbered], waits.epoch[own & brought])
        less = np.searchsorted(empty, waits.epoch)
        said = np.where(own & brought & numbered, waits.epoch - less, -1)
    else:
        said = _order_of(waits.round, own & brought)
    return _filled(said, waits.round)


def _repeated(waits: Waits, number: Integers, of_main: Marks) -> Marks:
    """Tell which waits are of epochs as a long training has them: whole, after the first."""
    main = of_main & (waits.batch >= 0)
    result, counts = np.unique(number[main], return_counts=True)
    if len(result) < 2:
        return np.zeros(len(waits), dtype=bool)
    begun = np.isin(result, _begun(waits, number, of_main))
    ended = np.isin(result, number[of_main & waits.ends_round])
    ended[:-1] = True
    ended |= counts == counts.max()
    whole = begun & ended & (2 * counts >= counts.max())
    whole[0] = False
    repeated: Marks = np.isin(number, result[whole])
    return repeated


def _begun(waits: Waits, of_epoch: Integers, of_main: Marks) -> Integers:
    """Return the epochs whose first batch was recorded."""
    rows = np.flatnonzero(of_main & (waits.batch >= 0))
    number, rounds = of_epoch[rows], waits.round[rows]
    follows = np.append(False, (number[1:] != number[:-1]) & (rounds[1:] == rounds[:-1]))
    first = (waits.position[rows] == 0) & ~waits.resumed[rows]
    begun: Integers = np.unique(number[first | follows[: len(rows)]])
    return begun


def _complete(waits: Waits, number: Integers, of_main: Marks, profile: RunData) -> frozenset[int]:
    """Return the epochs of which all batches were measured.

    Those with as many batches as the configuration has (none where a batch is more than all
    samples, and so of several epochs); where it does not say, those whose round was recorded from
    its first batch to its end. A script that never asks for an end, as Keras does not where it
    knows how many batches there are, ends its epochs itself: of several, those with most batches.
    """
    about, with_batch = profile.run_facts, waits.batch >= 0
    result, counts = np.unique(number[with_batch], return_counts=True)
    if about.n_samples is not None and about.batch_size:
        return frozenset(_full(result, counts, about.n_samples, about.batch_size))
    begun = number[of_main & with_batch & (waits.position == 0)]
    ended = number[of_main & waits.ends_round]
    begun = _begun(waits, number, of_main) if profile.is_script else begun
    if profile.is_script and not len(ended):
        result, counts = np.unique(number[of_main & with_batch], return_counts=True)
        ended = result[counts == counts.max()] if len(result) > 1 else ended
    return frozenset(result.tolist()) & {*begun.tolist()} & {*ended.tolist()}


def _full(numbers: Integers, counts: Integers, n_samples: int, batch_size: int) -> list[int]:
    """Return the epochs that have all batches."""
    if not len(numbers) or batch_size > n_samples:
        return []
    full = counts >= n_samples // batch_size
    most = int(counts[:-1][full[:-1]].max(initial=0)) or -(-n_samples // batch_size)
    full[-1] &= bool(counts[-1] >= most)
    return numbers[full].tolist()  # type: ignore[no-any-return]


def _order_of(values: Integers, chosen: Marks) -> Integers:
    """Return the place of each chosen value among them, by first appearance; -1 elsewhere."""
    place = np.full(len(values), -1, dtype=np.int64)
    result, first, inverse = np.unique(values[chosen], return_index=True, return_inverse=True)
    order = np.empty(len(result), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(result))
    place[chosen] = order[inverse.reshape(-1)]
    return place


def _filled(said: Integers, rounds: Integers) -> Integers:
    """Return epochs where all are known: as the next one of the round, else the one before."""
    size = len(said)
    if not size or (said < 0).all():
        return np.zeros(size, dtype=np.int64)
    rows = np.arange(size)
    known = said >= 0
    before = np.maximum.accumulate(np.where(known, rows, -1))
    after = np.minimum.accumulate(np.where(known, rows, size)[::-1])[::-1]
    later = np.minimum(after, size - 1)
    use_after = (before < 0) | ((after < size) & (rounds[later] == rounds))
    filled: Integers = said[np.where(use_after, later, before)]
    return filled


def _zipped(waits: Waits, role: Texts) -> list[list[int]]:
    """Return the loaders of each pass over several, in the order in which they are asked.

    Their asks alternate, each within one round of its own, and none is of an evaluation.
    """
    rows = np.flatnonzero((waits.batch >= 0) & ~np.isin(role, EVALUATIONS))
    of_row, rounds = waits.loader[rows], waits.round[rows]
    result: list[list[int]] = []
    _, first = np.unique(of_row, return_index=True)
    for number in of_row[np.sort(first)].tolist():
        group = next((each for each in result if _alternate(of_row, rounds, each[0], number)), None)
        if group is None:
            result.append([number])
        else:
            group.append(number)
    return [each for each in result if len(each) > 1]


def _alternate(of_row: Integers, rounds: Integers, one: int, other: int) -> bool:
    """Tell whether two loaders are asked in turns, but where a pass ends."""
    mine = (of_row == one) | (of_row == other)
    loader, number = of_row[mine], rounds[mine]
    if ((loader[1:] == loader[:-1]) & (number[1:] == number[:-1])).any():
        return False
    goes_on = (number[2:] == number[:-2]) & (loader[1:-1] != loader[2:])
    return {one, other} == {*loader[2:][goes_on].tolist()}


def _that_ends(waits: Waits, loaders: Sequence[int]) -> int:
    """Return the loader whose end ends a pass over these: that ends least often, of several."""
    n_ends = [int(waits.ends_round[waits.loader == each].sum()) for each in loaders]
    ended = [each for each, times in zip(loaders, n_ends, strict=True) if times]
    return min(ended or loaders, key=lambda each: n_ends[loaders.index(each)])


def _renewed(
    loop: TrainingLoop, waits: Waits, role: Texts, main: int, zipped: Sequence[Sequence[int]]
) -> list[int]:
    """Return the loaders that are the one that trains, made again for each epoch."""
    loaders = loop.loaders
    if main == ONLY:
        return []
    evaluating = np.unique(waits.loader[np.isin(role, EVALUATIONS)])
    further = {number for each in zipped for number in each} - {
        main, *(_that_ends(waits, each) for each in zipped)
    }  # fmt: skip
    alike = [
        number
        for number, each in loaders.items()
        if number != ONLY
        and number not in further
        and each.identity == loaders[main].identity
        and (number in evaluating) == (main in evaluating)
        and len(np.unique(waits.round[waits.loader == number])) == 1
    ]
    if len(alike) < 2 or main not in alike:
        return []
    n_batches = {each: int((waits.batch[waits.loader == each] >= 0).sum()) for each in alike}
    ended = {each: bool(waits.ends_round[waits.loader == each].any()) for each in alike}
    return [
        each
        for each in alike
        if n_batches[each] == n_batches[main] or (n_batches[each] and not ended[each])
    ]


def _steps(
    profile: RunData,
    loop: TrainingLoop,
    waits: Waits,
    trains: Marks,
    of_epoch: Integers,
    zipped: Sequence[Sequence[int]],
) -> tuple[Integers, StepFigures | None]:
    """Return the step of each delivery, from 0, and what is known of steps."""
    step = np.full(len(waits), -1, dtype=np.int64)
    rows = np.flatnonzero((waits.batch >= 0) & trains)
    if not len(rows):
        return step, None
    facts = profile.facts_of(loop.process) if loop.process >= 0 else None
    requested = profile.run_facts.batches_per_step
    n_batches = requested or (None if facts is None else facts.batches_per_step)
    if n_batches or not profile.is_script:
        epochs = of_epoch[rows]
        if not profile.is_script or not requested:
            # Emulated steps, and those that Keras counts, go on from one epoch to the next.
            epochs = np.zeros(len(rows), dtype=np.int64)
        step[rows] = _in_steps(epochs, n_batches or 1)
        return step, StepFigures(len(np.unique(step[rows])), n_batches or 1)
    spans = profile.spans
    lane = spans[(spans["process"] == loop.process) & (spans["thread"] == loop.thread)]
    marks = lane[(lane["kind"] == Kind.STEP) & (lane["flags"] == 0)]
    used_ns = waits.delivered_ns[rows]
    loaders = np.unique(waits.loader[rows]).tolist()
    if all(loop.loaders[number].framework != KERAS for number in loaders):
        used_ns = _used(waits, rows, outermost(lane, {Kind.BACKWARD})["start_ns"])
    at = np.searchsorted(used_ns, marks["end_ns"].astype(np.int64), side="right") - 1
    ends = {
        profile.strings[detail]: np.unique(at[(marks["detail"] == detail) & (at >= 0)])
        for detail in np.unique(marks["detail"]).tolist()
    }
    if len(ends) > 1:
        ends.pop("", None)  # the script's own span around one of the others
    known = [places for places in ends.values() if len(places)]
    sizes = {len(each) for each in zipped}
    if not known and len(sizes) == 1 and {*loaders} == {each for some in zipped for each in some}:
        size = sizes.pop()
        first = np.isin(waits.loader[rows], [each[0] for each in zipped])
        number = np.maximum(np.cumsum(first) - 1, 0)
        whole = np.bincount(number) == size  # one that begins and finds the other's end is none
        step[rows] = np.where(whole[number], number, -1)
        return step, StepFigures(int(whole.sum()), size)
    if not known:
        return step, StepFigures()
    rarest = min(known, key=len)
    number = np.searchsorted(rarest, np.arange(len(rows)), side="left")
    number[number == len(rarest)] = -1
    result = _regular(number, n_optimizers=len(known))
    if result.batches_per_step is not None:
        step[rows] = number
    return step, result


def _used(waits: Waits, rows: Integers, backward_ns: Integers) -> Integers:
    """Return when each batch was trained on: from its delivery, or its backward pass."""
    # Frameworks draw batches ahead: of as many backward passes as batches the n-th is of the n-th.
    used = waits.delivered_ns[rows].copy()
    rounds, first = np.unique(waits.round[rows], return_index=True)
    order = np.argsort(first)
    begins = waits.requested_ns[rows][first[order]]
    bounds = np.searchsorted(backward_ns, np.append(begins, np.iinfo(np.int64).max))
    for place, number in enumerate(rounds[order].tolist()):
        mine = np.flatnonzero(waits.round[rows] == number)
        result = backward_ns[bounds[place] : bounds[place + 1]].astype(np.int64)
        if len(result) == len(mine) and (result >= used[mine]).all():
            used[mine] = result
    return np.maximum.accumulate(used)


def _in_steps(epochs: Integers, n_batches: int) -> Integers:
    """Return the steps of batches of which so many are one; the last of an epoch may have fewer."""
    step = np.zeros(len(epochs), dtype=np.int64)
    so_far = 0
    for epoch in np.unique(epochs).tolist():
        rows = np.flatnonzero(epochs == epoch)
        step[rows] = so_far + np.arange(len(rows)) // n_batches
        so_far += -(-len(rows) // n_batches)
    return step


def _regular(number: Integers, *, n_optimizers: int) -> StepFigures:
    """Return how many batches most steps take; unknown where they differ, or few are of steps."""
    sizes = np.bincount(number[number >= 0])
    sizes = sizes[sizes > 0]
    usual = int(np.sort(sizes)[len(sizes) // 2])
    regular = (sizes == usual).mean()
    if n_optimizers > 1:  # another one may step where this one does not
        regular = min(regular, usual * int((sizes == usual).sum()) / len(number)) * (len(sizes) > 1)
    return StepFigures(len(sizes), usual) if regular >= REGULAR_FRACTION else StepFigures()
