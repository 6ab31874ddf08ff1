"""Windows: how they are spelled, and where they fit between the gaps of a coordinate."""

from __future__ import annotations

import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from iobench.errors import OptionError
from iobench.samples import Window
from iobench.windows import TOLERANCE, place_windows

offset_lists = st.lists(st.integers(-4, 4), unique=True, max_size=4).map(tuple)
windows = st.builds(
    Window, offset_lists.filter(len), offset_lists, st.sampled_from(["", "time", "lead time"])
)


@given(windows)
def test_spelling_survives(window):
    assert Window.parse(window.spelled) == window
    assert set(window.offsets) == {*window.inputs, *window.targets}
    assert list(window.offsets) == sorted(set(window.offsets))


def test_a_window_is_read_in_the_order_given():
    assert Window.parse(" 0 , -1 : 0 ") == Window((0, -1), (0,))
    assert Window.parse("-2") == Window((-2,), ())


NO_WINDOWS = ("", ":1", "0:", "0:1:2", "0;1", "0.5:1", "0,0:1", "0:1,1", "a")


@pytest.mark.parametrize("text", [*NO_WINDOWS, "=0:1", "time=", "0:1=time"])
def test_other_spellings_are_told_how(text):
    with pytest.raises(OptionError, match=rf"^--window={text}: .*as -1,0:1"):
        Window.parse(text)


def test_offsets_are_distinct_whole_numbers():
    for inputs in ((), (0.5,), ("0",), (1, 1), (None,)):
        with pytest.raises(OptionError, match="window: "):
            Window(inputs, ())
    window = Window(tuple(np.arange(2)), (np.int64(2),))
    assert json.dumps([window.inputs, window.targets]) == "[[0, 1], [2]]"
    assert pickle.loads(pickle.dumps(window)) == window == Window((0, 1), (2,))


def fits(positions, rows, centre, window, allowed, step):
    """Tell by the definition, item after item, whether a window fits."""
    reach = range(min(0, *window.offsets), max(0, *window.offsets) + 1)
    members = [centre + offset for offset in reach]
    if members[0] < 0 or members[-1] >= len(positions) or centre not in allowed:
        return False
    if any(centre + offset not in allowed for offset in window.offsets):
        return False
    return all(
        rows[a] == rows[b] and abs(positions[b] - positions[a] - step) < step / 2
        for a, b in itertools.pairwise(members)
    )


@st.composite
def gappy_rows(draw):
    """Draw ascending positions with gaps of whole steps, in one or more rows."""
    step = draw(st.sampled_from([1, 0.1, 3600.0, 1 / 3, 21600]))
    positions, rows = [], []
    for row in range(draw(st.integers(1, 3))):
        apart = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 7]), max_size=12))
        start = draw(st.integers(-50, 50))
        places = start + np.cumsum([0, *apart])
        positions += (places * step).tolist()
        rows += [row] * len(places)
    return positions, rows, step


@given(gappy_rows(), windows, st.data())
@settings(max_examples=5 * settings().max_examples, deadline=None)
def test_windows_fit_where_the_definition_says(drawn, window, data):
    positions, rows, step = drawn
    split = data.draw(st.none() | st.sets(st.integers(0, len(positions) - 1)))
    allowed = range(len(positions)) if split is None else split
    apart = np.diff(positions)[np.diff(rows) == 0] / step
    assume(2 * np.isclose(apart, 1).sum() > len(apart))
    splits = None if split is None else [sorted(split)]
    placed = place_windows(positions, window, rows=rows, splits=splits)
    expected = [c for c in allowed if fits(positions, rows, c, window, allowed, step)]
    assert placed.centres.tolist() == sorted(expected)
    assert (placed.items == placed.centres[:, None] + np.array(window.offsets)).all()
    left_out = placed.n_at_ends + placed.n_at_gaps + placed.n_at_split
    assert len(placed) + left_out == len(allowed)


@given(st.lists(st.sampled_from([1, 1, 1, 4]), min_size=1, max_size=30), st.permutations([0, 1, 2]))
def test_rows_may_be_mixed(apart, rows):
    """Rows that take turns give the windows each of them gives alone."""
    one = np.cumsum(apart) * 0.1
    if np.unique(apart).tolist() != [1, 4] or apart.count(1) <= apart.count(4):
        one = np.arange(len(apart)) * 0.1
    window = Window((-1, 0), (1,))
    alone = place_windows(one, window)
    mixed = place_windows(np.repeat(one, 3), window, rows=np.tile(rows, len(one)))
    expected = sorted(3 * centre + row for centre in alone.centres.tolist() for row in range(3))
    assert mixed.centres.tolist() == expected
    assert (mixed.items // 3 == mixed.centres[:, None] // 3 + np.array(window.offsets)).all()
    assert (mixed.items % 3 == mixed.centres[:, None] % 3).all()


def test_positions_may_descend_and_a_gap_need_not_be_of_whole_steps():
    placed = place_windows([850.0, 750.0, 650.0, 350.0, 250.0], Window.parse("0:1"))
    assert (placed.step, placed.centres.tolist()) == (-100, [0, 1, 3])
    placed = place_windows([0, 1, 2, 4.5, 5.5, 6.5], Window.parse("0:1"))
    assert placed.centres.tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("sign", [1, -1])
def test_spacing_has_a_tolerance(sign):
    positions = np.arange(9, dtype=float)
    positions[5:] += sign * 0.9 * TOLERANCE
    assert len(place_windows(positions, Window.parse("0:1"))) == 8
    positions[5:] += sign * 0.2 * TOLERANCE
    with pytest.raises(OptionError, match="sample 4 and sample 5 lie"):
        place_windows(positions, Window.parse("0:1"))


@pytest.mark.parametrize(
    ("positions", "rows", "words"),
    [
        ([0, 1, 1, 2], (), r"sample 1 \(b\) and sample 2 \(c\) have one position, 1"),
        ([0, 1, 3, 2], (), r"sample 2 \(c\) and sample 3 \(d\) are out of order \(3, then 2\)"),
        ([0, 1, 0, 0], (0, 0, 1, 1), r"sample 2 \(c\) and sample 3 \(d\) have one position"),
        ([0, 1, 1, 0], (0, 0, 1, 1), r"sample 2 \(c\) and sample 3 \(d\) are out of order"),
        ([0, float("nan"), 1, 2], (), r"sample 1 \(b\) has no position"),
        ([0, 1, 2, 2.5], (), r"sample 2 \(c\) and sample 3 \(d\) lie 0.5 apart, others 1"),
        ([0, 3, 7, 10], (0,) * 4, "lie 4 apart, others 3"),
        ([0, 1, 2.7, 7.1], (), "need evenly spaced samples"),
    ],
)
def test_what_is_no_row_is_named(positions, rows, words):
    with pytest.raises(OptionError, match=words):
        place_windows(positions, Window((0,)), rows=rows, names="abcd")


def test_too_few_samples_have_no_window_but_themselves():
    for positions in ([], [3.0]):
        assert len(place_windows(positions, Window.parse("0:1"))) == 0
        assert len(place_windows(positions, Window((0,)))) == len(positions)
