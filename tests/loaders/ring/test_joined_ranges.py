"""Ranges that are joined to fewer reads, and views that one read fills."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iobench.files.ranges import FileRange
from iobench.loaders.ring.object_reads import RangeViews, joined


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(1, 9)), max_size=8))
def test_joined_ranges_fill_the_same_memory(places: list[tuple[int, int, int]]) -> None:
    files = [bytes(range(60)), bytes(range(60, 120))]
    memory = [bytearray(nbytes) for _, _, nbytes in places]
    ranges = [
        RangeViews(FileRange(file, offset, nbytes), [memoryview(one)])
        for (file, offset, nbytes), one in zip(places, memory, strict=True)
    ]
    dropped = memoryview(bytearray(3))
    for one, views in joined(ranges, dropped):
        at = one.offset
        for view in views:
            view[:] = files[one.file][at : at + len(view)]
            at += len(view)
        assert at == one.end
    for (file, offset, nbytes), one in zip(places, memory, strict=True):
        assert bytes(one) == files[file][offset : offset + nbytes]
