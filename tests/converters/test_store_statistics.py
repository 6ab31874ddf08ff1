"""The statistics of stores: what numpy says in extended precision, whatever parts are merged."""

from __future__ import annotations

import numpy as np
import pytest
from converting import FORMATS, convert
from hypothesis import given
from hypothesis import strategies as st

from iobench.datasets.contract import SampleIndex
from iobench.samples import SampleSpec, Variable
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.value_statistics import (
    LEAST_COLUMNS,
    PIECE,
    group_moments,
    merge_moments,
    no_moments,
)
from tests.support.made_up_dataset import MadeUpDataset

pytestmark = pytest.mark.timeout(90)
RNG = np.random.default_rng


# ---- moments


def moments(values):
    """Return the moments of one group of values."""
    return group_moments(np.asarray(values).reshape(1, 1, -1))[0]


def assert_close(found, values, within=1e-12):
    """Compare with numpy: the mean in deviations, or of itself; the deviation relatively."""
    values = values.ravel()
    finite = values[np.isfinite(values)].astype(np.longdouble)
    n = finite.size
    assert found[:2].tolist() == [n, values.size - n]
    if not n:
        assert found[2:].tolist() == [0, 0, np.inf, -np.inf]
        return
    assert found[4:].tolist() == [finite.min(), finite.max()]
    mean, spread = float(finite.mean()), float(finite.std())
    assert abs(found[2] - mean) <= within * spread + 1e-14 * abs(mean)
    assert abs(np.sqrt(found[3] / n) - spread) <= within * spread


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i2", "i8", "?"])
def test_they_are_what_numpy_says(dtype):
    for size in (1, 2, 17, LEAST_COLUMNS + 1, PIECE - 1, PIECE + 1, 3 * PIECE + 5):
        values = RNG(size).normal(0, 1, size)
        row = (values * 40 + 100).clip(0, 200).astype(dtype) if dtype != "?" else values > 0
        assert_close(moments(row), row)


SHAPES = {
    "pressure with a small deviation": lambda r, n: r.normal(101325, 0.5, n),
    "rain, mostly none": lambda r, n: r.gamma(0.02, 3, n),
    "one value far off": lambda r, n: np.where(np.arange(n) == n // 2, 1e6, r.normal(0, 1, n)),
    "every sixteenth far off": lambda r, n: np.where(np.arange(n) % 16, r.normal(0, 1, n), 1e6),
    "a ramp": lambda r, n: np.linspace(200, 300, n),
    "so small that squares of single precision underflow": lambda r, n: r.normal(0, 1e-30, n),
    "so large that squares of single precision overflow": lambda r, n: r.normal(0, 1e30, n),
    "constant": lambda r, n: np.full(n, 273.15),
    "missing in parts": lambda r, n: np.where(np.arange(n) % 3, r.normal(280, 9, n), np.nan),
    "not finite at all": lambda r, n: np.where(np.arange(n) % 2, np.inf, np.nan),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_whatever_the_values(shape):
    row = SHAPES[shape](RNG(3), 2 * PIECE + 999).astype("f4")
    assert_close(moments(row), row, within=1e-9)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 40),
    groups=st.integers(1, 9),
    columns=st.integers(0, 600),
)
def test_each_group_is_what_it_is_alone(seed, rows, groups, columns):
    values = RNG(seed).normal(1e5, 1, (rows, groups, columns)).astype("f4")
    values[RNG(seed).random(values.shape) < 0.02] = np.nan
    found = group_moments(values)
    for group in range(groups):
        assert_close(found[group], values[:, group])


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 1e5, -1e9]),
)
def test_any_partition_merges_to_the_whole(seed, sizes, offset):
    parts = [RNG(seed + place).normal(offset, 1, size) for place, size in enumerate(sizes)]
    merged = no_moments(1)[0]
    for part in parts:
        merged = merge_moments(merged, moments(part))
    assert_close(merged, np.concatenate(parts), within=1e-6 if offset else 1e-12)


# ---- statistics of stores


