"""What the training loop asked for and when it held it, in rounds; the frame of every figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.epoch_numbers import with_epochs
from iobench.analysis.loop import ONLY
from iobench.analysis.optimizer_steps import find_steps
from iobench.analysis.rounds import find_rounds
from iobench.analysis.time_intervals import union
from iobench.recording.kinds import Kind, Trait, is_one_of, kinds_that

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.analysis.exposure_figures import StepFigures, Window
    from iobench.analysis.loop import TrainingLoop
    from iobench.analysis.rounds import Rounds
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

PHASES: Final = ("startup", "fill", "first epoch", "steady", "drain")
STARTUP, FILL, FIRST_EPOCH, STEADY, DRAIN = range(5)

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


class Deliveries(msgspec.Struct, frozen=True):
    """The waits of one training loop, in order of time; arrays of one row per wait.

    Parameters
    ----------
    asked_ns, delivered_ns : ndarray of int64
        The wait is ``[asked_ns, delivered_ns)``.
    from_ns, until_ns : ndarray of int64
        The delivery's share of the wall time: from being asked for it (the start of the stretch
        for the first) to being asked for the next (the end of the stretch for the last). They
        tile the stretches; a stretch is a round, or rounds of several loaders that overlap.
    batch : ndarray of int64
        -1 for a wait that brought no batch.
    nbytes : ndarray of int64
        Of the batch, -1 where unknown.
    made_by : tuple of str
        ``"worker-<n>"``, ``"consumer"``, ``"threads"``, or ``""`` where unknown.
    starts, failed, ends_round : ndarray of bool
        What a wait without a batch was: for ``iter(loader)`` itself; cut off by an exception; a
        call that found nothing more.
    round : ndarray of int64
        Position of the round in time, from 0.
    position : ndarray of int64
        Deliveries of the round before this one.
    phase : ndarray of int64
        Index into `PHASES`.
    loader, workers : ndarray of int64
        Number of the loader, and its loading processes.
    numbered : ndarray of bool
        Whether it is of a script, whose waits tell who made their batches.
    role : ndarray of str
        What its pass is for: `TRAINING` or one of `EVALUATIONS`, ``""`` where unknown.
    resumed : ndarray of bool
        Whether its pass goes on where one of an earlier process was.
    repeated : ndarray of bool
        Whether it is of an epoch of a script as a long training has them: whole, after the first.
    of_epoch : ndarray of int64
        The number of its epoch, from 0 where its loader numbers from 0; of all loaders together,
        while ``epoch`` is what the delivery itself says.
    of_main : ndarray of bool
        Whether it is of the loader that trains, made again for each epoch or not.
    n_samples : ndarray of int64
        Samples of its batch; 0 without one, -1 where the batch size is unknown. The last batches
        of a round may be short: they are counted by their bytes if all before them, of that
        loader, have the same number of bytes.
    step : ndarray of int64
        The step of the optimiser that takes its batch, from 0; -1 where there is none, or nobody
        knows.
    steps : StepFigures or None
        What is known of these steps.
    complete_epochs : frozenset of int
        Of which all batches were measured.
    main : int
        Number of the loader that trains, as far as that is known; of several that one with most
        batches.
    process, thread : int
        Where the training loop runs; -1 if it never waited.
    n_unfinished_rounds : int
        Rounds without a recorded end.
    """

    asked_ns: Integers
    delivered_ns: Integers
    from_ns: Integers
    until_ns: Integers
    batch: Integers
    epoch: Integers
    nbytes: Integers
    made_by: tuple[str, ...]
    starts: Marks
    failed: Marks
    ends_round: Marks
    round: Integers
    position: Integers
    phase: Integers
    loader: Integers
    workers: Integers
    numbered: Marks
    role: NDArray[np.str_]
    resumed: Marks
    repeated: Marks
    of_epoch: Integers
    of_main: Marks
    n_samples: Integers
    step: Integers
    steps: StepFigures | None
    complete_epochs: frozenset[int]
    main: int
    process: int
    thread: int
    n_unfinished_rounds: int

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def wait_ns(self) -> Integers:
        """Length of each wait."""
        return self.delivered_ns - self.asked_ns

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

    def in_part(self, window: Window) -> Marks:
        """Tell which are of a part of the run: all; or `repeated`, or in steady state.

        Of the latter two those that train; where all passes evaluate, theirs.
        """
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
    def followed(self) -> Marks:
        """Tell after which the loop asked on, for a batch or for the end of its round."""
        asked_on = (self.batch >= 0) | self.ends_round
        followed: Marks = np.append(asked_on[1:], False)[: len(self)]
        return followed

    @property
    def trains(self) -> Marks:
        """Tell which are not: all, where nothing else was done."""
        return np.ones(len(self), dtype=bool) if self.evaluates.all() else ~self.evaluates

    @property
    def evaluates(self) -> Marks:
        """Tell which are of a validation, a test or a prediction."""
        return np.isin(self.role, EVALUATIONS)

    def of_batch(self, batches: Integers) -> Integers:
        """Return the delivery that brought each batch, -1 where none did."""
        order = np.argsort(self.batch, kind="stable")
        place = np.searchsorted(self.batch[order], batches)
        found = place < len(order)
        delivery = np.full(len(batches), -1, dtype=np.int64)
        delivery[found] = order[place[found]]
        found &= (batches >= 0) & (np.append(self.batch, -1)[delivery] == batches)
        return np.where(found, delivery, -1)

    def waiting_at(self, time_ns: Integers) -> Integers:
        """Return the delivery being waited for at each instant, -1 where none, or a round's end."""
        place = self.at(time_ns)
        if not len(self):
            return place
        waiting = (place >= 0) & ~self.ends_round[place]
        waiting &= (time_ns >= self.asked_ns[place]) & (time_ns < self.delivered_ns[place])
        return np.where(waiting, place, -1)


