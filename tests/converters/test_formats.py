"""The containers: the contract of stores for each, and what is the container's own."""

from __future__ import annotations

import json
import os
import pickle
import struct
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iobench
from iobench.errors import IobenchError, StoreError
from iobench.files.crc32c import crc32c
from iobench.samples import SampleSpec, Variable
from iobench.stores.manifest import read_manifest
from iobench.stores.shard_writer import ShardPlan
from iobench.stores.tfrecord import FRAME_NBYTES, FeatureKind, parse_example, scan_frames
from iobench.stores.verification import verify_store
from iobench.testing import EVERY_DTYPE, StoreTests, random_sample, side_by_side, write_store
from iobench_converters import numpy_records, tfrecord, zarr_groups
from iobench_converters.numpy_records import file_dtypes, is_one_record, npy_header

NUMPY, TFRECORD, ZARR = numpy_records.FORMAT, tfrecord.FORMAT, zarr_groups.FORMAT
GRID = ("y", "x")
FIELDS = SampleSpec(
    (
        Variable("t2m", (5, 7), "f4", GRID, "K"),
        Variable("pressure", (3, 5, 7), "f4", ("channel", *GRID), "Pa", channels=("a", "b", "c")),
        Variable("mask", (5, 7), "u1", GRID),
        Variable("rain", (5, 7), "f4", GRID, "mm", role="target"),
    )
)
EVERYTHING = {"codec": "blosc-lz4", "inner-chunk": "y=20,x=64"}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Nothing here cuts the power: these tests write thousands of small files."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestNumpyStore(StoreTests):
    format = NUMPY


class TestTFRecordStore(StoreTests):
    format = TFRECORD


class TestTFRecordStoreOfBytes(StoreTests):
    format = TFRECORD
    options = MappingProxyType({"encoding": "bytes"})


class TestZarrStore(StoreTests):
    format = ZARR


class TestZarrStoreWithAllOptions(StoreTests):
    format = ZARR
    options = MappingProxyType(EVERYTHING)


class TestZarrStoreOfSharedChunks(StoreTests):
    format = ZARR
    options = MappingProxyType({"chunk-samples": "2", "codec": "shuffle,zstd:level=3"})


class TestZarrStoreOfSharedParts(StoreTests):
    format = ZARR
    options = MappingProxyType({"chunk-samples": "3", "inner-chunk": "y=20,x=64"})


def bits(sample):
    return {name: array.tobytes() for name, array in sample.items()}


def x(shape, dtype="f4", dims=None):
    return SampleSpec((Variable("x", shape, dtype, dims or ("y", "x")[-len(shape) :]),))


HUGE = x((1 << 29,))


@pytest.mark.parametrize(
    ("fmt", "options", "said", "spec"),
    [
        *(
            (ZARR, {"codec": codec}, said, FIELDS)
            for codec, said in [
                ("zst", "no codec 'zst'.*zstd"),
                (",zstd", "the name of a codec, got nothing"),
                ("pickle", "no codec 'pickle'"),
                ("zstd:lvl=3", "numcodecs refuses it: .*lvl"),
                ("gzip:level=high", "numcodecs refuses it"),
                ("zstd:level", "expected NAME:PARAMETER=VALUE"),
                ("zstd:level=1,level=2", "expected NAME:PARAMETER=VALUE"),
                ("blosc:cname=other", "numcodecs refuses it"),
                ("blosc:shuffle=7", "numcodecs refuses it"),
                ("zstd,bitround:keepbits=3", "name it first"),
                ("bitround:keepbits=60", "N from 0 to 52"),
                ("zstd:level=23", "level: expected 22 or less"),
                ("gzip,shuffle,lz4", "shuffle sorts numbers; name it before"),
                ("shuffle:elementsize=2", "elements are the numbers; name it alone"),
            ]
        ),
        *(
            (ZARR, {"inner-chunk": text}, said, FIELDS)
            for text, said in [
                ("lat=3", "inner-chunk=lat=.*are channel, x, y"),
                ("y", "inner-chunk=y: expected dimensions"),
                ("y=0", "inner-chunk=y=0"),
                ("y=2,y=3", "inner-chunk=y=2,y=3"),
                ("y=99999999999999999999", "inner-chunk"),
            ]
        ),
        (ZARR, {"chunk-samples": "0"}, "chunk-samples=0: expected a number from 1", FIELDS),
        (ZARR, {"pack": "channels"}, "'pack' is no option", FIELDS),
        (ZARR, {}, "no values.*format numpy", x((3, 0))),
        (ZARR, {}, "no dtype.*format numpy", x((3, 2), "g")),
        (ZARR, {}, "no dtype.*format numpy", x((3, 2), "G")),
        (ZARR, {"codec": "blosc-lz4"}, "smaller inner-chunk", HUGE),
        (TFRECORD, {}, "format numpy", HUGE),
        (TFRECORD, {"encoding": "zip"}, r"encoding=float\|bytes", FIELDS),
        (NUMPY, {}, "less than 2 GiB", x((1 << 16, 1 << 16))),
    ],
)  # fmt: skip
def test_what_a_container_does_not_take(fmt, options, said, spec):
    with pytest.raises(IobenchError, match=said) as caught:
        fmt.encoder(spec, options)
    assert "\n" not in str(caught.value)


