"""Values come back as they were, with the types that arithmetic depends on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from iobench.datasets.plain_values import describe_kinds, pack_value, unpack_value

HERE = Path("a")


class Pair(msgspec.Struct, frozen=True):
    one: Any
    two: Any


class Alone(msgspec.Struct, frozen=True):
    path: Path


KINDS = (Pair, Alone)


def plain(value: Any) -> Any:
    """Return a value with all its types, to be compared: NaN equals NaN."""
    if isinstance(value, Pair):
        return Pair, plain(value.one), plain(value.two)
    if isinstance(value, dict):
        return dict, {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    return type(value), repr(value)


shapes = arrays.array_shapes(min_dims=0, min_side=0)
numbers = arrays.scalar_dtypes().flatmap(lambda dtype: arrays.arrays(dtype, shapes))
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(HERE)
    | numbers | numbers.filter(lambda array: array.size > 0).map(lambda array: array.flat[0])
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_a_value_comes_back(value):
    packed = pack_value(value, KINDS, HERE)
    assert plain(unpack_value(packed, KINDS, HERE)) == plain(value)


def test_files_that_differ_in_numbers_share_the_text():
    one, two = (
        Pair({"t": n}, (np.arange(n), np.float32(0.1), (n, n))) for n in (3, 4)
    )  # fmt: skip
    assert pack_value(one, KINDS, HERE)[0] == pack_value(two, KINDS, HERE)[0]


def test_the_path_is_that_of_who_asks():
    packed = pack_value(Alone(HERE), KINDS, HERE)
    assert unpack_value(packed, KINDS, Path("/b/a")) == Alone(Path("/b/a"))
    assert b"a" not in pack_value(Pair(1, HERE), KINDS, HERE)[1]


@pytest.mark.parametrize("value", [b"bytes", {1}, {1: 2}, Path("b"), np.array(["a", None])])
def test_what_cannot_be_kept_is_refused(value):
    with pytest.raises(TypeError):
        pack_value(Pair(1, value), KINDS, HERE)


@given(values, st.data())
def test_other_bytes_are_an_error_or_a_value(value, data):
    text, content = pack_value(value, KINDS, HERE)
    whole = bytearray(text + content)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        unpack_value((bytes(whole[: len(text)]), bytes(whole[len(text) :])), KINDS, HERE)


def test_a_text_names_no_class_but_those_given():
    for text in (b'["c",7,1,2]', b'["c","os.system","ls"]', b'["x"]', b'["a","O",1]', b"[]"):
        with pytest.raises(ValueError):  # noqa: PT011 - any of it, nothing else
            unpack_value((text, bytes(8)), KINDS, HERE)


def test_another_field_or_type_is_another_description():
    def described(**types):
        made = msgspec.defstruct("Pair", list(types.items()), frozen=True)
        return describe_kinds((made,))

    assert len({described(a="int"), described(a="str"), described(b="int")}) == 3
    assert described(a="int") == described(a="int")