def find_deliveries(profile: RunData, loop: TrainingLoop) -> Deliveries:
    """Return what a training loop waited for."""
    waits = loop.waits
    rounds = find_rounds(profile, loop)
    asked, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    batch = waits["batch"].astype(np.int64)
    starts, failed = (
        (batch < 0) & (waits["label"] == profile.string_number(label))
        for label in ("startup", "failed")
    )
    numbered = rounds.numbered[rounds.of_wait]
    position = _positions(rounds, counted=~numbered | (batch >= 0))
    settings = [loop.loaders.get(number, loop.loaders[-1]) for number in rounds.loader.tolist()]
    filled_after = np.array([each.filled_after for each in settings], dtype=np.int64)
    loader = np.array([each.number for each in settings], dtype=np.int64)
    workers = np.array([each.workers for each in settings], dtype=np.int64)
    found = Deliveries(
        asked_ns=asked,
        delivered_ns=delivered,
        **_shares(rounds, asked),
        batch=batch,
        epoch=waits["epoch"].astype(np.int64),
        nbytes=waits["nbytes"].astype(np.int64),
        made_by=tuple(
            "" if number < 0 else profile.strings[detail]
            for number, detail in zip(batch.tolist(), waits["detail"].tolist(), strict=True)
        ),
        starts=starts,
        failed=failed,
        ends_round=(batch < 0) & ~starts & ~failed,
        round=rounds.of_wait,
        position=position,
        phase=_phases(position, batch, starts, filled_after[rounds.of_wait]),
        loader=loader[rounds.of_wait],
        workers=workers[rounds.of_wait],
        numbered=numbered,
        role=rounds.role[rounds.of_wait],
        resumed=rounds.resumed[rounds.of_wait],
        repeated=np.zeros(len(batch), dtype=bool),
        of_epoch=np.zeros(len(batch), dtype=np.int64),
        of_main=np.zeros(len(batch), dtype=bool),
        n_samples=np.zeros(len(batch), dtype=np.int64),
        step=np.full(len(batch), -1, dtype=np.int64),
        steps=None,
        complete_epochs=frozenset(),
        main=min(loop.loaders, key=lambda number: (number == ONLY, number)),
        process=loop.process,
        thread=loop.thread,
        n_unfinished_rounds=int((~rounds.recorded).sum()),
    )
    found = replace(found, role=_roles(profile, loop, found))
    numbers = by_importance(found, roles_of_loaders(found))
    main = numbers[0] if numbers else found.main
    found = replace(found, main=main, n_samples=_n_samples(loop, found))
    found = with_epochs(profile, loop, found)
    step, steps = find_steps(profile, loop, found)
    found = replace(found, step=step, steps=steps)
    return found if profile.is_script else replace(found, phase=_without_first_epoch(found))


