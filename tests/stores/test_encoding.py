"""Fewer bits on purpose: what is asked for, what is stored, what is read, and the errors."""

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


def rows_of(*samples):
    return {name: np.stack([each[name] for each in samples]) for name in samples[0]}


def encode(encoding, given, where="sample 0", spec=SPEC):
    """Return one sample as it is stored, what readers get, and what became of its values."""
    encoder = encoding.encoder(spec)
    rows, moments = encoder.encode(rows_of(given), lambda _: where)
    measure = SampleMeasure(encoder.stored, encoder.names)
    _, lossy = measure.merged([{"all": measure.of(rows, moments)}])
    stored, stored_spec = {n: each[0, ...] for n, each in rows.items()}, encoding.stored_spec(spec)
    stored_spec.check(stored, where="what is stored")
    values = unpack_sample(stored_spec, stored)
    stored_spec.unpacked.check(values, where="what is read")
    return stored, values, lossy


def test_options_are_read_as_spelled():
    encoding = Encoding.parse(dtype=["float16", "a=b=int16"], ranges="a=b=-5:1e2")
    assert encoding == Encoding(dtypes={"": "float16", "a=b": "int16"}, ranges={"a=b": (-5, 100)})
    assert pickle.loads(pickle.dumps(encoding)) == encoding


RANGES = ("nan:1", "x:1", "5", "5:4", "5:inf", "1:2:3")
T16 = {"dtype": "T=int16", "ranges": "T=0:400"}