NAMES = (
    "../a", "T", "t", "zarr.json", "__x", "iobench.crc32c", "u-1.5", "é", ".", "variable-0",
    "e\u0301", "température", "温" * 80,
)  # fmt: skip


@pytest.mark.parametrize(("fmt", "kept"), [(ZARR, (1, 2, 6, 7, 11)), (NUMPY, (4,))])
def test_names_that_are_no_file_names_stay_inside_the_folder(tmp_path, fmt, kept):
    large = fmt is NUMPY  # whose files are one for each large variable
    spec = SampleSpec(tuple(Variable(n, (1 << 14 if large else 2,), "f4", ("x",)) for n in NAMES))
    sample = random_sample(spec, 0)
    store = write_store(tmp_path / "store", fmt, spec, [sample])
    names = [NAMES[n] if n in kept else f"variable-{n}" for n in range(len(NAMES))]
    expected = [f"shard-00000.{name}.npy" if large else f"{name}/c.0.0" for name in names]
    found = [file.name for file in store.manifest.shards[0].files]
    assert found == expected
    assert bits(store[0]) == bits(sample)
    if not large:
        attributes = json.loads((store.path / "variable-0/zarr.json").read_text())["attributes"]
        assert attributes["long_name"] == "../a"


# ---- Zarr


CHAINS = [
    *("none", "blosc-lz4", "blosc:cname=zstd,clevel=3,shuffle=bitshuffle", "bz2:level=9", "gzip"),
    *("lz4:acceleration=2", "lzma:preset=1", "shuffle,zstd", "zlib", "shuffle,lz4"),
]


@given(st.data())
def test_any_spec_round_trips_in_any_chunks(tmp_path_factory, data):
    dtypes = data.draw(
        st.lists(st.sampled_from(["f4", "f8", "i2", "u8", "?"]), min_size=1, max_size=4)
    )
    names = st.sampled_from(["x", "y", "sample", "channel", ""])
    variables = []
    for number, dtype in enumerate(dtypes):
        shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
        dims = tuple(data.draw(names) for _ in shape)
        variables.append(Variable(f"v{number}", shape, dtype, dims))
    spec = SampleSpec(tuple(variables))
    known = sorted({name for variable in spec for name in variable.dims} - {""})
    options = {
        "codec": data.draw(st.sampled_from(CHAINS)),
        "chunk-samples": str(data.draw(st.integers(1, 4))),
    }
    if known:
        chosen = data.draw(st.sampled_from(known)), data.draw(st.integers(1, 6))
        options["inner-chunk"] = "{}={}".format(*chosen)
    samples = [random_sample(spec, seed) for seed in range(5)]
    store = write_store(tmp_path_factory.mktemp("store"), ZARR, spec, samples, options=options)
    assert store.codec == options["codec"]
    assert [bits(store[index]) for index in range(5)] == [bits(sample) for sample in samples]
    verify_store(store)
    lengths = {}  # a dimension's name has one length in the group
    for file in store.path.glob("*/zarr.json"):
        metadata = json.loads(file.read_text())
        dims = metadata["dimension_names"]
        assert dims[0] == "sample"
        assert len(set(dims)) == len(dims)
        for name, length in zip(dims, metadata["shape"], strict=True):
            assert lengths.setdefault(name, length) == length


