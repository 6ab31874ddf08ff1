"""The statistics of a store: those of its values, and the same bytes however it was converted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from converting import FORMATS, convert

from iobench.datasets.contract import SampleIndex
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.rounding import unpack_sample
from iobench.testing import MadeUpDataset

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
pytestmark = pytest.mark.timeout(90)


def values_of(number):
    rng = np.random.default_rng(number)
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

    def __init__(self, spec=SPEC):
        super().__init__(spec)

    def decode(self, raw, where):
        every = values_of(where)
        return {name: every[name] for name in self.spec.names}


def run(path, fmt="numpy", *, dataset=None, splits=SPLITS, **more):
    dataset = dataset or Fields()
    index = SampleIndex(dataset.spec, range(N), splits)
    more = {"shard_nbytes": 4 * SPEC.nbytes, "workers": 2} | more
    return convert(dataset, index, FORMATS[fmt], path, **more)


def assert_statistics(told, arrays, *, mean=7e-6, deviation=5e-5):
    """Compare what is told of a variable with numpy in float64, of all these arrays."""
    values = np.stack(arrays).astype("f8")
    there = values[np.isfinite(values)]
    assert (told["n"], told["n_missing"]) == (there.size, values.size - there.size)
    assert (told["min"], told["max"]) == (there.min(), there.max())
    assert told["std"] == pytest.approx(there.std(), rel=deviation)
    assert told["mean"] == pytest.approx(there.mean(), abs=mean * there.std(), rel=1e-15)


@pytest.mark.parametrize("fmt", FORMATS)
def test_they_are_those_of_the_values(tmp_path, fmt) -> None:
    spec = SampleSpec(tuple(v for v in SPEC if v.name != "z" or fmt != "zarr"))
    statistics = run(tmp_path / "store", fmt, dataset=Fields(spec)).manifest.statistics
    assert set(statistics) == {"all", "train", "valid"}
    for split, numbers in {"all": range(N), "train": range(14), "valid": [15, 17, 19]}.items():
        assert set(statistics[split]) == {"q", "rgb", "sst", "w", "mask", "n"}  # z has no order
        samples = [values_of(number) for number in numbers]
        for name, told in statistics[split].items():
            assert_statistics(told, [sample[name] for sample in samples])
        for name, place in itertools.product(("q", "w"), range(3)):
            by = statistics[split][name]["by"]["level"]
            each = {key: told[place] for key, told in by.items()}
            assert_statistics(each, [sample[name][place] for sample in samples])
        for place in range(2):
            by = statistics[split]["rgb"]["by"]["channel"]
            each = {key: told[place] for key, told in by.items()}
            assert_statistics(each, [sample["rgb"][..., place] for sample in samples])
        assert "by" not in statistics[split]["sst"]


def test_they_have_the_same_bytes_however_samples_are_made(tmp_path) -> None:
    found = set()
    for workers, nbytes in [(1, 1 << 28), (2, 1 << 18), (3, 1 << 30)]:
        path = tmp_path / str(workers)
        run(path, workers=workers, memory_nbytes=nbytes)
        found.add((path / MANIFEST_NAME).read_bytes())
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_they_are_of_what_readers_get(tmp_path, dtype) -> None:
    spec = SampleSpec((SPEC["rgb"], SPEC["q"]))
    encoding = Encoding.parse(dtype={"int16": "rgb=int16", "float16": "q=float16"}[dtype])
    store = run(tmp_path / "store", dataset=Fields(spec), encoding=encoding)
    stored = [unpack_sample(store.spec, store[number]) for number in range(N)]
    for name, told in store.manifest.statistics["all"].items():
        assert_statistics(told, [sample[name] for sample in stored])


def test_what_no_number_tells_is_none(tmp_path) -> None:
    class Missing(MadeUpDataset):
        def decode(self, raw, where):
            return {"x": np.full(3, np.nan, "f4"), "y": np.array([1e300, -1e300])}

    spec = SampleSpec((Variable("x", (3,), "<f4", ("x",)), Variable("y", (2,), "<f8", ("x",))))
    told = run(tmp_path / "store", dataset=Missing(spec), splits={}).manifest.statistics["all"]
    none = dict.fromkeys(("mean", "std", "min", "max"))
    assert told["x"] == {"n": 0, "n_missing": 3 * N, **none}
    assert (told["y"]["std"], told["y"]["max"]) == (None, 1e300)
