from __future__ import annotations

import json
import math
import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import OptionError, SampleError
from iobench.samples import Packed, SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.rounding import pack_linearly, scale_and_offset, unpack, unpack_sample
from iobench.stores.value_statistics import PIECE, SampleMeasure

SPEC = SampleSpec(
    (
        Variable("T", (3, 4), "f4", ("y", "x"), "K"),
        Variable("p", (3, 4), "f8", ("y", "x"), "Pa", role="target"),
        Variable("mask", (3, 4), "u1", ("y", "x")),
    )
)


def sample(seed=0, **others):
    random = np.random.default_rng(seed)
    values = {
        "T": random.normal(280, 10, (3, 4)).astype("f4"),
        "p": random.normal(1e5, 10, (3, 4)),
        "mask": random.integers(0, 255, (3, 4), np.uint8),
    }
    for name, value in others.items():
        values[name].flat[5] = value
    return values


def side_by_side(one):
    return {name: values[None] for name, values in one.items()}


def encode(encoding, given, where="sample 0", spec=SPEC):
    """Return one sample as it is stored, and what became of its values."""
    encoder = encoding.encoder(spec)
    rows, moments = encoder.encode(side_by_side(given), lambda _: where)
    measure = SampleMeasure(encoder.stored, encoder.names)
    _, lossy = measure.merged([{"all": measure.of(rows, moments)}])
    return {name: values[0, ...] for name, values in rows.items()}, lossy


def read_back(encoding, stored, spec=SPEC):
    stored_spec = encoding.stored_spec(spec)
    stored_spec.check(stored, where="what is stored")
    values = unpack_sample(stored_spec, stored)
    stored_spec.unpacked.check(values, where="what is read")
    return values


def test_options_are_read_as_spelled():
    encoding = Encoding.parse(dtype=["float16", "a=b=int16"], ranges="a=b=-5:1e2")
    assert encoding == Encoding(dtypes={"": "float16", "a=b": "int16"}, ranges={"a=b": (-5, 100)})
    assert pickle.loads(pickle.dumps(encoding)) == encoding
    assert json.loads(json.dumps(encoding.to_dict())) == encoding.to_dict()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float32"}, "--dtype float32: expected float16, int16"),
        ({"dtype": "=int16"}, "expected VAR=VALUE"),
        ({"dtype": ["int16", "float16"]}, "given twice"),
        ({"dtype": ["T=int16", "T=int16"]}, "given twice"),
        ({"dtype": "bfloat16"}, "--dtype bfloat16: expected float16, int16"),
        ({"dtype": "int16", "ranges": "1:2"}, "expected VAR=LOW:HIGH"),
        *(
            ({"dtype": "int16", "ranges": f"T={each}"}, "LOW:HIGH, two numbers, the lower one")
            for each in ("nan:1", "x:1", "5", "5:4", "5:inf", "1:2:3")
        ),
        ({"ranges": "T=1:2"}, "nothing is lossy"),
    ],
)
def test_what_is_spelled_otherwise_is_refused(options, said):
    with pytest.raises(OptionError, match=said):
        Encoding.parse(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "t=float16"}, "--dtype t=.*there is T, p, mask"),
        ({"dtype": "int16", "ranges": "t=3:4"}, "--range t="),
        ({"dtype": "mask=float16"}, "mask is |u1.*floating-point"),
        ({"dtype": "T=int16", "ranges": "p=3:4"}, "p=.*not stored as int16"),
        ({"dtype": "int16"}, "T: its range must be known"),
        ({"dtype": "int16", "codec": "bitround:keepbits=3"}, "not rounded; leave bitround out"),
    ],
)
def test_what_does_not_fit_the_variables_is_refused(options, said):
    encoding = Encoding.parse(**options)
    for use in (encoding.stored_spec, encoding.encoder):
        with pytest.raises(OptionError, match=said):
            use(SPEC)


