"""How often intervals of iobench compare hold the truth: comparison_coverage.py --pairs 2000

Pairs of runs are drawn from a seed, whose true ratio is known: neighbours that depend on each
other (a log-normal AR(1)), heavy tails (Pareto), few long waits (one step in 50 is fifty times as
long, at random or every 32nd), waits that are mostly 0; apart or in turns of 25 steps that share
what the machine does to both. Printed is the share of intervals that hold the true ratio (95 % is
promised; at least 93 % where the command does not warn), how often it warns that intervals are
too short, how wide they are (the median of high over low), and how often a difference of 20 % is
found. Nothing is read or timed; 2,000 pairs a row take about a minute.

    --pairs 2000 --seed 1
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.intervals import (
    MANY_ROUNDS,
    Blocks,
    Interval,
    block_ratio,
    n_blocks_of,
    needed_steps,
    paired_ratio,
    step_memory,
    unevenness,
)

Floats = NDArray[np.float64]
Maker = Callable[[np.random.Generator, int], Floats]
TURN, FILL = 25, 3
LENGTHS = (48, 96, 200, 1000)
TRUE = 1.2


def autoregressive(dependence: float) -> Maker:
    """Return log-normal steps, each of which depends on the one before."""

    def make(rng: np.random.Generator, n_steps: int) -> Floats:
        noise = rng.standard_normal(n_steps + 1)
        noise[1:] *= np.sqrt(1 - dependence**2)
        steps = np.empty(n_steps + 1)
        before = 0.0
        for at, value in enumerate(noise.tolist()):
            before = value if at == 0 else dependence * before + value
            steps[at] = before
        return np.exp(0.5 * steps[1:])

    return make


def heavy(rng: np.random.Generator, n_steps: int) -> Floats:
    """Return steps with a tail that has a variance, but no third moment."""
    return 1 + rng.pareto(2.5, n_steps)


def periodic(rng: np.random.Generator, n_steps: int) -> Floats:
    """Return short steps, every 32nd of them long."""
    steps = 0.2 + 0.02 * rng.random(n_steps)
    long = steps[int(rng.integers(32)) :: 32]
    long += 10 * (0.5 + rng.random(len(long)))
    return steps


def rare(rng: np.random.Generator, n_steps: int) -> Floats:
    """Return short steps, one in 50 of them long, whenever."""
    long = rng.random(n_steps) < 0.02
    return 0.2 + 0.02 * rng.random(n_steps) + long * 10 * (0.5 + rng.random(n_steps))


def mostly_none(rng: np.random.Generator, n_steps: int) -> Floats:
    """Return waits of which 24 in 25 are 0."""
    return (rng.random(n_steps) < 0.04) * 10 * (0.5 + rng.random(n_steps))


MAKERS: dict[str, Maker] = {
    "independent": autoregressive(0.0),
    "AR(1), 0.5": autoregressive(0.5),
    "AR(1), 0.8": autoregressive(0.8),
    "AR(1), 0.9": autoregressive(0.9),
    "Pareto, 2.5": heavy,
    "long, every 32nd": periodic,
    "long, 1 in 50": rare,
    "0, but 1 in 25": mostly_none,
}


def apart(make: Maker, rng: np.random.Generator, n_steps: int) -> tuple[Interval, bool]:
    """Return the interval of two runs made one after the other, and whether it is warned of."""
    n_cells = n_blocks_of(n_steps)
    runs = [make(rng, n_steps) for _ in range(2)]
    a, b = (_cut(steps, n_cells) for steps in runs)
    needed = max(needed_steps(n_cells, unevenness(each), step_memory(each)) for each in runs)
    return block_ratio(a, Blocks(TRUE * b.amounts, b.weights)), needed > n_steps


def _cut(steps: Floats, n_cells: int) -> Blocks:
    cell = np.arange(len(steps)) * n_cells // len(steps)
    return Blocks(
        np.bincount(cell, steps, n_cells), np.bincount(cell, minlength=n_cells).astype(np.float64)
    )


def in_turns(make: Maker, rng: np.random.Generator, n_steps: int) -> tuple[Interval, bool]:
    """Return the same of two runs in turns, through a machine whose speed drifts by turns."""
    n_turns = n_steps // TURN
    n_cells = n_turns if n_turns < MANY_ROUNDS else MANY_ROUNDS // 2
    cell = np.arange(n_turns) * n_cells // n_turns
    speed = np.exp(0.3 * np.cumsum(rng.standard_normal(n_turns)) / np.sqrt(n_turns))
    steps = [
        make(rng, n_steps)[: n_turns * TURN].reshape(n_turns, TURN)[:, FILL:] * speed[:, None]
        for _ in range(2)
    ]
    needed = max(needed_steps(n_cells, unevenness(each)) for each in steps)
    weights = np.bincount(cell, minlength=n_cells) * float(TURN - FILL)
    a, b = (np.bincount(cell, each.sum(axis=1), n_cells) for each in steps)
    return paired_ratio(Blocks(a, weights), Blocks(TRUE * b, weights)), needed > steps[0].size


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    for name, interval, lengths in (
        ("apart", apart, LENGTHS),
        (f"in turns of {TURN}, a machine that drifts", in_turns, (200, 1000)),
    ):
        heads = "".join(f"{f'{n} steps: held, warned, width, found':>40}" for n in lengths)
        print(f"\n{name}\n{'':18}{heads}")
        for what, make in MAKERS.items():
            cells = [_row(interval, make, rng, n, arguments.pairs) for n in lengths]
            print(f"{what:18}{''.join(cells)}", flush=True)


def _row(
    interval: Callable[[Maker, np.random.Generator, int], tuple[Interval, bool]],
    make: Maker,
    rng: np.random.Generator,
    n_steps: int,
    n_pairs: int,
) -> str:
    pairs = [interval(make, rng, n_steps) for _ in range(n_pairs)]
    known = [(each.low, each.high) for each, _ in pairs if None not in (each.low, each.high)]
    held = sum(low <= TRUE <= high for low, high in known) / max(len(known), 1)
    warned = sum(is_warned for _, is_warned in pairs) / n_pairs
    width = statistics.median(high / low for low, high in known)
    differs = sum(bool(each.differs) for each, _ in pairs) / n_pairs
    few = "" if len(known) == n_pairs else f" of {len(known)}"
    return f"{f'{held:.3f}{few}  {warned:.2f}  x{width:.2f}  {differs:.2f}':>40}"


if __name__ == "__main__":
    main()
