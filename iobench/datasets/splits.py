"""Which samples of a dataset a split or a window takes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from iobench.errors import OptionError, UnknownNameError
from iobench.windows import WindowPlacement, place_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import SampleIndex
    from iobench.samples import Window

__all__ = ["place_index_windows", "select_split"]


def select_split(index: SampleIndex, name: str) -> Sequence[int]:
    """Return the sample numbers of a split, e.g. ``"train"``.

    Raises
    ------
    UnknownNameError
        If there is no split of that name; lists those there are.
    OptionError
        If it has no sample.
    """
    splits = index.splits
    if not splits:
        raise UnknownNameError(f"--split {name}: this dataset has no splits; leave --split out")
    if name not in splits:
        listed = ", ".join(f"{split} ({len(numbers)})" for split, numbers in splits.items())
        near = difflib.get_close_matches(name, splits, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownNameError(f"--split {name}: no such split; {hint}splits (samples): {listed}")
    if not len(splits[name]):
        raise OptionError(f"--split {name}: no sample of it is in these files")
    return splits[name]


def place_index_windows(
    index: SampleIndex, window: Window, *, split: str | None = None
) -> WindowPlacement:
    """Return where a window fits in the samples of a dataset, or of one of its splits.

    Raises
    ------
    OptionError
        If the samples are in no row, are not evenly spaced along it, or no window fits; or are
        along several dimensions and the window names none.
    UnknownNameError
        If there is no such split, or the window names another dimension.
    """
    try:
        axis = index.along(window.dim)
    except OptionError as error:
        hint = f"{index.dims[0]}={window.spelled}"
        raise OptionError(f"--window={window.spelled}: {error}, as --window {hint}") from None
    except UnknownNameError as error:
        raise UnknownNameError(f"--window={window.spelled}: {error}") from None
    if not len(axis.positions):
        raise OptionError(
            f"--window={window.spelled}: the samples of this dataset are in no row along which "
            "they follow each other; leave --window out"
        )
    within = None if split is None else select_split(index, split)
    placed = place_windows(
        axis.positions, window, rows=axis.rows, within=within, names=index.coordinate
    )
    if not len(placed):
        n_samples = len(index) if within is None else len(within)
        of_split = f" of {split}" if split else ""
        reasons = [
            f"{number} {what}"
            for number, what in (
                (placed.n_at_ends, "too near an end"),
                (placed.n_at_gaps, "too near a gap"),
                (placed.n_at_split, "at the edge of the split"),
            )
            if number
        ]
        raise OptionError(
            f"--window={window.spelled}: fits nowhere in the {n_samples} samples{of_split} "
            f"({', '.join(reasons)}); take a shorter window or more files"
        )
    return placed
