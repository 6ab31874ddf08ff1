"""Patches are cut where `coordinates` says, of every container, and no more is read than that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from number_stores import nothing_left

import iobench
from iobench.errors import StoreError
from iobench.loaders.ring import sample_patches
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.sample_patches import CutReader, PatchPlaces
from iobench.loaders.ring.store_source import StoreSource, open_store
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable, Window
from iobench.stores.encoding import Encoding
from iobench.testing import write_store
from iobench.windows import place_windows

N, Y, X = 10, 9, 14
SPEC = SampleSpec(
    (
        Variable("t", (3, Y, X), "<f4", ("level", "y", "x"), "K"),
        Variable("u", (3, Y, X), "<f4", ("level", "y", "x"), "m s-1"),
        Variable("mask", (X, Y), "|u1", ("x", "y")),
        Variable("row", (Y,), "<f8", ("y",)),
        Variable("rain", (Y, X), "<f4", ("y", "x"), role="target"),
        Variable("hour", (), "<i8", ()),
    )
)
FLOATS = SampleSpec(tuple(v for v in SPEC if v.dtype == "<f4"))
INT16 = Encoding(dtypes={"": "int16"}, ranges={v.name: (0.0, 100.0) for v in FLOATS})
PATCH = {"y": 4, "x": 5}
STORES = {
    "numpy": ("numpy", SPEC, {}, None),
    "tfrecord": ("tfrecord", FLOATS, {}, None),
    "tfrecord, whole numbers": ("tfrecord", SPEC, {}, None),
    "zarr": ("zarr", SPEC, {}, None),
    "zarr, chunks": ("zarr", SPEC, {"inner-chunk": "y=3,x=4"}, None),
    "zarr, lz4": ("zarr", SPEC, {"codec": "blosc-lz4"}, None),
    "zarr, chunks of lz4": ("zarr", SPEC, {"codec": "blosc-lz4", "inner-chunk": "y=3,x=4"}, None),
    "zarr, cut levels": ("zarr", SPEC, {"inner-chunk": "y=3,level=2"}, None),
    "zarr, int16": ("zarr", FLOATS, {"inner-chunk": "y=4"}, INT16),
    "numpy, int16": ("numpy", FLOATS, {}, INT16),
}


def samples_of(spec, n=N):
    random = np.random.default_rng(0)
    return [
        {v.name: (random.random(v.shape) * 100).astype(v.dtype) for v in spec} for _ in range(n)
    ]


@pytest.fixture(params=list(STORES))
def store(request, make_store):
    fmt, spec, options, encoding = STORES[request.param]
    shards = (6, 4)
    return make_store(
        spec, samples_of(spec), fmt, options=options, shards=shards, encoding=encoding
    )


@pytest.fixture
def partly(monkeypatch):
    """Let no sample be too small to be read in parts, and rows far apart."""
    monkeypatch.setattr(sample_patches, "COPY_NBYTES", 0)
    monkeypatch.setattr(sample_patches, "CALL_NBYTES", 24)
    with nothing_left():
        yield


def cut(values, dims, starts, patch):
    index = tuple(
        slice(starts[dim], starts[dim] + patch[dim]) if dim in patch else slice(None)
        for dim in dims
    )
    return values[index]


def check(loader, store, patch, epochs=1):
    """Compare every patch with the whole sample; return where they begin."""
    seen = []
    for _ in range(epochs):
        for batch in loader:
            where = loader.coordinates()
            for row, number in enumerate(where["sample"].tolist()):
                starts = {dim: int(where[f"{dim}_start"][row]) for dim in patch}
                seen.append((number, *starts.values()))
                for variable in store.spec:
                    whole = store[number][variable.name]
                    found = batch[variable.name][row]
                    assert np.array_equal(found, cut(whole, variable.dims, starts, patch))
                    assert found.dtype == whole.dtype
    loader.close()
    return seen


@pytest.mark.parametrize("is_cached", [True, False])
def test_patches_are_those_of_whole_samples(store, partly, monkeypatch, is_cached):
    monkeypatch.setattr(sample_patches, "is_cached", lambda *_: is_cached)
    loader = iobench.loader(store, 3, shuffle=True, seed=2, patch=PATCH, threads=2)
    seen = check(loader, store, PATCH, epochs=3)
    assert sorted(number for number, *_ in seen) == sorted([*range(N)] * 3)
    assert len(set(seen)) > N  # other places in other epochs
    store.close()


def test_only_what_needs_all_is_read_whole(store, partly):
    sizes = PatchPlaces(PATCH, store.spec)
    is_whole = isinstance(StoreSource(store).box_filler(sizes), CutReader)
    assert isinstance(StoreSource(store, verify=True).box_filler(sizes), CutReader)
    assert is_whole == (store.manifest.format == "tfrecord")
    loader = iobench.loader(store, 3, patch=PATCH)
    verified = iobench.loader(store, 3, patch=PATCH, verify=True)
    check(loader, store, PATCH)
    check(verified, store, PATCH)
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


@pytest.mark.parametrize("fmt", ["numpy", "zarr"])
def test_tiles_cover_each_sample_and_the_centre_is_its_middle(make_store, fmt):
    store = make_store(SPEC, samples_of(SPEC, 3), fmt)
    loader = iobench.loader(store, 4, patch=PATCH, patch_at="tiles")
    assert len(loader.dataset) == 3 * 3 * 3
    seen = check(loader, store, PATCH)
    starts = [(y, x) for y in (0, 4, 5) for x in (0, 5, 9)]
    assert seen == [(n, *start) for n in range(3) for start in starts]
    mixed = iobench.loader(store, 4, patch=PATCH, patch_at="tiles", shuffle=True)
    assert sorted(check(mixed, store, PATCH)) == sorted(seen)
    centre = iobench.loader(store, 4, patch=PATCH, patch_at="centre")
    assert check(centre, store, PATCH, epochs=2) == [(n, 2, 4) for n in range(3)] * 2
    store.close()


@pytest.mark.parametrize("fmt", ["numpy", "tfrecord", "zarr"])
def test_all_items_of_a_window_are_cut_at_one_place(make_store, fmt, monkeypatch):
    monkeypatch.setattr(sample_patches, "COPY_NBYTES", 0)
    samples = samples_of(FLOATS)
    store = make_store(FLOATS, samples, fmt)
    window = place_windows([float(n) for n in range(N)], Window((-1, 0), (1,)))
    loader = iobench.loader(store, 3, window=window, patch=PATCH, shuffle=True)
    for batch in loader:
        where = loader.coordinates()
        assert where["sample"].shape == (len(batch["t"]), 3)
        for row, items in enumerate(where["sample"].tolist()):
            starts = {dim: int(where[f"{dim}_start"][row]) for dim in PATCH}
            parts = [cut(samples[n]["t"], ("level", "y", "x"), starts, PATCH) for n in items[:2]]
            assert np.array_equal(batch["t"][row], np.stack(parts))
            rain = cut(samples[items[2]]["rain"], ("y", "x"), starts, PATCH)
            assert np.array_equal(batch["rain"][row, 0], rain)
    loader.close()
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
        check(iobench.loader(store, 2, patch=patch, threads=1), store, patch, epochs=2)
    store.close()
