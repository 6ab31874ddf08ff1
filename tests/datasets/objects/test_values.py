"""What a user's dataset hands out, as named arrays."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from iobench.datasets.python_objects import named_arrays, spec_of
from iobench.errors import SampleError

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros(3), ["0"]),
        (7, ["0"]),
        ([1.0, 2.0], ["0"]),
        ((1.0, 2.0), ["0", "1"]),
        ([np.zeros(2), 1], ["0", "1"]),
        ({"a": 1, "b": {"c": 2, 3: [np.zeros(1), np.ones(1)]}}, ["a", "b/c", "b/3/0", "b/3/1"]),
        (Pair(1, {"x": 2}), ["left", "right/x"]),
        (({"x": np.zeros(2)}, np.int16(3)), ["0/x", "1"]),
    ],
)
def test_names(value, expected):
    assert list(named_arrays(value, where="it")) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "is no number: str"),
        (None, "is no number: NoneType"),
        (np.array(["a"]), "is no number: dtype <U1"),
        (np.datetime64("2024-01-01"), "is no number: dtype datetime64[D]"),
    ],
)
def test_what_is_no_number_is_left_out_and_named(value, reason):
    skipped = {}
    arrays = named_arrays({"kept": 1.5, "left": value}, where="it", skipped=skipped)
    assert list(arrays) == ["kept"]
    assert skipped == {"left": reason}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a/b": 1, "a": {"b": 2}}, r"^here: two .* called 'a/b'; rename one$"),
        ({"a": "b"}, r"here: has no numbers \(a is no number: str\)"),
    ],
)
def test_what_is_no_sample_is_an_error(value, message):
    skipped = {}
    with pytest.raises(SampleError, match=message):
        spec_of(named_arrays(value, where="here", skipped=skipped), where="here", skipped=skipped)


def test_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    value = (torch.ones(2, requires_grad=True), torch.tensor(3))
    arrays = named_arrays(value, where="it")
    assert {name: array.dtype.str for name, array in arrays.items()} == {"0": "<f4", "1": "<i8"}
    with pytest.raises(SampleError, match=r"it: 'a', a Tensor, cannot be had .* convert it"):
        named_arrays({"a": torch.ones(2, dtype=torch.bfloat16)}, where="it")


leaves = st.one_of(
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    hnp.arrays(st.sampled_from(["f4", "<i2", ">u4", "?"]), hnp.array_shapes(max_side=3)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", min_size=1), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
)


def n_leaves(value):
    if isinstance(value, dict):
        return sum(map(n_leaves, value.values()))
    return sum(map(n_leaves, value)) if isinstance(value, tuple) else 1


@given(trees)
def test_no_number_is_lost_and_the_spec_holds(value):
    skipped = {}
    arrays = named_arrays(value, where="it", skipped=skipped)
    assert len(arrays) == n_leaves(value)
    assert skipped == {}
    spec_of(arrays, where="it", skipped={}).check(arrays, where="it")
