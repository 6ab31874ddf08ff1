"""Where variables lie in extents, found from the arrays decoded from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.stores.fields import FieldLayout, FieldPart

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(lengths=LENGTHS, gaps=st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_parts_tile_the_extent(lengths, gaps):
    data = bytes(range(sum(lengths) + sum(gaps[: len(lengths) + 1]) + 1))
    raw, arrays, at = memoryview(bytearray(data)), {}, 0
    for number, (length, gap) in enumerate(zip(lengths, gaps, strict=False)):
        at += gap
        arrays[f"v{number}"] = np.frombuffer(raw, np.uint8, length, at)
        at += length
    layout = FieldLayout.of_views([raw], arrays, is_tagged=True)
    (parts,) = layout.extents
    pieces = [data[part.start : part.start + part.nbytes] for part in parts]
    assert b"".join(pieces) == data
    around = [piece for part, piece in zip(parts, pieces, strict=True) if not part.name]
    assert (layout.lengths, layout.around) == ((len(data),), (b"".join(around),))
    found = {part.name: piece for part, piece in zip(parts, pieces, strict=True) if part.name}
    assert found == {name: each.tobytes() for name, each in arrays.items() if each.size}


def test_each_extent_has_its_own_parts() -> None:
    raw = [memoryview(bytearray(8)), memoryview(bytearray(4))]
    arrays = {"a": np.frombuffer(raw[1], "<f4"), "b": np.frombuffer(raw[0], "<i4", 1, 4)}
    layout = FieldLayout.of_views(raw, arrays, is_tagged=False)
    assert layout == FieldLayout(
        ((FieldPart("", 0, 4), FieldPart("b", 4, 4)), (FieldPart("a", 0, 4),)), None
    )


def test_an_extent_without_bytes_has_no_layout() -> None:
    assert FieldLayout.of_views([memoryview(b"")], {}, is_tagged=False) is None


@pytest.mark.parametrize("how", ["elsewhere", "strided", "overlapping"])
def test_arrays_that_are_no_plain_views_have_no_layout(how: str) -> None:
    raw = memoryview(bytearray(16))
    whole = np.frombuffer(raw, "<i2")
    arrays = {
        "elsewhere": {"a": whole.copy()},
        "strided": {"a": whole[::2]},
        "overlapping": {"a": whole[:4], "b": whole[3:]},
    }[how]
    assert FieldLayout.of_views([raw], arrays, is_tagged=False) is None
