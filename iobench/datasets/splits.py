"""Which samples of a dataset a split or a window takes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError, UnknownNameError
from iobench.samples import Window
from iobench.windows import WindowPlacement, place_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import SampleIndex


def select_split(index: SampleIndex, name: str) -> Sequence[int]:
    """Return the sample numbers of a split, e.g. ``"train"``."""
    splits = index.splits
    if not splits:
        raise UnknownNameError(f"--split {name}: this dataset has no splits; leave out --split")
    if name not in splits:
        listed = ", ".join(f"{split} ({len(numbers)})" for split, numbers in splits.items())
        near = difflib.get_close_matches(name, splits, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownNameError(f"--split {name}: no such split; {hint}splits (samples): {listed}")
    if not len(splits[name]):
        raise OptionError(f"--split {name}: no sample of it is in these files")
    return splits[name]


def select_splits(index: SampleIndex, names: Sequence[str]) -> Sequence[int]:
    """Return the sample numbers of some splits, ascending where they are several."""
    if len(names) == 1:
        return select_split(index, names[0])
    return sorted({number for name in names for number in select_split(index, name)})


def place_index_windows(
    index: SampleIndex, window: Window, *, split: str | Sequence[str] | None = None
) -> WindowPlacement:
    """Return where a window fits in the samples of a dataset, or of one or more of its splits.

    Of several, all items of a window are of the same one.
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
            "they follow each other; leave out --window"
        )
    splits = (split,) if isinstance(split, str) else tuple(split or ())
    within = select_splits(index, splits) if splits else None
    placed = place_windows(
        axis.positions, window, rows=axis.rows, within=within, names=index.coordinate
    )
    if len(splits) > 1:
        placed = _of_one_split_each(placed, [select_split(index, name) for name in splits])
    if not len(placed):
        n_samples = len(index) if within is None else len(within)
        of_split = f" of {' and '.join(splits)}" if splits else ""
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


def _of_one_split_each(placed: WindowPlacement, splits: Sequence[Sequence[int]]) -> WindowPlacement:
    """Return the windows all of whose items are of one split."""
    whole = np.zeros(len(placed), dtype=np.bool_)
    for numbers in splits:
        own = np.isin(placed.centres, numbers) & np.isin(placed.items, numbers).all(axis=1)
        whole |= own
    n_across = len(placed) - int(whole.sum())
    return replace(
        placed,
        centres=placed.centres[whole],
        items=placed.items[whole],
        n_at_split=placed.n_at_split + n_across,
    )


def why_no_windows(index: SampleIndex) -> str:
    """Return why none fits samples that lie in rows: they are not evenly spaced; else nothing."""
    try:
        place_windows(index.positions, Window((0,)), rows=index.rows, names=index.coordinate)
    except OptionError as error:
        return str(error)
    return ""
