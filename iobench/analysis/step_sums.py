"""The steps of a training process, summed by stretch and by round: what comparisons are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from iobench.analysis.intervals import (
    Blocks,
    Interval,
    block_of_each,
    block_ratio,
    paired_ratio,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.run import RankRun

BUSY: Final = "busy:"
EXPOSED: Final = "exposed:"
FEWEST_TURNS: Final = 4
MANY_TURNS: Final = 20
MOST_ALIKE: Final = 0.999
PARTS: Final[tuple[Window, ...]] = ("recurring", "steady", "whole")
"""Of which part of a run a figure is, where a comparison is free to choose: the first of these."""
Sums = Mapping[str, "NDArray[np.float64]"]


class RoundTimes(msgspec.Struct, frozen=True):
    """When the rounds of a training process were, by their starts.

    Parameters
    ----------
    boot_id : str
        Of the machine: times of one can be compared. ``""`` where it is not known.
    start_ns, end_ns : ndarray of int64, shape (n_rounds,)
    """

    boot_id: str
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


class StepSums(msgspec.Struct, frozen=True):
    """Sums over some steps of a run, in stretches of neighbouring ones, and by round.

    Parameters
    ----------
    stretches : mapping of str to ndarray of float64, shape (n_blocks_of,)
        ``batches``, ``wall``, ``wait`` and ``compute`` in ns; ``steps`` of the optimiser, of which
        a batch is its part, ``samples`` and ``nbytes`` where they are known; and of each stage
        ``busy:STAGE`` and ``exposed:STAGE`` in ns.
    rounds : mapping of str to ndarray of float64, shape (n_rounds,)
        The same by round; a round without such a step is 0 in all.
    times : RoundTimes or None
        None for several training processes together.
    memory : float
        Over how many steps the time of one step tells that of the next: 1 where it does not.
    """

    stretches: Sums
    rounds: Sums
    times: RoundTimes | None
    memory: float = 1.0

    @property
    def n_batches(self) -> int:
        """How many batches they are of, of all training processes."""
        return int(self.stretches["batches"].sum())

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages with any time, in no order that means anything."""
        named = [name.partition(":")[2] for name in self.stretches if name.startswith(BUSY)]
        return tuple(named)

    def total(self, name: str) -> float | None:
        """Return one sum over all steps; None where it is not known."""
        found = self.stretches.get(name)
        return None if found is None else float(found.sum())

    def blocks(self, amount: str, weight: str) -> Blocks | None:
        """Return a figure, one sum over another; None where one is not known.

        A stage that the run does not have took no time.
        """
        weights = self.stretches.get(weight)
        amounts = self.stretches.get(amount)
        if weights is None or (amounts is None and ":" not in amount):
            return None
        return Blocks(np.zeros(len(weights)) if amounts is None else amounts, weights)


def step_sums(measured: RankRun, window: Window, n_cells: int | None = None) -> StepSums | None:
    """Return the sums of one training process; None where it has no such step.

    Parameters
    ----------
    window : str
        Of which part of the run, as `Exposure.part` has it.
    n_cells : int, optional
        How many stretches; by default as `block_of_each` has them.
    """
    deliveries = measured.deliveries
    part = measured.exposure.part(window)
    if part is None or not part.n_batches:
        return None
    rows = np.flatnonzero(deliveries.in_part(window))
    with_batch = (deliveries.batch[rows] >= 0).astype(np.float64)
    columns = {
        "batches": with_batch,
        "wall": deliveries.wall_ns[rows].astype(np.float64),
        "wait": deliveries.wait_ns[rows].astype(np.float64),
    }
    columns["compute"] = columns["wall"] - columns["wait"]
    found = deliveries.steps
    if found is not None and found.batches_per_step is not None:
        sizes = np.append(np.bincount(deliveries.step[deliveries.step >= 0]), 0)
        of_each = np.where(deliveries.step[rows] >= 0, sizes[deliveries.step[rows]], 0)
        # What follows the last step would have been a part of one more.
        of_each = np.where(of_each > 0, of_each, found.batches_per_step)
        columns["steps"] = with_batch / of_each
    nbytes = np.where(with_batch > 0, deliveries.nbytes[rows], 0).astype(np.float64)
    if part.nbytes is not None:
        columns["nbytes"] = nbytes
    if part.n_samples is not None:
        told = part.nbytes is not None and part.nbytes > 0
        share = nbytes / nbytes.sum() if told else with_batch / with_batch.sum()
        columns["samples"] = part.n_samples * share
    epochs = None
    if window == "recurring":
        epochs = deliveries.of_epoch[rows]
    cell, n_cells = block_of_each(len(rows), epochs, n_cells)
    in_round = deliveries.round[rows]
    n_rounds = int(deliveries.round.max()) + 1
    return StepSums(
        _summed(measured, columns, rows, cell, n_cells),
        _summed(measured, columns, rows, in_round, n_rounds),
        _times(measured, n_rounds),
        step_memory(columns["wall"]),
    )


def step_memory(wall: NDArray[np.float64]) -> float:
    """Return (1 + r) / (1 - r) of the correlation r of neighbours, what an AR(1) integrates to."""
    off = wall - wall.mean()
    squares = float((off**2).sum())
    if squares <= 0:
        return 1.0
    r = min(max(float((off[1:] * off[:-1]).sum()) / squares, 0.0), MOST_ALIKE)
    return (1 + r) / (1 - r)


