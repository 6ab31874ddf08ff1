from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from iobench.datasets.contract import SampleIndex
from iobench.datasets.sample_windows import samples_in_order
from iobench.errors import MissingFileError, StoreError
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import write_manifest
from iobench.stores.verification import verify_against
from iobench.testing import MadeUpDataset, random_sample, write_store
from iobench_converters import numpy_records, tfrecord

SPEC = SampleSpec(
    (
        Variable("T", (3, 5), "f4", ("y", "x"), "K"),
        Variable("mask", (4,), "u1", ("x",)),
        Variable("z", (), "c8", (), role="target"),
    )
)
FLOATS = SampleSpec((Variable("T", (6,), "f4", ("x",)), Variable("p", (6,), "f8", ("x",))))
DATASET = MadeUpDataset(SPEC)
INDEX = replace(DATASET.index(10), coordinate=[f"2020-01-{day:02}" for day in range(1, 11)])

pytestmark = pytest.mark.timeout(60)


def make(numbers):
    return samples_in_order(DATASET, INDEX, numbers)


def given(*samples):
    yield from samples


def changed(number, **values):
    """A way to make samples that gives one of them other values: ``T=(index, value)``."""

    def made(numbers):
        for one, sample in zip(numbers, make(numbers), strict=True):
            arrays = {name: array.copy() for name, array in sample.items()}
            for name, (index, value) in values.items() if one == number else ():
                arrays[name][index] = value
            yield arrays

    return made


@pytest.fixture(params=[numpy_records.FORMAT, tfrecord.FORMAT], ids=["numpy", "tfrecord"])
def store(request, tmp_path):
    samples = [random_sample(SPEC, seed) for seed in range(10)]
    return write_store(tmp_path / "store", request.param, SPEC, samples, shard_n_samples=4)


def manifest_of(store, **changes):
    """Open the store again with another manifest."""
    write_manifest(store.path, replace(store.manifest, **changes))
    return open_store(store.path)


def test_a_store_of_its_source_is_the_same(store):
    told = []
    result = verify_against(store, INDEX, make, progress=lambda *done: told.append(done))
    assert result.same
    assert (result.n_samples, result.n_compared, result.nbytes) == (10, 10, 10 * SPEC.nbytes)
    assert (result.n_values, result.n_differing_samples, result.differing) == (0, 0, {})
    assert told == [(done, 10) for done in range(1, 11)]
    assert str(result) == "all 10 samples are as the source has them"


def test_the_first_difference_is_named(store):
    number = 6
    before = random_sample(SPEC, number)["T"][2, 3]
    result = verify_against(store, INDEX, changed(number, T=((2, 3), 7.5)))
    assert not result.same
    assert result.first == (
        f"shard 1, sample 6, which is 6 of the source (2020-01-07): T[2, 3] is {before!s}, in the "
        "source 7.5"
    )
    assert (result.n_values, result.n_differing_samples, result.differing) == (1, 1, {"T": 1})
    expected = abs(float(before) - 7.5)
    assert result.largest == {"T": pytest.approx(expected)}
    assert json.loads(json.dumps(result.to_dict()))["n_values"] == 1


def test_kinds_of_nan_are_told_apart_in_words(tmp_path):
    spec = SampleSpec((Variable("x", (), "f4", ()),))
    quiet, other = (np.array(bits, "<u4").view("<f4") for bits in (0x7FC00000, 0x7FC00001))
    store = write_store(tmp_path / "store", numpy_records.FORMAT, spec, [{"x": quiet}])
    result = verify_against(store, SampleIndex(spec, [0]), lambda _: given({"x": other}))
    assert result.first == (
        "shard 0, sample 0, which is 0 of the source: x is nan (bytes 0000c07f), in the source "
        "nan (bytes 0100c07f)"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.0, -0.0), (np.nan, -np.nan), (1e-45, 0.0), (np.inf, np.nan), (np.inf, -np.inf)],
)
def test_lossless_is_every_bit(tmp_path, one, other):
    spec = SampleSpec((Variable("x", (3,), "f4", ("x",)),))
    stored = {"x": np.array([1, one, 2], "f4")}
    source = {"x": np.array([1, other, 2], "f4")}
    store = write_store(tmp_path / "store", numpy_records.FORMAT, spec, [stored])
    index = SampleIndex(spec, [0])
    assert verify_against(store, index, lambda _: given(stored)).same
    result = verify_against(store, index, lambda _: given(source))
    assert result.first.startswith("shard 0, sample 0, which is 0 of the source: x[1] is ")
    assert result.n_values == 1
    assert np.isfinite(result.largest["x"])


def test_only_a_share_is_made_again(store):
    asked = []

    def watched(numbers):
        asked.extend(numbers)
        return make(numbers)

    result = verify_against(store, INDEX, watched, share=0.25)
    assert result.n_compared == len(asked) == 3
    assert asked == sorted(set(asked))
    once = list(asked)
    asked.clear()
    verify_against(store, INDEX, watched, share=0.25)
    assert asked == once
    asked.clear()
    assert verify_against(store, INDEX, watched, share=1e-9).n_compared == 1


