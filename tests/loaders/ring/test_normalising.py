"""Normalised batches are what NumPy makes of the values, in place and to the last bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_sources import NumberSource
from span_rows import rows_of

import iobench
from iobench.errors import OptionError, StoreError
from iobench.loaders.ring import presenting
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.presenting import Normaliser, means_of
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.samples import SampleSpec, Variable, Window
from iobench.windows import place_windows

N = 6
PATCH = {"y": 7, "x": 5}
WINDOW = Window((0, 1), (2,))
SPEC = SampleSpec(
    (
        Variable("t", (3, 40, 60), "<f4", ("channel", "y", "x"), "K"),
        Variable("column", (37, 5), "<f4", ("level", "channel")),
        Variable("wide", (8, 9), "<f8", ("a", "b")),
        Variable("half", (50,), "<f2", ("c",)),
        Variable("rain", (40, 60), "<f4", ("y", "x"), role="target"),
        Variable("kind", (7,), "<i4", ("d",), role="target"),
    )
)


def samples_of(spec):
    random = np.random.default_rng(1)
    return [{v.name: (random.random(v.shape) * 50).astype(v.dtype) for v in spec} for _ in range(N)]


@pytest.fixture
def store(make_store):
    return make_store(SPEC, samples_of(SPEC), "zarr")


MEANS: dict[str, Any] = {
    "t": ([10.0, 20.0, 30.1], [3.0, 0.0, 1 / 3]),
    "column": (np.linspace(1, 2, 5), 7),
    "wide": (np.arange(9.0), np.full((8, 1), 0.1)),
    "half": (25, 14.4),
    "rain": (25.0, 14.0),
    "kind": (25, 10),
}


def expected_of(name, values):
    mean, std = (np.asarray(each, "f8") for each in MEANS[name])
    if name == "t":
        mean, std = mean[:, None, None], std[:, None, None]
    std = np.where(std == 0, 1, std)
    if values.dtype.itemsize <= 4 and values.dtype.kind == "f":
        return (values.astype("f4") - mean.astype("f4")) / std.astype("f4")
    return ((values - mean) / std).astype("f4")


@pytest.mark.parametrize(
    ("patch", "window", "processes"),
    [
        (None, None, False),
        (PATCH, None, False),
        (None, WINDOW, False),
        (PATCH, WINDOW, False),
        (PATCH, WINDOW, True),
    ],
)
def test_batches_are_what_numpy_makes_of_them(store, patch, window, processes):
    options: dict[str, Any] = {"patch": patch, "shuffle": True, "processes": processes}
    if window is not None:
        options["window"] = place_windows([float(n) for n in range(N)], window)
    whole = iobench.loader(store, 4, **options)
    made = iobench.loader(store, 4, normalise=MEANS, **options)
    for batch, raw in zip(made, whole, strict=True):
        for name, values in raw.items():
            assert batch[name].dtype == np.float32
            assert np.array_equal(batch[name], expected_of(name, values))
    for name, each in made.normalisation.items():
        assert np.allclose(batch[name] * each.std + each.mean, raw[name], rtol=1e-3, atol=1e-2)
    made.close()
    whole.close()
    store.close()


@given(data=st.data())
def test_any_shape_by_means_along_any_axes(data):
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4), "shape"))
    random = np.random.default_rng(draw(st.integers(0, 99), "seed"))
    mean, std = (
        random.random([n if draw(st.booleans()) else 1 for n in shape]) + 0.5 for _ in range(2)
    )
    dtype = draw(st.sampled_from(["<f4", "<f2", "<f8", "<i2"]))
    variable = Variable("v", shape, dtype, tuple(f"d{axis}" for axis in range(len(shape))))
    values = (random.random((3, *shape)) * 100).astype(dtype)
    if values.dtype.kind == "f":  # missing ones stay missing
        values.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    out = values if dtype == "<f4" else np.empty(values.shape, "<f4")
    exact = "f4" if dtype in ("<f4", "<f2") else "f8"
    expected = (values.astype(exact) - mean.astype(exact)) / std.astype(exact)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(presenting, "PIECE", draw(st.sampled_from([1, 7, 1 << 15])))
        changed.setattr(presenting, "LONG", draw(st.sampled_from([1, 5, 1 << 12])))
        spec = SampleSpec((variable,))
        normaliser = Normaliser(means_of({"v": (mean, std)}, spec, None), spec)
        normaliser.apply({"v": values}, {"v": out}, BatchLog())
    assert np.array_equal(out, expected.astype("f4"), equal_nan=True)


def test_a_store_without_an_index_says_so_in_a_line(store):
    for options in ({"window": "-1:0"}, {"split": "train"}):
        with pytest.raises(StoreError, match="convert") as caught:
            iobench.loader(store, 1, **options)
        assert "\n" not in str(caught.value)
    assert iobench.loader(store, 1, normalise=()).normalisation == {}


def statistics_of(**by):
    of_t = {"n": 9, "n_missing": 0, "mean": 20.0, "std": 9.0, "min": 0.0, "max": 40.0, **by}
    return {"all": {"t": of_t, "rain": {**of_t, "by": {}, "mean": 7.0}}}


def manifest(statistics, **normalisation):
    return SimpleNamespace(statistics=statistics, normalisation=normalisation)


def test_statistics_are_those_of_training_by_channel():
    spec = SampleSpec((SPEC["t"], SPEC["rain"], SPEC["kind"]))
    by = {"mean": [10.0, 20.0, 30.0], "std": [1.0, 1e-9, 3.0]}
    by |= {"min": [0.0, 20.0, 0.0], "max": [50.0, 20.0, 50.0]}
    statistics = statistics_of(by={"channel": by})
    found = means_of(True, spec, manifest(statistics))
    assert list(found) == ["t", "rain"]  # whole numbers are left alone
    assert found["t"].mean.shape == (3, 1, 1)
    assert found["t"].std.ravel().tolist() == [1, 1, 3]  # one value divides by 1
    assert float(found["rain"].mean) == 7
    statistics["train"] = statistics_of()["all"]
    assert float(means_of(["t"], spec, manifest(statistics))["t"].mean) == 20


@pytest.mark.parametrize(
    ("normalise", "statistics", "message"),
    [
        (True, None, "only a store keeps statistics"),
        (True, {}, "has no statistics of t; name others"),
        (True, {"all": {"t": statistics_of()["all"]["t"]}}, "no statistics of column; name others"),
        (["pressure"], statistics_of(), "there is no variable 'pressure', only t, column"),
        (["t"], statistics_of(by={"channel": {"mean": [1.0, 2.0]}}), "for each of 2 along channel"),
        (["t"], statistics_of(mean=None), "t has no finite mean and std of all; name other"),
        ("t", statistics_of(), "normalise='t': expected True, names of variables"),
        (3, statistics_of(), "normalise=3: expected True"),
        ({"t": 3}, {}, "t: expected a pair of mean and std"),
        ({"t": (0, -1)}, {}, "expected finite numbers, and no std below 0"),
        ({"t": (np.zeros(4), 1)}, {}, r"that fit .* got \(array"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(normalise, statistics, message):
    with pytest.raises(OptionError, match=message) as caught:
        means_of(normalise, SPEC, None if statistics is None else manifest(statistics))
    assert "\n" not in str(caught.value)


def test_nothing_is_normalised_twice():
    known = manifest(statistics_of(), formula="z-score")
    with pytest.raises(OptionError, match="were normalised when they were made"):
        means_of(True, SPEC, known)
    assert means_of(["t"], SPEC, known)["t"].mean == 20
    assert means_of({"t": (0, 1)}, SPEC, known)["t"].std == 1


def test_it_is_a_stage_of_its_own(tmp_path):
    with iobench.record(tmp_path / "run"):
        loader = iobench.loader(NumberSource(), 4, normalise={"field": (1, 2)}, patch={"x": 2})
        for batch in loader:
            assert batch["field"].shape == (len(batch["number"]), 3, 2)
        loader.close()
    rows = rows_of(RunDirectory.open(tmp_path / "run"))
    stages = [row.label for row in rows if row.kind is Kind.PREPROCESS]
    assert stages.count("normalise") == stages.count("patch") == 13


def test_a_state_of_other_numbers_is_refused(store):
    rain = {"rain": (25.0, 14.0)}
    loader = iobench.loader(store, 2, shuffle=True, normalise=rain)
    state = loader.state_dict()
    loader.load_state_dict(state)
    for other in ({"rain": (25.0, 15.0)}, {"t": (25.0, 14.0)}, False):
        changed = iobench.loader(store, 2, shuffle=True, normalise=other)
        with pytest.raises(OptionError, match="another loader: normalise rain by numbers"):
            changed.load_state_dict(state)
        with pytest.raises(OptionError, match="another loader: normalise"):
            loader.load_state_dict(changed.state_dict())