@pytest.mark.parametrize(
    ("options", "said", "value"),
    [
        # as it is spelled
        ({"dtype": "float32"}, "--dtype float32: expected float16, int16", None),
        ({"dtype": "=int16"}, "expected VAR=VALUE", None),
        ({"dtype": ["int16", "float16"]}, "given twice", None),
        ({"dtype": ["T=int16", "T=int16"]}, "given twice", None),
        ({"dtype": "int16", "ranges": "1:2"}, "expected VAR=LOW:HIGH", None),
        *(({"dtype": "int16", "ranges": f"T={each}"}, "LOW:HIGH, two numbers", None)
          for each in RANGES),
        ({"ranges": "T=1:2"}, "nothing is lossy", None),
        # by the variables
        ({"dtype": "t=float16"}, "--dtype t=.*there is T, p, mask", None),
        ({"dtype": "int16", "ranges": "t=3:4"}, "--range t=", None),
        ({"dtype": "mask=float16"}, "mask is |u1.*floating-point", None),
        ({"dtype": "T=int16", "ranges": "p=3:4"}, "p=.*not stored as int16", None),
        ({"dtype": "int16"}, "T: its range must be known", None),
        ({"dtype": "int16", "codec": "bitround:keepbits=3"}, "not rounded; leave bitround", None),
        # by a value
        ({"dtype": "T=float16"}, r"65520.*of T\[1, 1\] is beyond the largest.*float16", 65520.0),
        ({"dtype": "T=float16"}, r"-3.4.*e\+38 of T\[1, 1\] is beyond.*T=int16", -3.4e38),
        (T16, r"nan of T\[1, 1\] cannot.*int16", np.nan),
        (T16, r"-inf of T\[1, 1\] cannot.*int16", -np.inf),
        (T16, r"401.*of T\[1, 1\] is beyond the range", 401),
        (T16, r"-1.*of T\[1, 1\] is beyond the range", -1),
        ({"codec": "bitround:keepbits=3"}, r"3.*e\+38 of T\[1, 1\] is beyond.*keepbits", 3.4e38),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_or_represented(options, said, value):
    if value is None:
        with pytest.raises(OptionError, match=said):
            Encoding.parse(**options).encoder(SPEC)
        return
    encode(Encoding.parse(**options), sample())
    with pytest.raises(SampleError, match=f"sample 17 of d: {said}"):
        encode(Encoding.parse(**options), sample(T=value), "sample 17 of d")


@pytest.mark.parametrize(
    ("options", "dtypes", "relative"),
    [
        ({"codec": "bitround:keepbits=7,zstd"}, ["<f4", "<f8", "|u1"], 2**-8),
        ({"dtype": "T=float16"}, ["<f2", "<f8", "|u1"], 2**-11),
        ({"dtype": ["T=float16", "p=int16"], "ranges": "p=0:2e5"}, ["<f2", "<i2", "|u1"], 2**-11),
        (
            {"dtype": "int16", "ranges": ["T=200:360", "p=99000:101000"]},
            ["<i2", "<i2", "|u1"],
            160 / 65534 / 2 / 200,
        ),
        (
            {"dtype": "T=float16", "codec": "bitround:keepbits=5"},
            ["<f2", "<f8", "|u1"],
            2**-6 * 1.02,
        ),
    ],
)
def test_what_is_stored_and_the_errors_of_what_is_read(options, dtypes, relative):
    encoding, given = Encoding.parse(**options), sample()
    spec = encoding.stored_spec(SPEC)
    assert [variable.dtype for variable in spec] == dtypes
    assert spec.nbytes == encoding.stored_spec(SPEC, guess=True).nbytes
    assert spec.names == SPEC.names
    assert (spec["T"].units, spec["p"].role) == ("K", "target")
    values = json.loads(json.dumps(spec.to_dict()))["variables"]
    assert SampleSpec(msgspec.convert(values, tuple[Variable, ...])) == spec
    _, values, lossy = encode(encoding, given)
    assert "mask" not in lossy
    for name, measured in lossy.items():
        off = np.abs(values[name].astype("f8") - given[name].astype("f8"))
        assert measured["max_absolute_error"] == off.max() > 0
        found = (off / np.abs(given[name].astype("f8"))).max()
        assert measured["max_relative_error"] == pytest.approx(found, rel=1e-12)
        assert found <= relative * (1 + 1e-4)


@pytest.mark.parametrize("options", [{"dtype": "T=float16"}, {"codec": "bitround:keepbits=3"}])
def test_special_values_stay_what_they_are(options):
    given = sample()
    given["T"].flat[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45]
    _, values, lossy = encode(Encoding.parse(**options), given)
    np.testing.assert_array_equal(values["T"].flat[:5], given["T"].flat[:5])
    assert np.signbit(values["T"].flat[3:5]).tolist() == [False, True]
    assert np.isfinite(lossy["T"]["max_absolute_error"])
    if options.get("dtype"):
        stored, _, _ = encode(Encoding.parse(**options), sample(T=65519.0))
        assert stored["T"].max() == 65504  # the largest that there is


def test_ranges_are_learned_from_all_samples():
    encoding = Encoding.parse(dtype="int16", ranges="p=0:2e5")
    assert encoding.unknown_ranges(SPEC) == ("T",)
    samples = [sample(seed) for seed in range(5)]
    learned = encoding.learn(SPEC, ((rows_of(one), str) for one in samples))
    every = np.stack([one["T"] for one in samples])
    assert learned.ranges == {"p": (0, 2e5), "T": (float(every.min()), float(every.max()))}
    assert learned.unknown_ranges(SPEC) == ()
    assert learned.learn(SPEC, iter([])) == learned
    half_a_step = float(every.max() - every.min()) / 65534 / 2
    for one in samples:
        _, _, lossy = encode(learned, one)
        rounding = np.spacing(np.float32(every.max())) / 2
        assert lossy["T"]["max_absolute_error"] <= half_a_step + rounding
    constant = sample() | {"T": np.full((3, 4), 273.15, "f4")}
    encoding = Encoding.parse(dtype="T=int16").learn(SPEC, [(rows_of(constant), str)])
    _, values, lossy = encode(encoding, constant)
    assert (lossy["T"]["max_absolute_error"], lossy["T"]["max_relative_error"]) == (0, 0)
    np.testing.assert_array_equal(values["T"], constant["T"])


def test_empty_and_scalar_arrays():
    spec = SampleSpec((Variable("none", (0, 3), "f4", ("y", "x")), Variable("one", (), "f8", ())))
    given = {"none": np.empty((0, 3), "f4"), "one": np.array(2.5)}
    for dtype in ("float16", "int16"):
        encoding = Encoding.parse(dtype=dtype).learn(spec, [(rows_of(given), str)])
        _, values, _ = encode(encoding, given, spec=spec)
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
    _, back, lossy = encode(encoding, {"x": values}, spec=spec)
    there = np.isfinite(values)
    off = np.abs(back["x"][there] - values[there])
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