def _summed(
    measured: RankRun,
    columns: Sums,
    rows: NDArray[np.int64],
    cell: NDArray[np.int64],
    n_cells: int,
) -> Sums:
    """Return the sums of columns, and of the ledger's stages, over cells of some deliveries."""
    found = _in_cells(columns, cell, n_cells)
    group = np.full(len(measured.deliveries), -1, dtype=np.int64)
    group[rows] = cell
    busy, exposed = (measured.ledger.sum(group, of, n_cells) for of in ("busy_ns", "exposed_ns"))
    for index in np.flatnonzero((busy + exposed).any(axis=0)).tolist():
        name = measured.ledger.stages.names[index]
        found[f"{BUSY}{name}"] = busy[:, index].astype(np.float64)
        found[f"{EXPOSED}{name}"] = exposed[:, index].astype(np.float64)
    return found


def _in_cells(
    columns: Sums, cell: NDArray[np.int64], n_cells: int
) -> dict[str, NDArray[np.float64]]:
    return {
        name: np.bincount(cell, values, n_cells).astype(np.float64)
        for name, values in columns.items()
    }


def _times(measured: RankRun, n_rounds: int) -> RoundTimes:
    deliveries = measured.deliveries
    starts = np.full(n_rounds, np.iinfo(np.int64).max)
    ends = np.full(n_rounds, np.iinfo(np.int64).min)
    np.minimum.at(starts, deliveries.round, deliveries.asked_ns)
    np.maximum.at(ends, deliveries.round, np.maximum(deliveries.until_ns, deliveries.delivered_ns))
    processes = measured.processes
    boot_id = processes[deliveries.process].boot_id if deliveries.process >= 0 else ""
    return RoundTimes(boot_id, starts, ends)


def add_sums(parts: list[StepSums]) -> StepSums:
    """Return the sums of several training processes that ran at once, stretch by stretch.

    What they have in common then counts once. A sum that one of them does not know is not known.

    Raises
    ------
    ValueError
        If there is none, or they have other numbers of stretches.
    """
    if not parts:
        raise ValueError("expected the sums of one training process or more")
    if len(parts) == 1:
        return parts[0]
    n_cells = {len(part.stretches["batches"]) for part in parts}
    if len(n_cells) != 1:
        raise ValueError("expected the same number of intervals from every training process")
    zero = np.zeros(n_cells.pop())
    names = dict.fromkeys(name for part in parts for name in part.stretches)
    added = {
        name: np.sum([part.stretches.get(name, zero) for part in parts], axis=0)
        for name in names
        if ":" in name or all(name in part.stretches for part in parts)
    }
    return StepSums(added, {}, None, max(part.memory for part in parts))


def of_turns(sums: StepSums, turns: NDArray[np.int64]) -> StepSums:
    """Return sums whose cells are turns; of many, several turns: what they share then counts."""
    n_cells = len(turns) if len(turns) < MANY_TURNS else MANY_TURNS // 2
    cell = np.arange(len(turns)) * n_cells // len(turns)
    cells = {name: values[turns] for name, values in sums.rounds.items()}
    return StepSums(_in_cells(cells, cell, n_cells), {}, None)


def ratio_of_runs(a: StepSums, b: StepSums, amount: str, weight: str) -> Interval:
    """Return the ratio of a figure of ``b`` to that of ``a``: turn by turn where they took turns.

    ``amount`` over ``weight`` is the figure; a run that does not know one of them has no ratio.
    """
    turns = pair_rounds(a, b)
    paired = turns is not None and len(turns) >= FEWEST_TURNS
    if turns is not None and paired:
        a, b = of_turns(a, turns), of_turns(b, turns)
    if any(name not in each.stretches for each in (a, b) for name in (amount, weight)):
        return Interval(None)
    cells = [Blocks(each.stretches[amount], each.stretches[weight]) for each in (a, b)]
    return paired_ratio(*cells) if paired else block_ratio(*cells)


def pair_rounds(a: StepSums, b: StepSums) -> NDArray[np.int64] | None:
    """Return which rounds of two runs were turns of one job; None where they did not take turns.

    The first round of each is of the first turn, and so on: all of a turn before all of the next,
    on one machine, and no round while another was on. Turns without a steady step of both are
    left out.

    Returns
    -------
    ndarray of int64, shape (n_turns,), or None
        The same number counts rounds of both.
    """
    if a.times is None or b.times is None or not a.times.boot_id:
        return None
    if a.times.boot_id != b.times.boot_id:
        return None
    n_turns = min(len(a.times.start_ns), len(b.times.start_ns))
    starts = np.stack((a.times.start_ns[:n_turns], b.times.start_ns[:n_turns]))
    ends = np.stack((a.times.end_ns[:n_turns], b.times.end_ns[:n_turns]))
    apart = (ends.min(axis=0) <= starts.max(axis=0)).all()
    in_turn = (ends.max(axis=0)[:-1] <= starts.min(axis=0)[1:]).all()
    if not n_turns or not apart or not in_turn:
        return None
    used = (a.rounds["batches"][:n_turns] > 0) & (b.rounds["batches"][:n_turns] > 0)
    return np.flatnonzero(used)