def _roles(profile: RunData, loop: TrainingLoop, deliveries: Deliveries) -> NDArray[np.str_]:
    """Return what the pass of each delivery is for, as far as that is known.

    A pass trains if an optimiser took a step in it, or a backward pass or a step follows one of its
    batches. Else it is what it told itself; and evaluates if it lies within an evaluation or
    evaluations alone follow its batches, most of them, or its loader was asked with gradients
    switched off alone. An evaluation that asks another loader meanwhile tells of that one.
    """
    spans = profile.spans
    spans = spans[
        (spans["process"] == loop.process) & is_one_of(spans["kind"], TRAINS | {Kind.EVALUATE})
    ]
    found = deliveries.role.astype("U16")
    stepped = found == STEPPED
    without = [number for number, each in loop.loaders.items() if each.gradients is False]
    found[(found == "") & np.isin(deliveries.loader, without)] = EVALUATION
    trains = is_one_of(spans["kind"], TRAINS)
    place = deliveries.at(spans["start_ns"].astype(np.int64))
    around = spans[~trains]
    evaluated = _evaluated_rounds(deliveries, around, place[~trains])
    starts, ends = union(around["start_ns"].astype(np.int64), around["end_ns"].astype(np.int64))
    at = np.searchsorted(starts, deliveries.asked_ns, side="right") - 1
    inside = (at >= 0) & (deliveries.asked_ns < np.append(ends, 0)[at])
    within = np.unique(deliveries.round[inside])
    found[(found == "") & np.isin(deliveries.round, evaluated)] = EVALUATION
    found[~np.isin(found, EVALUATIONS) & np.isin(deliveries.round, within)] = EVALUATION
    trained = np.unique(deliveries.round[place[trains & (place >= 0)]])
    found[stepped | np.isin(deliveries.round, trained)] = TRAINING
    return found


def _evaluated_rounds(
    deliveries: Deliveries, evaluations: NDArray[Any], place: Integers
) -> Integers:
    """Return the rounds of which evaluations follow at least half of the batches."""
    low, high = (
        np.searchsorted(deliveries.asked_ns, evaluations[name].astype(np.int64), side="left")
        for name in ("start_ns", "end_ns")
    )
    of_another = [
        bool((deliveries.round[first:last] != deliveries.round[at]).any())
        for first, last, at in zip(low.tolist(), high.tolist(), place.tolist(), strict=True)
    ]
    followed = np.unique(place[(place >= 0) & ~np.array(of_another, dtype=bool)])
    n_rounds = int(deliveries.round.max(initial=-1)) + 1
    n_followed = np.bincount(deliveries.round[followed], minlength=n_rounds)
    n_batches = np.bincount(deliveries.round[deliveries.batch >= 0], minlength=n_rounds)
    found: Integers = np.flatnonzero((n_followed > 0) & (2 * n_followed >= n_batches))
    return found


