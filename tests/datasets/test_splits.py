"""Choosing a split's samples, and windows within it."""

from __future__ import annotations

import pytest

from iobench.datasets.contract import SampleAxis, SampleIndex
from iobench.datasets.selection import place_index_windows, select_split
from iobench.errors import OptionError, UnknownNameError
from iobench.samples import SampleSpec, Variable, Window

SPEC = SampleSpec((Variable("v", (), "<f4", ()),))


def index(n_samples=10, **facts):
    return SampleIndex(SPEC, range(n_samples), **facts)


SPLITS = {"train": range(6), "validation": [6, 7, 9], "test": []}


def test_an_unknown_split_lists_those_there_are():
    with pytest.raises(UnknownNameError) as caught:
        select_split(index(splits=SPLITS), "validate")
    assert str(caught.value) == (
        "--split validate: no such split; did you mean validation? splits (samples): train (6), "
        "validation (3), test (0)"
    )


def test_a_dataset_without_splits_says_so():
    with pytest.raises(UnknownNameError, match="has no splits; leave out --split"):
        select_split(index(), "train")


def test_a_split_without_samples_is_refused():
    with pytest.raises(OptionError, match="no sample of it"):
        select_split(index(splits=SPLITS), "test")


def test_of_several_splits_each_window_lies_within_one():
    there = index(splits={"train": range(6), "test": range(6, 10)}, positions=range(10))
    placed = place_index_windows(there, Window.parse("-1,0:1"), split=["train", "test"])
    assert placed.centres.tolist() == [1, 2, 3, 4, 7, 8]
    assert (placed.n_at_ends, placed.n_at_split) == (2, 2)


def test_gaps_of_other_splits_are_not_listed():
    there = index(splits=SPLITS, positions=[0, 1, 2, 5, 6, 7, 10, 11, 14, 15])
    window = Window.parse("0:1")
    assert [gap.before for gap in place_index_windows(there, window).gaps] == [2, 5, 7]
    # The gap from 7 to 8 is beside the split's sample 7, the one from 2 to 3 far from it.
    placed = place_index_windows(there, window, split="validation")
    assert [gap.before for gap in placed.gaps] == [5, 7]
    assert placed.items.tolist() == [[6, 7]]


def test_samples_in_no_row_have_no_windows():
    with pytest.raises(OptionError, match="--window=0:1: no evenly spaced sample coordinate"):
        place_index_windows(index(), Window.parse("0:1"))


def test_a_window_that_fits_nowhere_says_why():
    there = index(5, positions=[0, 1, 2, 9, 10], splits={"train": [0, 1, 2]})
    window = Window.parse("0:1,2,3")
    with pytest.raises(OptionError) as caught:
        place_index_windows(there, window)
    assert "in the 5 samples (3 too near an end, 2 too near a gap); take" in str(caught.value)
    with pytest.raises(OptionError, match=r"in the 3 samples of train \(1 too near an end, 2 too"):
        place_index_windows(there, window, split="train")


# ---- samples along several dimensions


def hypercube(n_times=4, n_members=3):
    """Each date and member a sample, dates slowest."""
    times, members = range(n_times), range(n_members)
    both = [(time, member) for time in times for member in members]
    return index(
        len(both),
        coordinate=[f"day {time}, number {member}" for time, member in both],
        axes=(
            SampleAxis("time", [86400.0 * t for t, _ in both], "seconds", [m for _, m in both]),
            SampleAxis("number", [float(m) for _, m in both], "", [t for t, _ in both]),
        ),
    )


def test_a_window_keeps_the_member():
    placed = place_index_windows(hypercube(), Window.parse("time=-1,0:1"))
    assert placed.items.tolist() == [
        [0, 3, 6], [1, 4, 7], [2, 5, 8], [3, 6, 9], [4, 7, 10], [5, 8, 11]
    ]  # fmt: skip
    assert (placed.step, placed.n_at_ends) == (86400, 6)


def test_a_window_says_along_which_of_several_dimensions():
    with pytest.raises(OptionError) as caught:
        place_index_windows(hypercube(), Window.parse("-1,0:1"))
    assert str(caught.value) == (
        "--window=-1,0:1: samples are along time, number: name one of them, as --window time=-1,0:1"
    )


def test_a_window_along_what_samples_are_not_along_is_told_what_is_meant():
    one = index(3, positions=[0, 1, 2], provenance={"sample_dim": "time"})
    for there, listed in ((hypercube(), "time, number"), (one, "time")):
        with pytest.raises(UnknownNameError) as caught:
            place_index_windows(there, Window.parse("tine=0:1"))
        assert str(caught.value) == (
            "--window=tine=0:1: samples are not along 'tine'; did you mean time? they are along "
            f"{listed}"
        )


def test_a_window_may_name_the_only_dimension():
    one = index(3, positions=[0, 1, 2], provenance={"sample_dim": "time"})
    assert len(place_index_windows(one, Window.parse("time=0:1"))) == 2
    with pytest.raises(UnknownNameError, match=r"is unknown; leave time= out"):
        place_index_windows(index(3, positions=[0, 1, 2]), Window.parse("time=0:1"))
