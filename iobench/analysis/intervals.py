"""Figures with intervals of 95 %, and the sums over the steps of a run that they are made of.

A figure is a quotient of two sums: time over steps, wait over time. A run is cut into few long
blocks of neighbouring steps (or whole epochs), and how these differ says how far the figure may be
off: `block_ratio`. Runs that took turns have one pair of sums a round: `paired_ratio`, in which
whatever a round does to both cancels. Too few blocks or rounds: there is no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, fsum, inf, log, sqrt
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.run import RankRun

FEWEST_BLOCKS: Final = 2
BLOCKS: Final = ((96, 8), (48, 6))
"""From so many steps on, so many blocks of them."""
MOST_BLOCKS: Final = 8
LONG_ENOUGH: Final = "48 steps in steady state, or four epochs after the first"
FEWEST_EPOCHS: Final = 4
"""From so many epochs on each may be a block, however short."""
FEWEST_ROUNDS: Final = 4
LEAST_ROUNDS: Final = 6
"""Of a trial, for an interval."""
MANY_ROUNDS: Final = 20
"""From so many on, several neighbouring ones are one pair: what they share then counts."""
BUSY: Final = "busy:"
EXPOSED: Final = "exposed:"
PARTS: Final[tuple[Window, ...]] = ("recurring", "steady", "whole")
"""Parts of a run, where a comparison is free to choose: the first of these."""
STUDENT: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
"""97.5 % of Student's t lie below, by degrees of freedom from 1."""
Sums = Mapping[str, "NDArray[np.float64]"]


class Interval(msgspec.Struct, frozen=True):
    """A figure, and between what it lies at 95 %; what is unknown is None."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool | None:
        """Whether 1 lies outside the interval of a ratio; None without one."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1.0 <= self.high


class Blocks(msgspec.Struct, frozen=True):
    """A quotient's two sums, block by block: the figure is amounts over weights."""

    amounts: NDArray[np.float64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.amounts)

    @property
    def value(self) -> float | None:
        """The figure; None without a weight."""
        weight = float(self.weights.sum())
        return float(self.amounts.sum()) / weight if weight > 0 else None

    def influence(self, per: float = 1.0) -> NDArray[np.float64]:
        """Return how far each block moves the figure, times their number, in parts of ``per``."""
        moved: NDArray[np.float64] = self.amounts - (self.value or 0.0) * self.weights
        moved *= len(self) / self.weights.sum()
        return moved / per


def student(free: float) -> float:
    """Return what Student's t stays below in 97.5 %; degrees of freedom are cut, at most 30."""
    return STUDENT[min(max(int(free + 1e-9), 1), len(STUDENT)) - 1]


def _half_width(*influences: NDArray[np.float64]) -> float:
    """Return Student's t times the standard error of a figure, of independent runs.

    The variance of each is that of its blocks' influence (Cochran, Sampling Techniques, 1977,
    chapter 6), with twice the covariance of neighbours where that is positive (Newey and West,
    Econometrica 55, 1987, of one lag). Degrees of freedom of two by Welch and Satterthwaite
    (Biometrika 34, 1947).
    """
    variances, shares = [], 0.0
    for each in influences:
        squares, shared = float((each**2).sum()), float((each[1:] * each[:-1]).sum())
        n = len(each)
        variances.append((squares + 2 * max(shared, 0.0)) / (n * (n - 1)))
        shares += variances[-1] ** 2 / (n - 1)
    total = sum(variances)
    free = len(influences[0]) - 1 if len(influences) == 1 else total**2 / shares if shares else 1.0
    return student(free) * sqrt(total)


def _ratio(a: Blocks, b: Blocks, *, is_paired: bool) -> Interval:
    """Return the figure of ``b`` over that of ``a``; the interval is symmetric on the logarithm."""
    first, second = a.value or 0.0, b.value or 0.0
    ratio = second / first if first > 0 else 0.0
    if not 0 < ratio < inf:
        return Interval(None)
    if min(len(a), len(b)) < FEWEST_BLOCKS:
        return Interval(ratio)
    moved, other = a.influence(first), b.influence(second)
    half = _half_width(other - moved) if is_paired else _half_width(moved, other)
    if not half:
        return Interval(ratio, ratio, ratio)
    # Beyond a factor of 10**300 it is no interval but the whole axis.
    low, high = max(log(ratio) - half, -690.0), min(log(ratio) + half, 690.0)
    return Interval(ratio, exp(low), exp(high))


