"""Reasons for gaps: named with evidence, and never for want of a better name."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iobench.subjects.storage.gaps import (
    COLUMNS,
    ByteGap,
    ByteRow,
    Known,
    merged,
    name_gaps,
    shared_reads,
)

NPY = 2_048_128
RAW = Known(
    "x.npy", asked=NPY, posix=NPY, stdio=0, segments=NPY, posix_reads=2, front=NPY,
    rchar=NPY + 110, device=NPY + 3968 - 110, n_reads=1, n_looks=1,
)  # fmt: skip
LOADED = Known(
    "x.npy", asked=NPY, posix=4096, stdio=NPY - 128, segments=4096, posix_reads=1, stdio_reads=1,
    front=4096,
)  # fmt: skip
NETCDF = Known(
    "x.nc", asked=20_480_000, asked_decoded=10_240_000, posix=14_704_937, stdio=4 << 20,
    segments=14_704_937, posix_reads=61, stdio_reads=1, sniffed=4 << 20, tables=14_559,
    front=28_000_000,
)  # fmt: skip


def names(known):
    return {gap.name: gap.nbytes for gap in name_gaps(known)}


def settled(known):
    columns = {name: getattr(known, name) for name in COLUMNS}
    return ByteRow("file", known.name, **columns, gaps=name_gaps(known)).settled


def test_what_is_equal_has_no_gap():
    assert name_gaps(Known("x", asked=5, posix=5, stdio=0, segments=5)) == ()


def test_the_known_ways_to_read_are_settled():
    assert names(RAW) == {"own reads": 110, "read-ahead": 3968 - 220}
    assert names(LOADED) == {"header read twice": 3968}
    assert names(NETCDF) == {
        "format sniffing": 4 << 20, "metadata": 14_559, "compression": 14_690_378 - 20_480_000,
    }  # fmt: skip
    assert all(map(settled, (RAW, LOADED, NETCDF)))


@given(
    st.sampled_from([RAW, LOADED, NETCDF]),
    st.sampled_from(["posix", "stdio", "segments", "rchar"]),
    st.integers(-3_000_000, 3_000_000).filter(lambda each: abs(each) > 2048),
)
def test_bytes_that_nothing_explains_are_not_settled(known, column, more):
    assume(getattr(known, column) is not None and getattr(known, column) + more >= 0)
    changed = replace(known, **{column: getattr(known, column) + more})
    if column == "stdio":
        changed = replace(changed, sniffed=0)  # it is no multiple of what sniffing reads
    assert not settled(changed)
    assert any(not gap.name for gap in name_gaps(changed))


@given(st.integers(1, NPY))
def test_raw_reads_must_be_what_was_handed_on(less):
    assert not settled(replace(RAW, asked=RAW.asked - less))
    assert not settled(replace(RAW, asked=RAW.asked + less))


@given(st.integers(-4096, 4096).filter(lambda each: each % 16))
def test_a_header_of_an_impossible_length_is_no_header(more):
    assert not settled(replace(LOADED, asked=LOADED.asked + more))


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_gaps_add_up_to_the_differences(asked, posix, rchar):
    known = Known("x", asked=asked, posix=posix, stdio=0, rchar=rchar, n_looks=3)
    total = {}
    for gap in name_gaps(known):
        total[gap.between] = total.get(gap.between, 0) + gap.nbytes
    assert total.get(("posix+stdio", "asked"), 0) == posix - asked
    assert total.get(("rchar", "posix+stdio"), 0) == rchar - posix


def test_headers_are_small_and_at_the_front():
    assert "" in names(replace(LOADED, front=1 << 20))
    assert "" in names(replace(LOADED, posix=1 << 20, segments=1 << 20))
    assert names(replace(LOADED, asked=NPY - 128)) == {"header read twice": 4096}


def test_strays_count_in_posix_and_nowhere_else():
    known = replace(LOADED, posix=4096 + 31, posix_reads=3, stray=31)
    assert [gap.name for gap in name_gaps(known)] == [
        "stray segments", "header read twice", "stray segments",
    ]  # fmt: skip
    assert settled(known)
    assert not settled(replace(known, posix=known.posix + 1))


def test_a_stage_that_does_not_decode_has_no_compression():
    assert names(Known("x.nc", asked=900, posix=500, stdio=0)) == {"": -400}
    decoded = Known("x.nc", asked=900, asked_decoded=900, posix=500, stdio=0)
    assert names(decoded) == {"compression": -400}
    assert names(replace(decoded, posix=10)) == {"": -890}
    # What was not decoded must have been read in full.
    assert names(replace(decoded, asked_decoded=300)) == {"": -400}


def test_mapping_needs_the_kernel_or_the_tracer_to_tell():
    known = Known("x.npy", asked=NPY, posix=4096, stdio=0, segments=4096)
    assert names(known) == {"": 4096 - NPY}
    assert names(replace(known, mapped=True)) == {"mapping": 4096 - NPY}
    assert names(replace(known, mapped=True, posix=NPY // 2, segments=NPY // 2)) == {
        "": NPY // 2 - NPY
    }


def test_a_mapping_shows_in_the_devices_count():
    known = Known("run", asked=NPY, rchar=150, device=NPY + 3968, mapped=True, n_looks=1, n_reads=1)
    assert [(gap.name, gap.nbytes) for gap in name_gaps(known)] == [
        ("mapping", 150 - NPY), ("mapping", NPY - 150), ("read-ahead", 3968),
    ]  # fmt: skip


def test_read_ahead_is_bounded_by_the_reads():
    known = Known("run", asked=NPY, rchar=NPY, device=NPY + (100 << 10), n_reads=1)
    assert names(known) == {"read-ahead": 100 << 10}
    assert names(replace(known, device=NPY + (200 << 10))) == {"": 200 << 10}
    assert names(replace(known, device=NPY + (200 << 10), n_reads=2)) == {"read-ahead": 200 << 10}


def test_partial_logs_and_missing_ones_are_named_and_not_settled():
    partial = Known("x", asked=900, posix=500, stdio=0, partial=True)
    assert names(partial) == {"partial log": -400}
    assert not settled(partial)
    assert names(replace(partial, posix=None, stdio=None)) == {"partial log": -900}
    assert names(replace(partial, posix=950)) == {"": 50}
    missing = Known("x", asked=900, no_log=True)
    assert names(missing) == {"no log": -900}
    assert not settled(missing)


def test_segments_missing_from_a_full_module():
    known = Known("x", asked=900, posix=900, stdio=0, segments=100, segments_partial=True)
    assert names(known) == {"partial log": 800}
    assert names(replace(known, segments_partial=False)) == {"": 800}


def test_first_batches_read_more():
    known = Known("run", asked=NPY, rchar=NPY + 16_384 + 300, n_looks=3, start_up=16_384)
    assert names(known) == {"start-up": 16_384, "own reads": 300}
    assert names(replace(known, start_up=0)) == {"": 16_684}


def test_what_the_tracer_saw_of_the_first_batch_is_in_both_columns():
    known = Known(
        "run", asked=NPY, posix=NPY + 16_384, stdio=0, segments=NPY + 16_384, elsewhere=16_384,
        rchar=NPY + 16_384 + 300, n_looks=3, start_up=16_384,
    )  # fmt: skip
    assert names(known) == {"other stages": 16_384, "own reads": 300}


def test_what_was_read_for_other_processes():
    rows = []
    for device in (3 * NPY + 4096, 0, 0):
        known = Known("p", asked=NPY, rchar=NPY, device=device, n_reads=1)
        columns = {name: getattr(known, name) for name in COLUMNS}
        rows.append(ByteRow("process", "p", **columns, gaps=name_gaps(known)))
    assert [gap.name for gap in rows[0].gaps] == [""]
    first, *others = shared_reads(rows, [1, 1, 1])
    assert [(gap.name, gap.nbytes) for gap in first.gaps] == [
        ("read for other processes", 2 * NPY), ("read-ahead", 4096),
    ]  # fmt: skip
    assert first.settled
    assert others == rows[1:]
    # Delivered more than all read together, or less: then something else was read as well.
    assert shared_reads(rows[:2], [1, 1]) == rows[:2]
    assert shared_reads([*rows, rows[1]], [1, 1, 1, 1]) == [*rows, rows[1]]
    assert shared_reads([*rows, replace(rows[1], device=None)], [1] * 4)[0] == rows[0]


def test_reads_before_the_first_batch_are_outside_stages():
    known = Known(
        "run", asked=NPY, posix=NPY + 5000, stdio=0, segments=NPY + 5000, outside=5000, rchar=NPY
    )
    assert [(gap.name, gap.nbytes) for gap in name_gaps(known)] == [
        ("outside stages", 5000), ("outside stages", -5000),
    ]  # fmt: skip
    assert settled(known)


def test_what_was_not_asked_for_or_not_counted_is_not_settled():
    assert not settled(Known("x", asked=5))
    assert not settled(Known("x", posix=5, stdio=0, segments=5))


def test_gaps_of_opposite_signs_do_not_make_up_for_each_other():
    between = ("posix", "segments")
    found = merged([ByteGap("", 5, between), ByteGap("", -5, between), ByteGap("", 2, between)])
    assert found == (ByteGap("", 7, between), ByteGap("", -5, between))


@pytest.mark.parametrize("column", ["asked", "posix", "rchar"])
def test_unknown_columns_have_no_gaps(column):
    known = replace(RAW, **{column: None})
    assert all(column not in gap.between for gap in name_gaps(known))