def roles_of_loaders(deliveries: Deliveries) -> dict[int, str]:
    """Return what loaders are for, by number, those of which it is known.

    Of a loader that does both, what trains counts; of one for several evaluations, all of them. Of
    one that evaluates in some passes, and is not known in others, nobody knows.
    """
    found: dict[int, str] = {}
    for number in np.unique(deliveries.loader).tolist():
        rows = (deliveries.loader == number) & (deliveries.batch >= 0)
        roles = {*deliveries.role[rows].tolist()}
        if TRAINING in roles:
            found[number] = TRAINING
        elif roles and "" not in roles:
            found[number] = roles.pop() if len(roles) == 1 else EVALUATION
    return found


def by_importance(deliveries: Deliveries, roles: Mapping[int, str]) -> list[int]:
    """Return the numbers of the loaders that brought batches: the one that a report is about first.

    Those that train come before those of which nobody knows, and those that evaluate come last;
    of each sort the one with most batches is first.
    """
    numbers, counts = np.unique(deliveries.loader[deliveries.batch >= 0], return_counts=True)
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


def _shares(rounds: Rounds, asked: Integers) -> dict[str, Integers]:
    """Return from when until when each wait has the wall time, by the stretches of rounds."""
    of_round = rounds.stretch
    stretch = of_round[rounds.of_wait]
    starts = rounds.start_ns[np.flatnonzero(np.diff(of_round, prepend=-1))]
    ends = np.full(len(starts), np.iinfo(np.int64).min)
    np.maximum.at(ends, of_round, rounds.end_ns)
    first = np.diff(stretch, prepend=-1) > 0
    last = np.append(first[1:], True)
    following = np.append(asked[1:], 0)
    return {
        "from_ns": np.where(first, starts[stretch], asked),
        "until_ns": np.where(last[: len(asked)], ends[stretch], following[: len(asked)]),
    }


def _without_first_epoch(deliveries: Deliveries) -> Integers:
    """Return phases in which the first of several whole epochs is no part of the steady state.

    What is read for the first time may come from the device, and later from memory.
    """
    steady, number = deliveries.phase == STEADY, deliveries.of_epoch.min(initial=0)
    first = steady & (deliveries.of_epoch == number)
    if not deliveries.complete_epochs > {number} or not (steady & ~first).any():
        return deliveries.phase
    return np.where(first, FIRST_EPOCH, deliveries.phase)


def _phases(position: Integers, batch: Integers, starts: Marks, filled_after: Integers) -> Integers:
    phase = np.full(len(position), STEADY, dtype=np.int64)
    phase[position < filled_after] = FILL
    phase[position == 0] = STARTUP
    phase[batch < 0] = DRAIN
    phase[starts] = STARTUP
    return phase


def _n_samples(loop: TrainingLoop, deliveries: Deliveries) -> Integers:
    with_batch = deliveries.batch >= 0
    samples = np.where(with_batch, -1, 0).astype(np.int64)
    for number in np.unique(deliveries.loader[with_batch]).tolist():
        batch_size = loop.loaders.get(number, loop.loaders[ONLY]).batch_size
        if not batch_size:
            continue
        rows = np.flatnonzero(with_batch & (deliveries.loader == number))
        samples[rows] = batch_size
        last = _last_of_rounds(deliveries.round[rows], max(int(deliveries.workers[rows[0]]), 1))
        sizes = np.unique(deliveries.nbytes[rows[~last]])
        if len(sizes) != 1 or sizes[0] <= 0:
            continue
        held = deliveries.nbytes[rows] * batch_size
        short = last & (held > 0) & (held < sizes[0] * batch_size) & (held % sizes[0] == 0)
        samples[rows[short]] = held[short] // sizes[0]
    return samples


def _last_of_rounds(rounds: Integers, n_last: int) -> Marks:
    """Mark the last deliveries of each round: one for each process that may end with a rest."""
    order = np.argsort(rounds, kind="stable")
    _, first, counts = np.unique(rounds[order], return_index=True, return_counts=True)
    from_end = np.repeat(first + counts, counts) - np.arange(len(rounds))
    marks = np.zeros(len(rounds), dtype=bool)
    marks[order] = from_end <= n_last
    return marks