def block_ratio(a: Blocks, b: Blocks) -> Interval:
    """Return the ratio of ``b`` to ``a``, two runs that have nothing to do with each other."""
    return _ratio(a, b, is_paired=False)


def paired_ratio(a: Blocks, b: Blocks) -> Interval:
    """Return the ratio of ``b`` to ``a`` whose blocks are of the same rounds, one by one."""
    if len(a) != len(b):
        raise ValueError("expected equally many blocks of both runs, one of each round")
    return _ratio(a, b, is_paired=True)


def quotient(blocks: Blocks) -> Interval:
    """Return a run's figure itself with a symmetric interval: a share may be 0."""
    value = blocks.value
    if value is None or len(blocks) < FEWEST_BLOCKS:
        return Interval(value)
    half = _half_width(blocks.influence())
    return Interval(value, value - half, value + half)


def difference(a: Blocks, b: Blocks) -> Interval:
    """Return the figure of ``b`` less that of ``a``, two runs that have nothing in common."""
    if a.value is None or b.value is None:
        return Interval(None)
    value = b.value - a.value
    if min(len(a), len(b)) < FEWEST_BLOCKS:
        return Interval(value)
    half = _half_width(a.influence(), b.influence())
    return Interval(value, value - half, value + half)


class RoundRatio(msgspec.Struct, frozen=True):
    """A change timed in rounds with a baseline, and the baseline again: what noise alone does."""

    n_rounds: int
    change: Interval
    again: Interval

    @property
    def is_noise(self) -> bool | None:
        """Whether the change takes neither more nor less time than noise explains."""
        low, high = self.change.low, self.change.high
        if low is None or high is None or self.again.low is None or self.again.high is None:
            return None
        return not (low > max(1.0, self.again.high) or high < min(1.0, self.again.low))


def round_ratio(a: Sequence[float], b: Sequence[float], again: Sequence[float]) -> RoundRatio:
    """Return the `paired_ratio` of ``b`` to ``a`` and of ``again`` to ``a``, over rounds."""
    if not a or not len(a) == len(b) == len(again) or min(*a, *b, *again) <= 0:
        raise ValueError("expected equally many times above 0 of a, b and a again")
    if len(a) < LEAST_ROUNDS:
        return RoundRatio(len(a), Interval(sum(b) / sum(a)), Interval(None))
    of_a, of_b, of_again = (Blocks(np.array(each), np.ones(len(a))) for each in (a, b, again))
    return RoundRatio(len(a), paired_ratio(of_a, of_b), paired_ratio(of_a, of_again))


def trimmed_mean(values: Sequence[float], drop: int) -> Interval:
    """Return the mean without the lowest and the highest ``drop`` values; of fewer none is dropped.

    Its interval is that of Tukey and McLaughlin (Sankhya A 25, 1963): for the variance a dropped
    value counts as the nearest one left. It does not reach below 0 where no value does.
    """
    drop = drop if len(values) > 2 * drop else 0
    used = sorted(values)[drop : len(values) - drop]
    if not used:
        return Interval(None)
    n_used, mean = len(used), fsum(used) / len(used)
    if n_used < FEWEST_BLOCKS:
        return Interval(mean)
    winsorized = [*[used[0]] * drop, *used, *[used[-1]] * drop]
    middle = fsum(winsorized) / len(winsorized)
    squares = fsum((each - middle) ** 2 for each in winsorized)
    half = student(n_used - 1) * sqrt(squares / (n_used * (n_used - 1)))
    low = mean - half
    return Interval(mean, max(low, 0.0) if min(values) >= 0 else low, mean + half)


def n_blocks_of(n_steps: int) -> int:
    """Return into how many blocks a run is cut; 1 where it is too short for an interval."""
    return next((n for least, n in BLOCKS if n_steps >= least), 1)