@pytest.mark.parametrize(
    ("options", "dtypes", "nbytes"),
    [
        ({"codec": "bitround:keepbits=7"}, ["<f4", "<f8", "|u1"], 13),
        ({"dtype": "float16"}, ["<f2", "<f2", "|u1"], 5),
        ({"dtype": "int16", "ranges": ["T=0:1", "p=0:1"]}, ["<i2", "<i2", "|u1"], 5),
        ({"dtype": "T=float16"}, ["<f2", "<f8", "|u1"], 11),
        ({"dtype": ["float16", "p=int16"], "ranges": "p=0:1"}, ["<f2", "<i2", "|u1"], 5),
    ],
)
def test_stored_spec_and_its_size(options, dtypes, nbytes):
    encoding = Encoding.parse(**options)
    stored = encoding.stored_spec(SPEC)
    assert [variable.dtype for variable in stored] == dtypes
    assert stored.nbytes == encoding.stored_spec(SPEC, guess=True).nbytes == 12 * nbytes
    assert stored.names == SPEC.names
    assert (stored["T"].units, stored["p"].role) == ("K", "target")
    values = json.loads(json.dumps(stored.to_dict()))["variables"]
    assert SampleSpec(msgspec.convert(values, tuple[Variable, ...])) == stored


@pytest.mark.parametrize(
    ("options", "relative"),
    [
        ({"dtype": "T=float16"}, 2**-11),
        ({"dtype": "int16", "ranges": ["T=200:360", "p=99000:101000"]}, 160 / 65534 / 2 / 200),
        ({"codec": "bitround:keepbits=7,zstd"}, 2**-8),
        ({"dtype": "T=float16", "codec": "bitround:keepbits=5"}, 2**-6 * 1.02),
    ],
)
def test_measured_errors_are_those_of_what_is_read(options, relative):
    encoding = Encoding.parse(**options)
    given = sample()
    stored, lossy = encode(encoding, given)
    values = read_back(encoding, stored)
    assert "mask" not in lossy
    for name, measured in lossy.items():
        off = np.abs(values[name].astype("f8") - given[name].astype("f8"))
        assert measured["max_absolute_error"] == off.max() > 0
        found = (off / np.abs(given[name].astype("f8"))).max()
        assert measured["max_relative_error"] == pytest.approx(found, rel=1e-12)
        assert found <= relative * (1 + 1e-4)


@pytest.mark.parametrize("options", [{"dtype": "T=float16"}, {"codec": "bitround:keepbits=3"}])
def test_special_values_stay_what_they_are(options):
    encoding = Encoding.parse(**options)
    given = sample()
    given["T"].flat[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45]
    stored, lossy = encode(encoding, given)
    found = read_back(encoding, stored)["T"]
    np.testing.assert_array_equal(found.flat[:5], given["T"].flat[:5])
    assert np.signbit(found.flat[3:5]).tolist() == [False, True]
    assert np.isfinite(lossy["T"]["max_absolute_error"])


@pytest.mark.parametrize(
    ("options", "value", "said"),
    [
        ({"dtype": "T=float16"}, 65520.0, r"65520.*of T\[1, 1\] is beyond the largest.*float16"),
        ({"dtype": "T=float16"}, -3.4e38, r"-3.4.*e\+38 of T\[1, 1\] is beyond.*T=int16"),
        ({"dtype": "T=int16", "ranges": "T=0:400"}, np.nan, r"nan of T\[1, 1\] cannot.*int16"),
        ({"dtype": "T=int16", "ranges": "T=0:400"}, -np.inf, r"-inf of T\[1, 1\] cannot.*int16"),
        ({"dtype": "T=int16", "ranges": "T=0:400"}, 401, r"401.*of T\[1, 1\] is beyond the range"),
        ({"dtype": "T=int16", "ranges": "T=0:400"}, -1, r"-1.*of T\[1, 1\] is beyond the range"),
        ({"codec": "bitround:keepbits=3"}, 3.4e38, r"3.*e\+38 of T\[1, 1\] is beyond.*keepbits"),
    ],
)
def test_what_cannot_be_represented_is_an_error(options, value, said):
    encoding = Encoding.parse(**options)
    encode(encoding, sample())
    with pytest.raises(SampleError, match=f"sample 17 of d: {said}"):
        encode(encoding, sample(T=value), "sample 17 of d")


def test_the_largest_numbers_are_still_represented():
    stored, _ = encode(Encoding.parse(dtype="T=float16"), sample(T=65519.0))
    assert stored["T"].max() == 65504


def test_ranges_are_learned_from_all_samples():
    encoding = Encoding.parse(dtype="int16", ranges="p=0:2e5")
    assert encoding.unknown_ranges(SPEC) == ("T",)
    samples = [sample(seed) for seed in range(5)]
    learned = encoding.learn(SPEC, ((side_by_side(one), str) for one in samples))
    every = np.stack([one["T"] for one in samples])
    assert learned.ranges == {"p": (0, 2e5), "T": (float(every.min()), float(every.max()))}
    assert learned.unknown_ranges(SPEC) == ()
    assert learned.learn(SPEC, iter([])) == learned
    half_a_step = float(every.max() - every.min()) / 65534 / 2
    for one in samples:
        off = encode(learned, one)[1]["T"]["max_absolute_error"]
        assert off <= half_a_step + np.spacing(np.float32(every.max())) / 2