def test_samples_are_those_the_store_says_it_holds(tmp_path):
    chosen = [7, 2, 5]
    samples = [random_sample(SPEC, number) for number in chosen]
    store = write_store(tmp_path / "store", numpy_records.FORMAT, SPEC, samples)
    store = manifest_of(store, samples=tuple(chosen))
    assert verify_against(store, INDEX, make).same
    result = verify_against(store, INDEX, changed(5, T=((0, 0), 1.0)))
    assert result.first.startswith("shard 1, sample 2, which is 5 of the source")


def test_another_source_is_refused(store):
    for spec, said in [
        (SampleSpec((SPEC["T"],)), "holds arrays T, mask, z, the source makes T;"),
        (SampleSpec((replace(SPEC["T"], shape=(3, 6)), SPEC["mask"], SPEC["z"])), r"T is <f4"),
        (SampleSpec((replace(SPEC["T"], dtype="f8"), SPEC["mask"], SPEC["z"])), r"makes <f8"),
    ]:
        with pytest.raises(StoreError, match=said):
            verify_against(store, replace(INDEX, spec=spec), make)
    with pytest.raises(StoreError, match="holds sample 9 of its source, which has 9 now"):
        verify_against(store, DATASET.index(9), make)


def test_what_making_a_sample_raises_is_raised_and_the_maker_is_closed(store):
    closed = []

    def failing(numbers):
        try:
            yield random_sample(SPEC, 0)
            raise MissingFileError("a.nc is gone")
        finally:
            closed.append(True)

    with pytest.raises(MissingFileError, match=r"a\.nc"):
        verify_against(store, INDEX, failing)
    assert closed


def values_of(seed):
    random = np.random.default_rng(seed)
    return {"T": random.normal(280, 10, 6).astype("f4"), "p": random.normal(1e5, 10, 6)}


@pytest.fixture(params=["float16", "int16", "mantissas rounded by an earlier version"])
def lossy(request, tmp_path):
    """A store of the first variable with fewer bits, and its errors."""
    samples = [values_of(seed) for seed in range(4)]
    if request.param.startswith("mantissas"):
        rounded = [{**one, "T": (one["T"].view("u4") & 0xFFFF0000).view("f4")} for one in samples]
        store = write_store(
            tmp_path / "lossy", numpy_records.FORMAT, FLOATS, rounded, shard_n_samples=2
        )
        return with_errors(store, samples)
    encoding = Encoding.parse(dtype=f"T={request.param}")
    encoding = encoding.learn(
        FLOATS, (({name: each[None] for name, each in one.items()}, str) for one in samples)
    )
    encoder = encoding.encoder(FLOATS)
    rows, _ = encoder.encode({n: np.stack([one[n] for one in samples]) for n in samples[0]}, str)
    encoded = [{name: each[number] for name, each in rows.items()} for number in range(4)]
    store = write_store(
        tmp_path / "lossy",
        numpy_records.FORMAT,
        encoding.stored_spec(FLOATS),
        encoded,
        shard_n_samples=2,
    )
    return with_errors(store, samples)


def with_errors(store, samples):
    off = [np.abs(store[n]["T"].astype("f8") - one["T"]).max() for n, one in enumerate(samples)]
    return manifest_of(store, lossy={"T": {"max_absolute_error": max(off)}})


def test_a_lossy_store_is_within_its_errors(lossy):
    index = SampleIndex(FLOATS, range(4))
    result = verify_against(lossy, index, lambda numbers: given(*map(values_of, numbers)))
    assert result.same
    assert result.allowed == {"T": lossy.manifest.lossy["T"]["max_absolute_error"]}
    assert result.largest == result.allowed


def test_a_lossy_store_beyond_its_errors_is_said(lossy):
    index = SampleIndex(FLOATS, range(4))
    allowed = lossy.manifest.lossy["T"]["max_absolute_error"]

    def made(numbers):
        for number in numbers:
            values = values_of(number)
            if number == 3:
                values["T"][4] += 2.5 * allowed
                values["p"][2] = np.nextafter(values["p"][2], 0)
            yield values

    result = verify_against(lossy, index, made)
    assert "sample 3, which is 3 of the source: T[4] is " in result.first
    assert result.differing == {"T": 1, "p": 1}
    assert allowed < result.largest["T"] <= 3.5 * allowed


@pytest.mark.parametrize(
    "changes",
    [
        {"lossy": {"T": 5}},
        {"lossy": {"T": {"max_absolute_error": "x"}}},
    ],
)
def test_a_manifest_edited_by_hand_is_refused(store, changes):
    with pytest.raises(StoreError, match="are damaged"):
        verify_against(manifest_of(store, **changes), INDEX, make)