def test_index_is_as_the_sharding_codec_says(tmp_path):
    """Two samples in a shard of room for four: two places are marked as empty."""
    spec = x((3,))
    writer = ZARR.writer(tmp_path, spec, ShardPlan(2, 2, 4), {})
    rows = side_by_side(spec, [random_sample(spec, seed) for seed in range(2)])
    writer.append(ZARR.encoder(spec, {})(rows))
    (file,) = writer.close().shard.files
    data = (tmp_path / file.name).read_bytes()
    assert file.name == "x/c.2.0"
    empty = (1 << 64) - 1
    index = struct.pack("<8Q", 0, 12, 12, 12, *(empty for _ in range(4)))
    assert data[24:] == index + struct.pack("<I", crc32c(index))
    assert data[:24] == b"".join(random_sample(spec, seed)["x"].tobytes() for seed in range(2))


@pytest.fixture(scope="module")
def one_sample(tmp_path_factory):
    """A store of one sample of each container."""

    def made(fmt, spec, options):
        path = tmp_path_factory.mktemp("one")
        return write_store(path, fmt, spec, [random_sample(spec, 0)], options=options)

    return {
        "zarr": made(ZARR, FIELDS, EVERYTHING),
        "tfrecord": made(TFRECORD, FIXED, {}),
    }


@settings(max_examples=5 * settings().max_examples)
@given(st.data())
def test_damaged_chunks_are_a_store_error_or_a_whole_sample(one_sample, data):
    store = one_sample["zarr"]
    raw = [bytearray(piece) for piece in store.read(store.extents(0))]
    piece = raw[data.draw(st.integers(0, len(raw) - 1))]
    place = st.one_of(st.integers(0, len(piece) - 1), st.integers(0, 15))
    for _ in range(data.draw(st.integers(0, 3))):
        piece[data.draw(place)] = data.draw(st.integers(0, 255))
    del piece[data.draw(st.one_of(st.just(len(piece)), st.integers(0, len(piece)))) :]
    try:
        store.spec.check(store.decode([memoryview(bytes(p)) for p in raw]), where="damaged")
    except StoreError as error:
        assert "\n" not in str(error)  # noqa: PT017


# ---- TFRecord


RECORDS = SampleSpec(
    (
        Variable("fields", (3, 11, 7), "f4", ("channel", "y", "x"), "K"),
        Variable("t2m", (), "f4", ()),
        Variable("month", (2,), "i8", ("end",)),
        Variable("seconds", (4,), "f8", ("step",)),
    )
)
FIXED = SampleSpec(tuple(variable for variable in RECORDS if variable.name != "month"))


def test_floats_are_float_lists_and_other_numbers_lose_nothing(tmp_path):
    store = write_store(tmp_path, TFRECORD, EVERY_DTYPE, [random_sample(EVERY_DTYPE, 0)])
    features = parse_example(store.read(store.extents(0))[0])
    kinds = {name.removeprefix("v_"): feature.kind for name, feature in features.items()}
    assert kinds["float32"] is kinds["scalar"] is FeatureKind.FLOAT
    assert kinds["int8"] is kinds["uint32"] is kinds["bool"] is FeatureKind.INT64
    assert kinds["float64"] is kinds["float16"] is kinds["uint64"] is FeatureKind.BYTES


def test_index_is_what_tfrecord2idx_writes(tmp_path):
    samples = [random_sample(RECORDS, seed) for seed in range(3)]
    write_store(tmp_path, TFRECORD, RECORDS, samples, shard_n_samples=3)
    lines = (tmp_path / "shard-00000.idx").read_text().splitlines()
    frames = [tuple(map(int, line.split())) for line in lines]
    scanned = list(scan_frames(tmp_path / "shard-00000.tfrecord"))
    assert frames == [(offset - 12, nbytes + FRAME_NBYTES) for offset, nbytes in scanned]


def outcome(decode, record):
    """The bits of the sample a decoder makes of a record, or what it says is wrong."""
    try:
        return bits(decode([memoryview(record)]))
    except StoreError as error:
        return str(error)