def test_a_constant_variable_is_exact():
    given = sample() | {"T": np.full((3, 4), 273.15, "f4")}
    encoding = Encoding.parse(dtype="T=int16").learn(SPEC, [(side_by_side(given), str)])
    stored, lossy = encode(encoding, given)
    assert (lossy["T"]["max_absolute_error"], lossy["T"]["max_relative_error"]) == (0, 0)
    np.testing.assert_array_equal(read_back(encoding, stored)["T"], given["T"])


def test_empty_and_scalar_arrays():
    spec = SampleSpec((Variable("none", (0, 3), "f4", ("y", "x")), Variable("one", (), "f8", ())))
    given = {"none": np.empty((0, 3), "f4"), "one": np.array(2.5)}
    for dtype in ("float16", "int16"):
        encoding = Encoding.parse(dtype=dtype).learn(spec, [(side_by_side(given), str)])
        values = read_back(encoding, encode(encoding, given, spec=spec)[0], spec)
        assert values["one"] == 2.5
        assert values["none"].shape == (0, 3)
    with pytest.raises(SampleError, match="sample 1: inf of one cannot be stored"):
        encode(encoding, given | {"one": np.array(np.inf)}, "sample 1", spec)


FLOATS32 = st.floats(width=32)


@given(FLOATS32.filter(math.isfinite), FLOATS32.filter(math.isfinite), st.floats(0, 1))
def test_packing_is_off_by_half_a_step(one, other, part):
    low, high = sorted((one, other))
    packed = Packed("<f8", *scale_and_offset(low, high))
    value = min(max(low + part * (high - low), low), high)
    found = float(unpack(pack_linearly(np.array([value]), packed), packed)[0])
    rounding = 4 * np.finfo(np.float64).eps * max(abs(low), abs(high))
    assert abs(found - value) <= packed.scale / 2 * (1 + 1e-9) * (low != high) + rounding


def test_unpacked_values_are_those_of_cf_attributes():
    xarray = pytest.importorskip("xarray", reason="reads scale_factor and add_offset")
    packed = Packed("<f4", *scale_and_offset(-12.3, 45.6))
    numbers = np.arange(-32768, 32768, dtype="<i2")
    attributes = {"scale_factor": packed.scale, "add_offset": packed.offset}
    one = xarray.Dataset({"v": ("n", numbers, attributes)})
    theirs = xarray.decode_cf(one)["v"].values
    assert unpack(numbers, packed).tobytes() == theirs.astype("<f4").tobytes()


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_errors_of_values_of_every_kind_in_several_pieces(dtype):
    spec = SampleSpec((Variable("x", (2 * PIECE + 8,), "f8", ("n",)),))
    values = np.random.default_rng(2).normal(0, 10, 2 * PIECE + 8)
    values[::7] = 0
    if dtype == "float16":
        values[::9] = np.inf
        values[5] = np.finfo("f8").smallest_subnormal
    encoding = Encoding.parse(dtype=dtype).learn(spec, [({"x": values[None]}, str)])
    stored, lossy = encode(encoding, {"x": values}, spec=spec)
    back = read_back(encoding, stored, spec)["x"]
    there = np.isfinite(values)
    off = np.abs(back[there] - values[there])
    relative = off[values[there] != 0] / np.abs(values[there][values[there] != 0])
    assert lossy["x"]["max_absolute_error"] == off.max()
    assert lossy["x"]["max_relative_error"] == relative.max()
    assert lossy["x"]["rmse"] == pytest.approx(np.sqrt((off**2).mean()))


@pytest.mark.parametrize(
    "change", [{"kind": "other"}, {"scale": 0.0}, {"scale": float("nan")}, {"offset": 1e999}]
)
def test_no_packing_that_cannot_be(change):
    values = msgspec.to_builtins(Packed("<f4", 2.0, 1.0))
    assert msgspec.convert(values, Packed) == Packed("<f4", 2.0, 1.0)
    with pytest.raises((SampleError, msgspec.ValidationError)):
        msgspec.convert(values | change, Packed)
