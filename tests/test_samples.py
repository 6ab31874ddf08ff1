from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import SampleError
from iobench.samples import SampleSpec, Variable

T2M = Variable("t2m", (3, 4), "<f4", ("lat", "lon"), "K", "target")


@st.composite
def variables(draw: st.DrawFn) -> Variable:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    channels = tuple(f"c{i}" for i in range(shape[0])) if shape and draw(st.booleans()) else ()
    return Variable(
        draw(st.text(min_size=1)),
        shape,
        draw(st.sampled_from(["<f4", ">f8", "u1", "<i2", "?", "<c8"])),
        tuple(f"d{axis}" for axis in range(len(shape))),
        draw(st.text()),
        draw(st.sampled_from(["input", "target"])),
        channels,
    )


@given(st.lists(variables(), min_size=1, unique_by=lambda variable: variable.name))
def test_spec_survives_json(found: list[Variable]) -> None:
    spec = SampleSpec(tuple(found))
    values = json.loads(json.dumps(spec.to_dict()))["variables"]
    assert SampleSpec(msgspec.convert(values, tuple[Variable, ...])) == spec
    assert spec.nbytes == sum(np.zeros(v.shape, v.dtype).nbytes for v in found)


def test_byte_order_has_one_spelling() -> None:
    assert Variable("x", (), ">f4", ()).dtype == "<f4"
    assert Variable("x", (), "float32", ()).dtype == "<f4"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dims": ("lat",)}, "dimension names"),
        ({"channels": ("a",)}, "channel names"),
        ({"dtype": "O"}, "is not a number"),
        ({"dtype": "U4"}, "is not a number"),
    ],
)
def test_a_variable_that_contradicts_itself_is_refused(values: dict, words: str) -> None:
    with pytest.raises(SampleError, match=words):
        Variable(**({"name": "x", "shape": (2, 2), "dtype": "f4", "dims": ("a", "b")} | values))


def test_channels_may_be_the_last_axis() -> None:
    Variable("x", (4, 2), "f4", ("y", "channel"), channels=("a", "b"))
    with pytest.raises(SampleError, match="channel names"):
        Variable("x", (2, 4), "f4", ("y", "channel"), channels=("a", "b"))


@pytest.mark.parametrize("found", [(), (T2M, T2M)])
def test_a_spec_needs_distinct_variables(found: tuple[Variable, ...]) -> None:
    with pytest.raises(SampleError, match="distinct names"):
        SampleSpec(found)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({}, r"expected arrays \['t2m'\]"),
        ({"t2m": np.zeros((3, 4), "f8")}, "'t2m' is <f8"),
        ({"t2m": np.zeros((4, 3), "f4")}, r"\(4, 3\), expected <f4 \(3, 4\)"),
    ],
)
def test_a_sample_of_another_shape_is_named(sample: dict, words: str) -> None:
    with pytest.raises(SampleError, match=words) as caught:
        SampleSpec((T2M,)).check(sample, where="sample 7")
    assert str(caught.value).startswith("sample 7: ")


def test_the_right_sample_passes() -> None:
    SampleSpec((T2M,)).check({"t2m": np.zeros((3, 4), "f4")}, where="sample 0")