@settings(max_examples=5 * settings().max_examples)
@given(st.data())
def test_a_record_read_by_the_layout_of_another_is_as_if_parsed(one_sample, data):
    store = one_sample["tfrecord"]
    record = bytearray(store.read(store.extents(0))[0])
    warm = tfrecord.ExampleDecoder(FIXED)
    warm([memoryview(bytes(record))])
    damage = st.one_of(st.integers(0, len(record) - 1), st.integers(0, 30))
    for _ in range(data.draw(st.integers(0, 2))):
        record[data.draw(damage)] = data.draw(st.integers(0, 255))
    assert outcome(warm, record) == outcome(tfrecord.ExampleDecoder(FIXED), record)


@pytest.mark.parametrize(("spec", "parses"), [(FIXED, 1), (RECORDS, 3)], ids=["fixed", "varints"])
def test_records_of_one_layout_are_parsed_once(tmp_path, monkeypatch, spec, parses):
    parsed = []
    monkeypatch.setattr(tfrecord, "parse_example", lambda r: parsed.append(r) or parse_example(r))
    samples = [random_sample(spec, seed) for seed in range(3)]
    store = write_store(tmp_path, TFRECORD, spec, samples)
    assert [bits(store[number]) for number in range(3)] == list(map(bits, samples))
    assert len(parsed) == parses


# ---- NumPy


def test_samples_without_values_are_samples(tmp_path):
    spec = x((0, 3))
    store = write_store(tmp_path, NUMPY, spec, [{"x": np.zeros((0, 3), "<f4")}] * 3)
    assert [store[number]["x"].shape for number in range(3)] == [(0, 3)] * 3
    loader = iobench.loader(store, 2)
    assert [batch["x"].shape for batch in loader] == [(2, 0, 3), (1, 0, 3)]
    loader.close()


def test_variable_of_64_kib_has_a_file_of_its_own():
    assert (is_one_record(x((1 << 14,))), is_one_record(x(((1 << 14) - 1,)))) == (False, True)


@pytest.mark.parametrize("n_samples", [1, 3, 7])
def test_header_says_how_many_came_whatever_was_announced(tmp_path, n_samples):
    writer = NUMPY.writer(tmp_path, EVERY_DTYPE, ShardPlan(0, n_samples, 7), {})
    rows = side_by_side(EVERY_DTYPE, [random_sample(EVERY_DTYPE, seed) for seed in range(3)])
    writer.append(NUMPY.encoder(EVERY_DTYPE, {})(rows))
    (file,) = writer.close().shard.files
    assert np.load(tmp_path / file.name, mmap_mode="r").shape == (3,)
    assert file.crc32c == crc32c((tmp_path / file.name).read_bytes())


@given(st.integers(0, 10**19), st.integers(0, 10**19))
def test_header_has_one_length_for_any_number_of_samples(few, many):
    dtype = file_dtypes(EVERY_DTYPE)[0]
    assert len(npy_header(dtype, few)) == len(npy_header(dtype, many))
    assert len(npy_header(dtype, few)) % 64 == 0


@pytest.mark.parametrize(
    ("fields", "version"), [([("t2m", "f4", (3,))], (1, 0)), ([("température", "f4")], (3, 0))]
)
def test_header_has_the_lowest_version_that_can_hold_it(tmp_path, fields, version):
    """DALI's reader knows version 1.0 alone; NumPy reads names beyond Latin-1 in 3.0 alone."""
    array = np.zeros(2, dtype=fields)
    file = tmp_path / "x.npy"
    file.write_bytes(npy_header(array.dtype, 2) + array.tobytes())
    with file.open("rb") as stream:
        assert np.lib.format.read_magic(stream) == version
    assert np.load(file).dtype == array.dtype


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Harmful()),
        b"\x93NUMPY\x01\x00\x76\x00" + pickle.dumps(Harmful()),
        npy_header(np.dtype("O"), 1) + pickle.dumps(Harmful()),
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff",
    ],
)
def test_a_header_is_compared_and_a_pickle_never_executed(tmp_path, content):
    spec = x((128, 128))
    store = write_store(tmp_path, NUMPY, spec, [random_sample(spec, 0)])
    file = store.path / store.manifest.shards[0].files[0].name
    nbytes = file.stat().st_size
    file.write_bytes(content.ljust(nbytes, b"\0")[:nbytes])
    with pytest.raises(StoreError, match=r"x\.npy: not an \.npy file of 1 samples"):
        NUMPY.open(tmp_path, read_manifest(tmp_path))