def _block_of_each(
    n_steps: int, epochs: NDArray[np.int64] | None, n_blocks: int | None = None
) -> tuple[NDArray[np.int64], int]:
    """Return in which block each of a run's steps is, and how many blocks there are."""
    place, n_places, most = np.arange(n_steps), n_steps, n_blocks_of(n_steps)
    if epochs is not None:
        distinct, place = np.unique(epochs, return_inverse=True)
        place, n_places = place.reshape(-1), len(distinct)
        most = MOST_BLOCKS if n_places >= FEWEST_EPOCHS else most
    if n_blocks is None:
        n_blocks = max(1, min(most, n_places))
    return place * n_blocks // max(n_places, 1), n_blocks


def blocks_of(times: NDArray[np.float64], epochs: NDArray[np.int64] | None = None) -> Blocks:
    """Return what each of a run's steps takes, in order, in blocks of steps or of whole epochs."""
    block, n_blocks = _block_of_each(len(times), epochs)
    added = _added({"time": times, "steps": np.ones_like(times)}, block, n_blocks)
    return Blocks(added["time"], added["steps"])


class StepSums(msgspec.Struct, frozen=True):
    """Sums over some steps of a run, block by block and round by round.

    Both have ``batches``, ``wall``, ``wait``, ``compute`` (in ns), where known ``steps`` of the
    optimiser, ``samples`` and ``nbytes``, and of each stage ``busy:STAGE`` and ``exposed:STAGE``.
    Rounds have a start and an end on the clock of ``boot_id``; several ranks together have none.
    """

    blocks: Sums
    rounds: Sums = {}
    start_ns: NDArray[np.int64] | None = None
    end_ns: NDArray[np.int64] | None = None
    boot_id: str = ""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages with any time."""
        return tuple(name.removeprefix(BUSY) for name in self.blocks if name.startswith(BUSY))

    def total(self, name: str) -> float | None:
        """Return one sum over all steps; None where it is not known."""
        return float(self.blocks[name].sum()) if name in self.blocks else None

    def quotient(self, amount: str, weight: str) -> Blocks | None:
        """Return one sum over another; None where one is unknown. A missing stage took no time."""
        weights, amounts = self.blocks.get(weight), self.blocks.get(amount)
        if weights is None or (amounts is None and ":" not in amount):
            return None
        return Blocks(np.zeros(len(weights)) if amounts is None else amounts, weights)


def step_sums(run: RankRun, window: Window, n_blocks: int | None = None) -> StepSums | None:
    """Return the sums of a part of a training process; None where it has no step in it."""
    deliveries, part = run.deliveries, run.exposure.part(window)
    if part is None or not part.n_batches:
        return None
    rows = np.flatnonzero(deliveries.in_part(window))
    is_batch = (deliveries.batch[rows] >= 0).astype(np.float64)
    wall, wait = (
        each[rows].astype(np.float64) for each in (deliveries.wall_ns, deliveries.wait_ns)
    )
    columns = {"batches": is_batch, "wall": wall, "wait": wait, "compute": wall - wait}
    if deliveries.steps is not None and deliveries.steps.batches_per_step is not None:
        step = deliveries.step[rows]
        sizes = np.append(np.bincount(deliveries.step[deliveries.step >= 0]), 0)
        in_step = np.where(step >= 0, sizes[step], 0)
        # What follows the last step would have been a part of one more.
        columns["steps"] = is_batch / np.where(
            in_step > 0, in_step, deliveries.steps.batches_per_step
        )
    nbytes = np.where(is_batch > 0, deliveries.nbytes[rows], 0).astype(np.float64)
    if part.nbytes is not None:
        columns["nbytes"] = nbytes
    if part.n_samples is not None:
        columns["samples"] = part.n_samples * (
            nbytes / nbytes.sum() if part.nbytes else is_batch / is_batch.sum()
        )
    epochs = deliveries.of_epoch[rows] if window == "recurring" else None
    block, n_blocks = _block_of_each(len(rows), epochs, n_blocks)
    n_rounds = int(deliveries.round.max()) + 1
    limits = np.iinfo(np.int64)
    start_ns, end_ns = (np.full(n_rounds, limit) for limit in (limits.max, limits.min))
    until_ns = np.maximum(deliveries.until_ns, deliveries.delivered_ns)
    np.minimum.at(start_ns, deliveries.round, deliveries.requested_ns)
    np.maximum.at(end_ns, deliveries.round, until_ns)
    boot_id = run.processes[deliveries.process].boot_id if deliveries.process >= 0 else ""
    return StepSums(
        _all_added(run, columns, rows, block, n_blocks),
        _all_added(run, columns, rows, deliveries.round[rows], n_rounds),
        start_ns, end_ns, boot_id,
    )  # fmt: skip


def _all_added(
    run: RankRun, columns: Sums, rows: NDArray[np.int64], cell: NDArray[np.int64], n_cells: int
) -> Sums:
    """Return the sums of columns, and of the ledger's stages, over cells of some deliveries."""
    added = _added(columns, cell, n_cells)
    group = np.full(len(run.deliveries), -1, dtype=np.int64)
    group[rows] = cell
    busy, exposed = (run.ledger.sum(group, of, n_cells) for of in ("busy_ns", "exposed_ns"))
    for at in np.flatnonzero((busy + exposed).any(axis=0)).tolist():
        name = run.ledger.stages.names[at]
        added[f"{BUSY}{name}"] = busy[:, at].astype(np.float64)
        added[f"{EXPOSED}{name}"] = exposed[:, at].astype(np.float64)
    return added


