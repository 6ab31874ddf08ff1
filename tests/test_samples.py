"""Specs of samples: values that survive JSON, refuse what contradicts itself, and check samples."""

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
def variables(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    channels = tuple(f"c{i}" for i in range(shape[0])) if shape and draw(st.booleans()) else ()
    dtype = draw(st.sampled_from(["<f4", ">f8", "u1", "<i2", "?", "<c8"]))
    dims = tuple(f"d{axis}" for axis in range(len(shape)))
    role = draw(st.sampled_from(["input", "target"]))
    return Variable(draw(st.text(min_size=1)), shape, dtype, dims, draw(st.text()), role, channels)


@given(st.lists(variables(), min_size=1, unique_by=lambda variable: variable.name))
def test_spec_survives_json(found):
    spec = SampleSpec(tuple(found))
    values = json.loads(json.dumps(spec.to_dict()))["variables"]
    assert SampleSpec(msgspec.convert(values, tuple[Variable, ...])) == spec
    assert spec.nbytes == sum(np.zeros(v.shape, v.dtype).nbytes for v in found)


def test_byte_order_has_one_spelling_and_channels_may_be_the_last_axis():
    assert Variable("x", (), ">f4", ()).dtype == Variable("x", (), "float32", ()).dtype == "<f4"
    Variable("x", (4, 2), "f4", ("y", "channel"), channels=("a", "b"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": ""}, "has no name"),
        ({"dims": ("lat",)}, "dimension names"),
        ({"channels": ("a",)}, "channel names"),
        ({"shape": (2, 4), "dims": ("y", "channel"), "channels": ("a", "b")}, "channel names"),
        ({"dtype": "O"}, "is not a number"),
        ({"dtype": "U4"}, "is not a number"),
    ],
)
def test_a_variable_that_contradicts_itself_is_refused(values, words):
    with pytest.raises(SampleError, match=words):
        Variable(**({"name": "x", "shape": (2, 2), "dtype": "f4", "dims": ("a", "b")} | values))
    for found in ((), (T2M, T2M)):
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
def test_a_sample_of_another_shape_is_named(sample, words):
    with pytest.raises(SampleError, match=f"^sample 7: .*{words}"):
        SampleSpec((T2M,)).check(sample, where="sample 7")
    SampleSpec((T2M,)).check({"t2m": np.zeros((3, 4), "f4")}, where="sample 0")
