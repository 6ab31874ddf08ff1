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
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from iobench.samples import Window

TOLERANCE: Final = 1e-3
"""Two neighbours follow each other if they lie one step apart, give or take this share of it:
far above what floating point does to a time, far below any gap."""


class WindowPlacement(msgspec.Struct, frozen=True, eq=False):
    """Where a window fits, and for how many centres it does not, each counted once."""

    window: Window
    centres: NDArray[np.int64]  # (windows,): the samples of offset 0, ascending
    items: NDArray[np.int64]  # (windows, items): samples, in the order of ``window.offsets``
    step: float | None  # negative where positions descend; None without neighbours
    n_at_ends: int  # centres whose window would reach beyond an end of the row
    n_at_gaps: int  # across a gap
    n_at_split: int  # else out of the split

    def __len__(self) -> int:
        return len(self.centres)

    def to_dict(self) -> dict[str, Any]:
        """Return what was placed and what was left out as JSON-ready values."""
        return {
            "window": self.window.spelled,
            "n_windows": len(self),
            "step": self.step,
            "n_at_ends": self.n_at_ends,
            "n_at_gaps": self.n_at_gaps,
            "n_at_split": self.n_at_split,
        }


def place_windows(
    positions: ArrayLike,
    window: Window,
    *,
    rows: Sequence[int] = (),
    splits: Sequence[Sequence[int]] | None = None,
    names: Sequence[str] = (),
) -> WindowPlacement:
    """Return where a window fits in samples that lie at these positions.

    Positions ascend or descend strictly in each row, one forecast for example. Centre and items of
    a window are all of one of the ``splits``. Raises OptionError of samples in no order, or with no
    even step; they are called by ``names``.
    """
    values = np.asarray(positions)
    row = np.asarray(rows, dtype=np.int64) if len(rows) else np.zeros(len(values), dtype=np.int64)
    order = np.argsort(row, kind="stable")  # row after row, each in the order given
    row = row[order]
    values = values[order].astype(np.int64 if values.dtype.kind in "iu" else np.float64)
    is_row = np.diff(row) == 0  # of each sample and the next

    def spelled(rank: int) -> str:
        number = int(order[rank])
        return f"sample {number} ({names[number]})" if names else f"sample {number}"

    _check_order(values, is_row, spelled)
    apart = np.diff(values).astype(np.float64)
    step = _step(apart, is_row, spelled)
    follows = is_row
    if step is not None:
        follows = is_row & (np.abs(apart - step) <= TOLERANCE * abs(step))

    rank = np.arange(len(values))
    end = max(0, len(values) - 1)
    first, last = rank + min(0, *window.offsets), rank + max(0, *window.offsets)
    reaches_out = first < np.searchsorted(row, row, "left")
    reaches_out |= last >= np.searchsorted(row, row, "right")
    stretch = np.concatenate([[0], np.cumsum(~follows)]) if len(values) else rank
    broken = ~reaches_out & (stretch[np.clip(first, 0, end)] != stretch[np.clip(last, 0, end)])

    offsets = np.array(window.offsets, dtype=np.int64)
    members = order[np.clip(rank[:, None] + offsets, 0, end)]
    split = np.full(len(values), -1 if splits is not None else 0)
    for number, samples in enumerate(splits or ()):
        split[np.asarray(samples, dtype=np.int64)] = number
    candidate = split[order] >= 0
    whole = (split[members] == split[order][:, None]).all(axis=1)
    fits = candidate & whole & ~reaches_out & ~broken
    in_order = np.argsort(order[fits])
    return WindowPlacement(
        window=window,
        centres=order[fits][in_order],
        items=members[fits][in_order],
        step=step,
        n_at_ends=int((candidate & reaches_out).sum()),
        n_at_gaps=int((candidate & broken).sum()),
        n_at_split=int((candidate & ~whole & ~reaches_out & ~broken).sum()),
    )


def _check_order(
    values: NDArray[Any], is_row: NDArray[np.bool_], spelled: Callable[[int], str]
) -> None:
    unknown = np.flatnonzero(~np.isfinite(values))
    if unknown.size:
        raise OptionError(
            f"windows: {spelled(int(unknown[0]))} has no position along the sample dimension "
            f"({unknown.size} such); mend the coordinate or leave it out"
        )
    signs = np.sign(np.diff(values)) * is_row
    wrong = np.flatnonzero(is_row & (signs != (1 if signs.sum() >= 0 else -1)))
    if wrong.size:
        at = int(wrong[0])
        pair = f"windows: {spelled(at)} and {spelled(at + 1)}"
        if signs[at] == 0:
            raise OptionError(f"{pair} have one position, {values[at]:g}; keep one of them")
        raise OptionError(
            f"{pair} are out of order ({values[at]:g}, then {values[at + 1]:g}); sort them along "
            "the sample dimension"
        )


def _step(
    apart: NDArray[np.float64], is_row: NDArray[np.bool_], spelled: Callable[[int], str]
) -> float | None:
    """Return the step from one neighbour to the next, if there is one; check that it is one."""
    distances = np.abs(apart[is_row])
    if not distances.size:
        return None
    # The distance that most share within the tolerance, the smallest of several.
    ascending = np.sort(distances)
    ends = np.searchsorted(ascending, ascending * (1 + TOLERANCE), "right")
    most = int(np.argmax(ends - np.arange(len(ascending))))
    step = float(np.median(ascending[most : ends[most]]))
    ratio = distances / step
    on_grid = np.abs(ratio - np.rint(ratio)) <= TOLERANCE
    close = (ratio < 2 - TOLERANCE) & (np.abs(ratio - 1) > TOLERANCE)  # no item is missing
    if close.any() or 2 * on_grid.sum() <= on_grid.size:
        worst = int(np.flatnonzero(close if close.any() else ~on_grid)[0])
        at = int(np.flatnonzero(is_row)[worst])
        raise OptionError(
            f"windows need evenly spaced samples: {spelled(at)} and {spelled(at + 1)} lie "
            f"{distances[worst]:g} apart, others {step:g}; choose files or a --sample-dim with a "
            "regular coordinate"
        )
    return float(np.sign(apart[is_row][0])) * step
