"""Batches with patches, windows and normalised values are what NumPy makes of whole samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from number_stores import nothing_left
from ring_sources import NumberSource
from span_rows import rows_of

import iobench
from iobench.errors import OptionError, StoreError
from iobench.loaders.ring import presenting, sample_patches
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.presenting import Normaliser, means_of
from iobench.loaders.ring.sample_patches import CutReader, PatchPlaces
from iobench.loaders.ring.store_source import StoreSource
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable, Window
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.testing import write_store

N, Y, X = 10, 9, 14
SPEC = SampleSpec(
    (
        Variable("t", (3, Y, X), "<f4", ("channel", "y", "x"), "K"),
        Variable("u", (3, Y, X), "<f4", ("level", "y", "x"), "m s-1"),
        Variable("mask", (X, Y), "|u1", ("x", "y")),
        Variable("row", (Y,), "<f8", ("y",)),
        Variable("half", (50,), "<f2", ("c",)),
        Variable("rain", (Y, X), "<f4", ("y", "x"), role="target"),
        Variable("hour", (), "<i8", ()),
    )
)
FLOATS = SampleSpec(tuple(v for v in SPEC if v.dtype == "<f4"))
INT16 = Encoding(dtypes={"": "int16"}, ranges={v.name: (0.0, 100.0) for v in FLOATS})
PATCH, WINDOW = {"y": 4, "x": 5}, Window((0, 1), (2,))
STORES = {
    "numpy": ("numpy", SPEC, {}, None),
    "tfrecord": ("tfrecord", FLOATS, {}, None),
    "zarr": ("zarr", SPEC, {}, None),
    "zarr, chunks": ("zarr", SPEC, {"inner-chunk": "y=3,x=4"}, None),
    "zarr, lz4": ("zarr", SPEC, {"codec": "blosc-lz4"}, None),
    "zarr, chunks of lz4": ("zarr", SPEC, {"codec": "blosc-lz4", "inner-chunk": "y=3,x=4"}, None),
    "zarr, cut levels": ("zarr", SPEC, {"inner-chunk": "y=3,level=2"}, None),
    "zarr, int16": ("zarr", FLOATS, {"inner-chunk": "y=4"}, INT16),
    "numpy, int16": ("numpy", FLOATS, {}, INT16),
}
MEANS: dict[str, Any] = {
    "t": ([10.0, 20.0, 30.1], [3.0, 0.0, 1 / 3]),
    "u": (np.reshape([10.0, 20.0, 30.1], (3, 1, 1)), 7),
    "mask": (25, 10),
    "row": (25.0, 0.1),
    "half": (25, 14.4),
    "rain": (25.0, 14.0),
}
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "patches": {"patch": PATCH},
    "tiles": {"patch": PATCH, "patch_at": "tiles"},
    "centre": {"patch": PATCH, "patch_at": "centre"},
    "normalised": {"normalise": True},
    "windows": {"window": WINDOW},
    "all": {"patch": PATCH, "window": WINDOW, "normalise": True},
    "all as ready": {"patch": PATCH, "window": WINDOW, "normalise": True, "in_order": False},
    "all in processes": {"patch": PATCH, "window": WINDOW, "normalise": True, "processes": True},
}


def samples_of(spec, n=N):
    random = np.random.default_rng(0)
    return [
        {v.name: (random.random(v.shape) * 100).astype(v.dtype) for v in spec} for _ in range(n)
    ]


@pytest.fixture
def partly(monkeypatch):
    """Let no sample be too small to be read in parts, and rows far apart."""
    monkeypatch.setattr(sample_patches, "COPY_NBYTES", 0)
    monkeypatch.setattr(sample_patches, "CALL_NBYTES", 24)
    with nothing_left():
        yield


def normalised(name, values):
    mean, std = (np.asarray(each, "f8") for each in MEANS[name])
    if name == "t":
        mean, std = mean[:, None, None], std[:, None, None]
    std = np.where(std == 0, 1, std)
    if values.dtype.itemsize <= 4 and values.dtype.kind == "f":
        return (values.astype("f4") - mean.astype("f4")) / std.astype("f4")
    return ((values - mean) / std).astype("f4")


def check(loader, store, *, patch=None, window=None, normalise=(), epochs=1):
    """Compare every array with what is made of whole samples; return where patches begin."""
    seen = []

    def item(name, number, starts):
        values = store[number][name]
        cut = [slice(None)] * values.ndim
        for dim, start in starts.items():
            if dim in store.spec[name].dims:
                cut[store.spec[name].dims.index(dim)] = slice(start, start + patch[dim])
        values = values[tuple(cut)]
        return normalised(name, values) if name in normalise else values

    for _ in range(epochs):
        for batch in loader:
            where = loader.coordinates()
            for row, numbers in enumerate(where["sample"].tolist()):
                starts = {dim: int(where[f"{dim}_start"][row]) for dim in patch or ()}
                seen.append((numbers, *starts.values()))
                for variable in store.spec:
                    name = variable.name
                    if window is None:
                        expected = item(name, numbers, starts)
                    else:
                        own = window.inputs if variable.role == "input" else window.targets
                        places = [numbers[window.offsets.index(offset)] for offset in own]
                        expected = np.stack([item(name, each, starts) for each in places])
                    assert np.array_equal(batch[name][row], expected), name
                    assert batch[name].dtype == expected.dtype
    loader.close()
    return seen


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("name", STORES)
def test_batches_are_what_numpy_makes_of_whole_samples(
    make_store, partly, monkeypatch, name, is_cached
):
    fmt, spec, options, encoding = STORES[name]
    shards = (6, 4)
    store = make_store(
        spec, samples_of(spec), fmt, options=options, shards=shards, encoding=encoding
    )
    monkeypatch.setattr(sample_patches, "is_cached", lambda *_: is_cached)
    means = {each: MEANS[each] for each in MEANS if each in spec.names}
    for change, kinds in CHANGES.items():
        if "processes" in change and (is_cached or name != "numpy"):
            continue
        given: dict[str, Any] = dict(kinds)
        if "normalise" in given:
            given["normalise"] = means
        loader = iobench.loader(store, 3, shuffle=True, seed=2, threads=2, **given)
        seen = check(
            loader, store, patch=kinds.get("patch"), window=kinds.get("window"),
            normalise=means if "normalise" in kinds else (), epochs=2,
        )  # fmt: skip
        if change == "patches":
            assert sorted(number for number, *_ in seen) == sorted([*range(N)] * 2)
            assert len(set(seen)) > N  # other places in other epochs
        if change == "tiles":
            starts = [(y, x) for y in (0, 4, 5) for x in (0, 5, 9)]
            assert sorted(seen) == sorted([(n, *start) for n in range(N) for start in starts] * 2)
        if change == "centre":
            assert sorted(seen) == sorted([(n, 2, 4) for n in range(N)] * 2)
        for variable, each in loader.normalisation.items():
            if variable in spec.names and change == "normalised":
                values = store[0][variable]
                undone = normalised(variable, values) * each.std + each.mean
                assert np.allclose(undone, values, rtol=1e-3, atol=1e-2)
    sizes = PatchPlaces(PATCH, spec)
    assert isinstance(StoreSource(store, verify=True).box_filler(sizes), CutReader)
    assert isinstance(StoreSource(store).box_filler(sizes), CutReader) == (fmt == "tfrecord")
    store.close()


@pytest.mark.parametrize("name", ["zarr, chunks of lz4", "numpy"])
def test_a_patch_touches_no_other_chunk(make_store, partly, monkeypatch, name):
    fmt, spec, options, _ = STORES[name]
    store = make_store(spec, samples_of(spec), fmt, options=options)
    asked: list[int] = []

    def listening(files, starts, ends, _):
        asked.extend((ends - starts).tolist())

    monkeypatch.setattr(sample_patches, "ask_for_ranges", listening)
    monkeypatch.setattr(sample_patches, "is_cached", lambda *_: False)
    sizes = PatchPlaces({"y": 3, "x": 4}, spec)
    filler = StoreSource(store).box_filler(sizes)
    rows = {v.name: np.empty((1, *v.shape), v.dtype) for v in sizes.part}
    filler.fill(np.array([3]), rows, BatchLog(), np.array([[3, 4]]))
    assert np.array_equal(rows["t"][0], store[3]["t"][:, 3:6, 4:8])
    if name == "numpy":  # a row of the patch at once, of 4-byte numbers 16 bytes
        assert sum(asked) == sizes.part.nbytes + 3 * 6  # whole columns of the mask are nearer
        assert asked.count(16) == 3 * 3 * 2 + 3
    else:  # one chunk of each array
        assert len(asked) == len(spec)
    filler.close()
    store.close()


def test_places_depend_on_seed_epoch_and_sample_alone(make_store):
    store = make_store(SPEC, samples_of(SPEC), "numpy")

    def of(**options):
        loader = iobench.loader(store, 2, patch=PATCH, seed=4, **options)
        loader.set_epoch(1)
        found = {}
        for batch in loader:
            numbers = loader.coordinates()["sample"].tolist()
            found |= {n: batch["t"][row].tobytes() for row, n in enumerate(numbers)}
        loader.close()
        return found

    alone = of(threads=1)
    assert of(threads=3) == alone
    assert of(shuffle=True) == alone
    ranks = [of(shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    assert ranks[0] | ranks[1] == alone
    assert of(processes=True) == alone
    other = iobench.loader(store, N, patch=PATCH, seed=5)
    first = next(iter(other))["t"].copy()
    assert any(first[n].tobytes() != each for n, each in alone.items())
    other.close()
    store.close()


def test_a_damaged_chunk_is_named_where_it_is_touched(make_store, partly):
    fmt, spec, options, _ = STORES["zarr, chunks of lz4"]
    samples = [{v.name: np.full(v.shape, 7, v.dtype) for v in spec}] * 3
    store = make_store(spec, samples, fmt, options=options)
    place = store.extents(1)[0]  # of the first array: its first chunk is at y, x = 0
    data = bytearray(place.file.read_bytes())
    data[place.offset + 12 : place.offset + 16] = bytes(4)
    place.file.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"sample 1: a chunk is damaged"):
        list(iobench.loader(store, 1, patch={"y": 9, "x": 14, "level": 1}, patch_at="tiles"))
    far = iobench.loader(store, 1, patch={"y": 3, "x": 4}, patch_at="centre")
    assert all((batch["t"] == 7).all() for batch in far)
    far.close()
    store.close()


@given(data=st.data())
def test_any_shape_in_any_chunks(data, tmp_path_factory):
    draw = data.draw
    lengths = {dim: draw(st.integers(1, 9), dim) for dim in "abcd"}
    variables = []
    for number in range(draw(st.integers(1, 3), "variables")):
        dims = tuple(draw(st.permutations("abcd"))[: draw(st.integers(1, 4))])
        shape = tuple(lengths[dim] for dim in dims)
        dtype = draw(st.sampled_from(["<f4", "<f8", "<i2", "|u1"]))
        variables.append(Variable(f"v{number}", shape, dtype, dims))
    spec = SampleSpec(tuple(variables))
    known = sorted({dim for variable in spec for dim in variable.dims})
    chunks = ",".join(f"{dim}={draw(st.integers(1, 9))}" for dim in known)
    options = {"inner-chunk": chunks, "codec": draw(st.sampled_from(["none", "blosc-lz4"]))}
    cut_dims = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    patch = {dim: draw(st.integers(1, lengths[dim])) for dim in cut_dims}
    path = tmp_path_factory.mktemp("store")
    samples = samples_of(spec, 3)
    write_store(path, find_format("zarr"), spec, samples, shard_n_samples=3, options=options)
    store = open_store(path)
    is_cached = draw(st.booleans(), "cached")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(sample_patches, "COPY_NBYTES", 0)
        changed.setattr(sample_patches, "CALL_NBYTES", draw(st.sampled_from([1, 8, 64])))
        changed.setattr(sample_patches, "DECODE_FACTOR", draw(st.sampled_from([0, 5])))
        changed.setattr(sample_patches, "is_cached", lambda *_: is_cached)
        check(iobench.loader(store, 2, patch=patch, threads=1), store, patch=patch, epochs=2)
    store.close()


# -- normalised values ----------------------------------------------------------------------------


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


def statistics_of(**by):
    of_t = {"n": 9, "n_missing": 0, "mean": 20.0, "std": 9.0, "min": 0.0, "max": 40.0, **by}
    return {"all": {"t": of_t, "rain": {**of_t, "by": {}, "mean": 7.0}}}


def manifest(statistics, **normalisation):
    return SimpleNamespace(statistics=statistics, normalisation=normalisation)


def test_statistics_are_those_of_training_by_channel():
    spec = SampleSpec((SPEC["t"], SPEC["rain"], SPEC["hour"]))
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
        (True, {"all": {"t": statistics_of()["all"]["t"]}}, "no statistics of u; name others"),
        (["pressure"], statistics_of(), "there is no variable 'pressure', only t, u"),
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


def test_a_state_of_other_numbers_is_refused(make_store):
    store = make_store(SPEC, samples_of(SPEC, 4))
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
