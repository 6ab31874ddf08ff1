"""Which batches one step of the optimiser takes: as whoever ran it said, else by its own steps.

A step ends where the optimiser steps; of several optimisers that one bounds it that steps least
often, as a GAN's generator does. The batches of a step are those that were delivered to train on
since the step before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.exposure_figures import StepFigures
from iobench.analysis.rounds import outermost
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]

REGULAR_FRACTION: Final = 2 / 3
"""Of the steps, at least this share takes as many batches as most do: else nothing is said."""
KERAS: Final = "tensorflow"
"""Whose steps have several spans of a backward pass each, in the batches that were traced."""
NONE_SEEN: Final = "no optimiser's step was seen"


def find_steps(
    profile: RunData, loop: TrainingLoop, deliveries: Deliveries
) -> tuple[Integers, StepFigures | None]:
    """Return the step of each delivery, from 0, and what is known of steps.

    -1 is of none: batches that do not train or are followed by no step, waits without a batch.
    None where nothing was delivered to train on.
    """
    step = np.full(len(deliveries), -1, dtype=np.int64)
    rows = np.flatnonzero((deliveries.batch >= 0) & deliveries.trains)
    if not len(rows):
        return step, None
    told = profile.facts_of(loop.process) if loop.process >= 0 else None
    asked = profile.run_facts.batches_per_step
    by_framework = None if told is None else told.batches_per_step
    if asked or by_framework or not profile.is_script:
        n_batches = asked or by_framework or 1
        epochs = deliveries.of_epoch[rows]
        if not profile.is_script or not asked:
            # Emulated steps, and those that Keras counts, go on from one epoch to the next.
            epochs = np.zeros(len(rows), dtype=np.int64)
        step[rows] = _in_order(epochs, n_batches)
        known_by = "loop"
        if profile.is_script:
            known_by = "option" if asked else "framework"
        return step, replace(_figures(step[rows], known_by), batches_per_step=n_batches)
    spans = profile.spans
    lane = spans[(spans["process"] == loop.process) & (spans["thread"] == loop.thread)]
    marks = lane[(lane["kind"] == Kind.STEP) & (lane["flags"] == 0)]
    used_ns = deliveries.delivered_ns[rows]
    asked_of = np.unique(deliveries.loader[rows]).tolist()
    if all(loop.loaders[number].framework != KERAS for number in asked_of):
        used_ns = _used(deliveries, rows, outermost(lane, {Kind.BACKWARD})["start_ns"])
    at = np.searchsorted(used_ns, marks["end_ns"].astype(np.int64), side="right") - 1
    ends = {
        profile.strings[detail]: np.unique(at[(marks["detail"] == detail) & (at >= 0)])
        for detail in np.unique(marks["detail"]).tolist()
    }
    if len(ends) > 1:
        ends.pop("", None)  # the script's own span around one of the others
    ends = {name: places for name, places in ends.items() if len(places)}
    if not ends:
        return step, StepFigures(why_unknown=NONE_SEEN)
    name = min(ends, key=lambda each: len(ends[each]))
    number = np.searchsorted(ends[name], np.arange(len(rows)), side="left")
    number[number == len(ends[name])] = -1
    found = _figures(number, "optimizer", name, len(ends))
    if found.batches_per_step is not None:
        step[rows] = number
    return step, found


def _used(deliveries: Deliveries, rows: Integers, backward_ns: Integers) -> Integers:
    """Return when each batch was trained on: from its delivery, or its backward pass.

    Frameworks draw batches ahead of their use. Where a pass over a loader has as many backward
    passes as batches, the n-th is of the n-th.
    """
    used = deliveries.delivered_ns[rows].copy()
    rounds, first = np.unique(deliveries.round[rows], return_index=True)
    order = np.argsort(first)
    begins = deliveries.asked_ns[rows][first[order]]
    bounds = np.searchsorted(backward_ns, np.append(begins, np.iinfo(np.int64).max))
    for place, number in enumerate(rounds[order].tolist()):
        mine = np.flatnonzero(deliveries.round[rows] == number)
        found = backward_ns[bounds[place] : bounds[place + 1]].astype(np.int64)
        if len(found) == len(mine) and (found >= used[mine]).all():
            used[mine] = found
    return np.maximum.accumulate(used)


def _in_order(epochs: Integers, n_batches: int) -> Integers:
    """Return the steps of batches of which so many are one; the last of an epoch may have fewer."""
    step = np.zeros(len(epochs), dtype=np.int64)
    so_far = 0
    for epoch in np.unique(epochs).tolist():
        rows = np.flatnonzero(epochs == epoch)
        step[rows] = so_far + np.arange(len(rows)) // n_batches
        so_far += -(-len(rows) // n_batches)
    return step


def _figures(
    number: Integers, known_by: str, optimizer: str = "", n_optimizers: int = 0
) -> StepFigures:
    sizes = np.bincount(number[number >= 0])
    sizes = sizes[sizes > 0]
    usual = int(np.sort(sizes)[len(sizes) // 2])
    least, most = int(sizes.min()), int(sizes.max())
    regular = (sizes == usual).mean()
    if n_optimizers > 1:  # another one may step where this one does not: most batches have to be
        # of its steps
        regular = min(regular, usual * int((sizes == usual).sum()) / len(number)) * (len(sizes) > 1)
    if known_by == "optimizer" and regular < REGULAR_FRACTION:
        which = optimizer or "the optimiser"
        if n_optimizers > 1:
            rarely = f"{which} takes {len(sizes)} steps in {len(number)} batches, others more"
            return StepFigures(why_unknown=rarely)
        return StepFigures(why_unknown=f"{which} steps after {least} to {most} batches")
    return StepFigures(len(sizes), usual, least, most, known_by, optimizer, n_optimizers)
