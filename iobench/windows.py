"""Where windows of items fit along the sample dimension.

A window never reaches across a gap in the coordinate, from one row of samples into the next, or
out of the split it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from iobench.samples import Window

TOLERANCE: Final = 1e-3
"""Two neighbours follow each other if they lie one step apart, give or take this share of it:
far above what floating point does to a time, far below any gap."""


class Gap(msgspec.Struct, frozen=True):
    """Two neighbours in a row that lie further apart than one step."""

    before: int  # their sample numbers
    after: int
    positions: tuple[float, float]
    n_missing: int  # items that would fit between them, a step or more apart


class WindowPlacement(msgspec.Struct, frozen=True, eq=False):
    """Where a window fits.

    ``len(placement) + n_at_ends + n_at_gaps + n_at_split`` is the number of samples there are, or
    of the split: others are centres whose window would reach beyond an end of the row, across a
    gap, or (else) out of the split.
    """

    window: Window
    centres: NDArray[np.int64]  # (windows,): the samples of offset 0, ascending
    items: NDArray[np.int64]  # (windows, items): samples, in the order of ``window.offsets``
    step: float | None  # negative where positions descend; None without neighbours
    gaps: tuple[Gap, ...]  # in order; of a split those at its own samples
    n_at_ends: int
    n_at_gaps: int
    n_at_split: int

    def __len__(self) -> int:
        return len(self.centres)

    def samples(self, windows: Sequence[int]) -> list[int]:
        """Return the samples these windows need, each once, in the order they are first needed."""
        return list(dict.fromkeys(self.items[np.asarray(windows, dtype=np.int64)].ravel().tolist()))

    def among(self, samples: Sequence[int]) -> NDArray[np.int64]:
        """Return the items of all windows that ``samples`` hold whole, counted within ``samples``.

        What a store of these samples, in this order, is read with.
        """
        held = np.asarray(samples, dtype=np.int64)
        place = np.full(1 + max(self.items.max(initial=-1), held.max(initial=-1)), -1, np.int64)
        place[held] = np.arange(len(held))
        places = place[self.items]
        whole: NDArray[np.int64] = places[(places >= 0).all(axis=1)]
        return whole

    def to_dict(self) -> dict[str, Any]:
        """Return what was placed, what was left out and the gaps as JSON-ready values."""
        return {
            "window": self.window.spelled,
            "n_windows": len(self),
            "step": self.step,
            "n_at_ends": self.n_at_ends,
            "n_at_gaps": self.n_at_gaps,
            "n_at_split": self.n_at_split,
            "gaps": msgspec.to_builtins(self.gaps),
        }


def place_windows(
    positions: ArrayLike,
    window: Window,
    *,
    rows: Sequence[int] = (),
    within: Sequence[int] | None = None,
    step: float | None = None,
    names: Sequence[str] = (),
) -> WindowPlacement:
    """Return where a window fits in samples that lie at these positions.

    Parameters
    ----------
    positions : array_like of number, shape (samples,)
        Strictly ascending or strictly descending within each row.
    window : Window
        The offsets.
    rows : sequence of int, optional
        Which row each sample lies in, one forecast for example; all in one by default.
    within : sequence of int, optional
        Sample numbers of a split: a window's centre and items are all among them.
    step : float, optional
        From one item to the next; by default the commonest difference between neighbours.
    names : sequence of str, optional
        What samples are called in messages.

    Raises
    ------
    OptionError
        If two samples of a row have one position, one has none, they are out of order, or not
        evenly spaced: no step, but too close for an item to be missing. Names the samples.
    """
    row = _Rows(np.asarray(positions), np.asarray(rows, dtype=np.int64), names)
    spacing = row.spacing(step)
    follows = row.follows(spacing)
    n_samples = len(row.order)
    low, high = min(0, *window.offsets), max(0, *window.offsets)
    rank = np.arange(n_samples)
    first, last = rank + low, rank + high
    reaches_out = (first < row.starts) | (last >= row.ends)
    stretch = np.concatenate([[0], np.cumsum(~follows)]) if n_samples else rank
    inside = np.clip(first, 0, n_samples - 1), np.clip(last, 0, n_samples - 1)
    broken = ~reaches_out & (stretch[inside[0]] != stretch[inside[1]])

    offsets = np.array(window.offsets, dtype=np.int64)
    members = row.order[np.clip(rank[:, None] + offsets, 0, max(0, n_samples - 1))]
    candidate, whole = _in_split(n_samples, row.order, members, within)
    fits = candidate & whole & ~reaches_out & ~broken
    in_order = np.argsort(row.order[fits])
    return WindowPlacement(
        window=window,
        centres=row.order[fits][in_order],
        items=members[fits][in_order],
        step=spacing,
        gaps=row.gaps(follows, candidate, spacing),
        n_at_ends=int((candidate & reaches_out).sum()),
        n_at_gaps=int((candidate & broken).sum()),
        n_at_split=int((candidate & ~whole & ~reaches_out & ~broken).sum()),
    )


def _in_split(
    n_samples: int,
    order: NDArray[np.int64],
    members: NDArray[np.int64],
    within: Sequence[int] | None,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for each rank whether it may be a centre, and whether all its items are allowed."""
    allowed = np.full(n_samples, within is None)
    if within is not None:
        allowed[np.asarray(within, dtype=np.int64)] = True
    whole: NDArray[np.bool_] = np.all(allowed[members], axis=1)
    return allowed[order], whole


