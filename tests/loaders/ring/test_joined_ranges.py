"""Ranges that are joined to fewer reads, and views that one read fills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.files.open_files import FileSet
from iobench.files.ranges import FileRange
from iobench.loaders.ring.reads import RangeViews, joined

if TYPE_CHECKING:
    from pathlib import Path


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


def test_thousands_of_views_are_filled_though_a_call_takes_fewer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = np.random.default_rng(0).bytes(5000)
    path.write_bytes(data)
    files = FileSet([path], {})
    memory = bytearray(4990)
    views = [memoryview(memory)[at : at + 2] for at in range(0, 4990, 2)]
    files.opened(0).fill_views(views, 7, 4997)
    assert bytes(memory) == data[7:4997]
    with pytest.raises(StoreError, match="the file ends at byte 5000, 3 bytes more"):
        files.opened(0).fill(memoryview(bytearray(10)), 4993)
    files.close()