SPEC = SampleSpec(
    (
        Variable("q", (3, 6, 10), "<f4", ("level", "y", "x"), "kg kg**-1"),
        Variable("rgb", (4, 5, 2), "<f4", ("y", "x", "channel"), channels=("a", "b")),
        Variable("sst", (70, 80), "<f4", ("y", "x"), "K"),
        Variable("w", (3, 2), "<f4", ("level", "x")),  # fewer values to a level than moments
        Variable("mask", (5,), "|b1", ("x",)),
        Variable("n", (), "<i8", ()),
        Variable("z", (2,), "<c8", ("x",)),
    )
)
N = 23
SPLITS = {"train": range(14), "valid": [15, 17, 19], "none": [], "all": [1]}
GROUPS = {"q": ("level", 0, 3), "w": ("level", 0, 3), "rgb": ("channel", -1, 2)}


def values_of(number):
    rng = RNG(number)
    sst = rng.normal(290, 3, (70, 80))
    sst[:, :20] = np.nan
    levels = np.array([1e-6, 1e-3, 0.0])[:, None, None]
    return {
        "q": (levels * rng.gamma(1, 1, (3, 6, 10))).astype("f4"),
        "rgb": rng.normal([1e5, -3], [0.5, 2], (4, 5, 2)).astype("f4"),
        "sst": sst.astype("f4"),
        "w": (levels[..., 0] * rng.normal(3, 1, (3, 2))).astype("f4"),
        "mask": rng.random(5) < 0.5,
        "n": np.array(number, "i8"),
        "z": np.array([1j, number], "c8"),
    }


class Fields(MadeUpDataset):
    """Samples of which the values are known."""

    def decode(self, raw, where):
        every = values_of(where)
        return {name: every[name] for name in self.spec.names}


def run(path, fmt="numpy", *, dataset=None, splits=SPLITS, **more):
    dataset = dataset or Fields(SPEC)
    index = SampleIndex(dataset.spec, range(N), splits)
    more = {"shard_nbytes": 4 * SPEC.nbytes, "workers": 2} | more
    return convert(dataset, index, FORMATS[fmt], path, **more)


def assert_statistics(told, arrays):
    """Compare what is told of a variable with numpy in float64, of all these arrays."""
    values = np.stack(arrays).astype("f8")
    there = values[np.isfinite(values)]
    assert (told["n"], told["n_missing"]) == (there.size, values.size - there.size)
    assert (told["min"], told["max"]) == (there.min(), there.max())
    assert told["std"] == pytest.approx(there.std(), rel=1e-9)
    assert told["mean"] == pytest.approx(there.mean(), abs=1e-9 * there.std(), rel=1e-15)


@pytest.mark.parametrize("fmt", FORMATS)
def test_they_are_those_of_the_values(tmp_path, fmt):
    spec = SampleSpec(tuple(v for v in SPEC if v.name != "z" or fmt != "zarr"))
    statistics = run(tmp_path / "store", fmt, dataset=Fields(spec)).manifest.statistics
    assert set(statistics) == {"all", "train", "valid"}
    for split, numbers in {"all": range(N), "train": range(14), "valid": [15, 17, 19]}.items():
        assert set(statistics[split]) == {*SPEC.names} - {"z"}  # which has no order
        samples = [values_of(number) for number in numbers]
        for name, told in statistics[split].items():
            assert_statistics(told, [sample[name] for sample in samples])
            assert ("by" in told) == (name in GROUPS)
        for name, (dim, axis, length) in GROUPS.items():
            for place in range(length):
                by = statistics[split][name]["by"][dim]
                each = {key: told[place] for key, told in by.items()}
                assert_statistics(each, [sample[name].take(place, axis) for sample in samples])


def test_they_have_the_same_bytes_however_samples_are_made(tmp_path):
    found = set()
    for workers, nbytes in [(1, 1 << 28), (2, 1 << 18), (3, 1 << 30)]:
        path = tmp_path / str(workers)
        run(path, workers=workers, memory_nbytes=nbytes)
        found.add((path / MANIFEST_NAME).read_bytes())
    assert len(found) == 1


def test_what_no_number_tells_is_none(tmp_path):
    class Missing(MadeUpDataset):
        def decode(self, raw, where):
            return {"x": np.full(3, np.nan, "f4"), "y": np.array([1e300, -1e300])}

    spec = SampleSpec((Variable("x", (3,), "<f4", ("x",)), Variable("y", (2,), "<f8", ("x",))))
    told = run(tmp_path / "store", dataset=Missing(spec), splits={}).manifest.statistics["all"]
    none = dict.fromkeys(("mean", "std", "min", "max"))
    assert told["x"] == {"n": 0, "n_missing": 3 * N, **none}
    assert (told["y"]["std"], told["y"]["max"]) == (None, 1e300)