class _Rows:
    """Samples put row after row, each in the order given; checked to be in order."""

    def __init__(
        self, positions: NDArray[Any], rows: NDArray[np.int64], names: Sequence[str]
    ) -> None:
        if positions.ndim != 1 or rows.size not in (0, positions.size):
            raise ValueError(f"{positions.shape} positions and {rows.shape} rows do not fit")
        if not rows.size:
            rows = np.zeros(positions.size, dtype=np.int64)
        exact = np.int64 if positions.dtype.kind in "iu" else np.float64
        self.names = names
        self.order = np.argsort(rows, kind="stable").astype(np.int64)
        self.positions = positions[self.order].astype(exact)
        self._check_finite()
        grouped = rows[self.order]
        self.starts = np.searchsorted(grouped, grouped, "left")
        self.ends = np.searchsorted(grouped, grouped, "right")
        self.same_row: NDArray[np.bool_] = np.equal(np.diff(grouped), 0)
        self.differences = np.diff(self.positions).astype(np.float64)
        self._check_order()

    def spacing(self, step: float | None) -> float | None:
        """Return the step from one neighbour to the next; check that it is one."""
        differences = np.abs(self.differences[self.same_row])
        if step is not None and not 0 < abs(step) < np.inf:
            raise OptionError(f"windows: step {step}, expected a finite number other than 0")
        if not differences.size:
            return step
        sign = float(np.sign(self.differences[self.same_row][0]))
        step_size = _commonest(differences) if step is None else abs(step)
        ratio = differences / step_size
        on_grid = np.abs(ratio - np.rint(ratio)) <= TOLERANCE
        close = (ratio < 2 - TOLERANCE) & (np.abs(ratio - 1) > TOLERANCE)  # no item is missing
        if close.any() or 2 * on_grid.sum() <= on_grid.size:
            worst = int(np.flatnonzero(close if close.any() else ~on_grid)[0])
            at = int(np.flatnonzero(self.same_row)[worst])
            raise OptionError(
                f"windows need evenly spaced samples: {self._spell(at)} and "
                f"{self._spell(at + 1)} lie {differences[worst]:g} apart, others "
                f"{step_size:g}; choose files or a --sample-dim with a regular coordinate"
            )
        return sign * step_size

    def follows(self, spacing: float | None) -> NDArray[np.bool_]:
        """Return for each pair of neighbours whether they lie in one row, one step apart."""
        if spacing is None:
            return self.same_row
        apart = np.abs(self.differences - spacing)
        followed: NDArray[np.bool_] = self.same_row & (apart <= TOLERANCE * abs(spacing))
        return followed

    def gaps(
        self,
        follows: NDArray[np.bool_],
        candidate: NDArray[np.bool_],
        spacing: float | None,
    ) -> tuple[Gap, ...]:
        """Return the pairs of neighbours with a gap between, one of them a candidate."""
        adjacent = candidate[:-1] | candidate[1:]
        return tuple(
            Gap(
                before=int(self.order[at]),
                after=int(self.order[at + 1]),
                positions=(float(self.positions[at]), float(self.positions[at + 1])),
                n_missing=int(self.differences[at] / (spacing or 1) + TOLERANCE) - 1,
            )
            for at in np.flatnonzero(self.same_row & ~follows & adjacent).tolist()
        )

    def _check_finite(self) -> None:
        unknown = np.flatnonzero(~np.isfinite(self.positions))
        if unknown.size:
            raise OptionError(
                f"windows: {self._spell(int(unknown[0]))} has no position along the sample "
                f"dimension ({unknown.size} such); mend the coordinate or leave it out"
            )

    def _check_order(self) -> None:
        signs = np.sign(self.differences) * self.same_row
        wrong = self.same_row & (signs != (1 if signs.sum() >= 0 else -1))
        if not wrong.any():
            return
        at = int(np.flatnonzero(wrong)[0])
        pair = f"{self._spell(at)} and {self._spell(at + 1)}"
        if signs[at] == 0:
            raise OptionError(
                f"windows: {pair} have one position, {self.positions[at]:g}; keep one of them"
            )
        raise OptionError(
            f"windows: {pair} are out of order ({self.positions[at]:g}, then "
            f"{self.positions[at + 1]:g}); sort them along the sample dimension"
        )

    def _spell(self, rank: int) -> str:
        number = int(self.order[rank])
        return f"sample {number} ({self.names[number]})" if self.names else f"sample {number}"


def _commonest(differences: NDArray[np.float64]) -> float:
    """Return the difference most of them share within the tolerance, the smallest of several."""
    ascending = np.sort(differences)
    ends = np.searchsorted(ascending, ascending * (1 + TOLERANCE), "right")
    most = int(np.argmax(ends - np.arange(len(ascending))))
    return float(np.median(ascending[most : ends[most]]))