def _added(columns: Sums, cell: NDArray[np.int64], n: int) -> dict[str, NDArray[np.float64]]:
    return {name: np.bincount(cell, v, n).astype(np.float64) for name, v in columns.items()}


def add_ranks(parts: Sequence[StepSums]) -> StepSums:
    """Return the sums of training processes that ran at once; what one lacks is not known."""
    names = dict.fromkeys(name for part in parts for name in part.blocks)
    zero = np.zeros(len(parts[0].blocks["batches"]))
    added = {
        name: np.sum([part.blocks.get(name, zero) for part in parts], axis=0)
        for name in names
        if ":" in name or all(name in part.blocks for part in parts)
    }
    added["loop"] = added["wall"] / len(parts)
    if len(parts) > 1:
        return StepSums(added)
    alone = parts[0]
    rounds = {**alone.rounds, "loop": alone.rounds["wall"]}
    return msgspec.structs.replace(alone, blocks=added, rounds=rounds)


def turns_of(a: StepSums, b: StepSums) -> tuple[StepSums, StepSums] | None:
    """Return sums of two runs round by round, of rounds that were turns of one job; else None.

    The first round of each is of the first turn, and so on: all of a turn before all of the next,
    on one machine, and no round while another was on. Turns without a step of both are left out.
    Of many rounds several neighbouring ones are one block; fewer than `FEWEST_ROUNDS` are none.
    """
    if a.start_ns is None or b.start_ns is None or a.end_ns is None or b.end_ns is None:
        return None
    n_turns = min(len(a.start_ns), len(b.start_ns))
    if not a.boot_id or a.boot_id != b.boot_id or not n_turns:
        return None
    starts = np.stack((a.start_ns[:n_turns], b.start_ns[:n_turns]))
    ends = np.stack((a.end_ns[:n_turns], b.end_ns[:n_turns]))
    apart = (ends.min(axis=0) <= starts.max(axis=0)).all()
    in_turn = (ends.max(axis=0)[:-1] <= starts.min(axis=0)[1:]).all()
    used = (a.rounds["batches"][:n_turns] > 0) & (b.rounds["batches"][:n_turns] > 0)
    rounds = np.flatnonzero(used)
    if not (apart and in_turn) or len(rounds) < FEWEST_ROUNDS:
        return None
    n_blocks = len(rounds) if len(rounds) < MANY_ROUNDS else MANY_ROUNDS // 2
    block = np.arange(len(rounds)) * n_blocks // len(rounds)
    first, second = (
        StepSums(_added({k: v[rounds] for k, v in each.rounds.items()}, block, n_blocks))
        for each in (a, b)
    )
    return first, second
