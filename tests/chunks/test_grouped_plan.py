"""Which samples are made together: a pure function of chunks, order and memory."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.group_plan import JOINED_NBYTES, plan_groups
from iobench.errors import OptionError

KB = 1000
LARGE = JOINED_NBYTES  # samples of this size are not joined for their smallness
IN_FLIGHT = 1 << 20  # more than as many pieces of 1 KB as there are CPUs


@dataclass(frozen=True)
class Shared:
    """A variable whose ``sharing`` samples are decoded together."""

    sharing: int
    sample_nbytes: int = LARGE
    axis: int = 0
    name: str = "v"
    on_the_way_nbytes: int = KB

    @property
    def row_nbytes(self):
        return self.sample_nbytes * (self.sharing if self.axis >= 0 else 1)


def in_order(n, file=0):
    return [(file, index) for index in range(n)]


def lengths(where, *files, memory_nbytes=1 << 50):
    return plan_groups(where, files, memory_nbytes).lengths


def decoded_nbytes(where, file, found):
    """Count what groups of these lengths decode."""
    total, start = 0, 0
    for length in found:
        group = where[start : start + length]
        for variable in file:
            total += len({i // variable.sharing for _, i in group}) * variable.row_nbytes
        start += length
    return total


def test_groups_end_where_chunks_end():
    assert lengths(in_order(70), [Shared(30)]) == [30, 30, 10]


def test_a_part_of_the_samples():
    assert lengths([(0, i) for i in range(25, 65)], [Shared(30)]) == [5, 30, 5]


def test_chunks_of_two_lengths_end_together():
    assert lengths(in_order(24), [Shared(4), Shared(6)]) == [12, 12]


def test_with_less_memory_the_larger_chunks_stay_whole():
    large, small = Shared(4, sample_nbytes=LARGE), Shared(6, sample_nbytes=LARGE // 8)
    memory_nbytes = 2 * 6 * (large.sample_nbytes + small.sample_nbytes) + IN_FLIGHT
    found = lengths(in_order(24), [large, small], memory_nbytes=memory_nbytes)
    assert found == [4] * 6


def test_rows_that_do_not_fit_are_cut():
    found = lengths(in_order(60), [Shared(30)], memory_nbytes=2 * 12 * LARGE + IN_FLIGHT)
    assert found == [12, 12, 6, 12, 12, 6]


def test_samples_that_share_nothing_stay_single():
    assert lengths(in_order(3), [Shared(1)]) == [1, 1, 1]
    assert lengths([(0, 0), (0, 30), (0, 1), (0, 31)], [Shared(30)]) == [1, 1, 1, 1]


def test_any_order_within_a_chunk():
    assert lengths([(0, 7), (0, 3), (0, 9), (0, 12), (0, 11)], [Shared(10)]) == [3, 2]


def test_files_are_kept_apart():
    where = [*in_order(5), *in_order(5, file=1)]
    assert lengths(where, [Shared(30)], [Shared(3)]) == [5, 3, 2]


def test_small_neighbours_are_joined():
    small = Shared(1, sample_nbytes=JOINED_NBYTES // 100)
    assert lengths(in_order(250), [small]) == [100, 100, 50]
    assert lengths([(0, 2 * i) for i in range(5)], [small]) == [1] * 5


def test_neighbours_are_joined_by_what_is_made_at_once():
    file = [Shared(1, sample_nbytes=LARGE // 8, name=name) for name in "abc"]
    assert lengths(in_order(16), file) == [2] * 8
    assert plan_groups(in_order(16), [file], 1 << 50, apart=True).lengths == [8, 8]


def test_what_all_samples_have_binds_only_if_it_is_large():
    every = Shared(1 << 60, axis=-1)
    assert lengths(in_order(9), [Shared(1), every]) == [9]
    small = Shared(1 << 60, axis=-1, sample_nbytes=LARGE // 100)
    assert lengths(in_order(9), [Shared(1), small]) == [1] * 9


def test_a_chunk_that_does_not_fit_is_refused():
    file = [Shared(30, sample_nbytes=1 << 20, on_the_way_nbytes=9 << 20, name="large")]
    with pytest.raises(OptionError, match=r"'large'.*--memory 11MiB$"):
        lengths(in_order(60), file, memory_nbytes=(11 << 20) - 1)
    assert sum(lengths(in_order(60), file, memory_nbytes=11 << 20)) == 60


def test_less_than_a_mebibyte_is_told_as_such():
    file = [Shared(3, sample_nbytes=1000, on_the_way_nbytes=500 << 10)]
    said = "^--memory 64KiB is too little: .*--memory 502KiB$"
    with pytest.raises(OptionError, match=said):
        lengths(in_order(6), file, memory_nbytes=64 << 10)
    assert sum(lengths(in_order(6), file, memory_nbytes=502 << 10)) == 6


def test_what_is_in_flight_fits_as_well():
    file = [Shared(30, sample_nbytes=1 << 20, on_the_way_nbytes=1 << 20)]
    for memory_nbytes in range(3 << 20, 200 << 20, 7 << 20):
        plan = plan_groups(in_order(60), [file], memory_nbytes)
        assert plan.in_flight_nbytes >= 1 << 20
        assert 2 * max(plan.lengths) * (1 << 20) + plan.in_flight_nbytes <= memory_nbytes


@given(
    sharings=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    n=st.integers(1, 80),
    most=st.integers(1, 40),
)
def test_every_sample_once_within_the_memory(sharings, n, most):
    file = [Shared(sharing) for sharing in sharings]
    memory_nbytes = 2 * most * LARGE * len(file) + IN_FLIGHT
    where = in_order(n)
    found = lengths(where, file, memory_nbytes=memory_nbytes)
    assert sum(found) == n
    assert 1 <= max(found) <= most
    one_by_one = decoded_nbytes(where, file, [1] * n)
    decoded = decoded_nbytes(where, file, found)
    assert decoded <= one_by_one
    if len(file) == 1:
        # No order of cuts does better than as few parts of each row as fit.
        rows = [min(sharings[0], n - start) for start in range(0, n, sharings[0])]
        parts = sum(-(-row // most) for row in rows)
        assert decoded == parts * file[0].row_nbytes


def test_a_hundred_thousand_samples_are_planned_at_once():
    small = Shared(10, sample_nbytes=16 * KB)
    assert sum(lengths(in_order(100_000), [small], memory_nbytes=256 << 20)) == 100_000


def test_what_does_not_fit_is_cut_nowhere_where_it_can_be_put_aside():
    file, memory_nbytes = [Shared(30)], 2 * 10 * LARGE + IN_FLIGHT
    cut = plan_groups(in_order(70), [file], memory_nbytes).lengths
    assert max(cut) <= 10
    aside = plan_groups(in_order(70), [file], memory_nbytes, spill_nbytes=2 * 30 * LARGE)
    assert aside.lengths == [30, 30, 10]
    some = plan_groups(in_order(70), [file], memory_nbytes, spill_nbytes=2 * 15 * LARGE)
    assert some.lengths == [15, 15, 15, 15, 10]


def test_what_all_samples_share_puts_none_of_them_aside():
    file = [Shared(1), Shared(1 << 40, sample_nbytes=LARGE, axis=-1)]
    memory_nbytes = 2 * 11 * LARGE + IN_FLIGHT
    found = plan_groups(in_order(70), [file], memory_nbytes, spill_nbytes=1 << 50)
    assert found.lengths == [10] * 7
    ended = plan_groups(in_order(70), [file], memory_nbytes, spill_nbytes=1 << 50, ends=[15])
    assert ended.lengths == [10, 5, 10, 10, 10, 10, 10, 5]


def test_small_neighbours_are_joined_but_not_beyond_the_end_of_a_shard():
    file = [Shared(1, sample_nbytes=KB)]
    assert plan_groups(in_order(8), [file], 1 << 30, spill_nbytes=1 << 40, ends=[3, 6]).lengths == [
        3, 3, 2
    ]  # fmt: skip
