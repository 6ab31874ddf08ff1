from __future__ import annotations

import json
import os
import struct
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.errors import OptionError, SampleError, StoreError, UnknownNameError
from iobench.files.crc32c import crc32c
from iobench.samples import SampleSpec, Variable
from iobench.stores.shard_writer import ShardPlan
from iobench.stores.verification import verify_store
from iobench.testing import EVERY_DTYPE, StoreTests, random_sample, side_by_side, write_store
from iobench_converters.zarr_groups import FORMAT

pytest.importorskip("numcodecs", reason="needs pip install 'iobench[zarr]'")

GRID = ("y", "x")
FIELDS = SampleSpec(
    (
        Variable("t2m", (5, 7), "f4", GRID, "K"),
        Variable("pressure", (3, 5, 7), "f4", ("channel", *GRID), "Pa", channels=("a", "b", "c")),
        Variable("mask", (5, 7), "u1", GRID),
        Variable("rain", (5, 7), "f4", GRID, "mm", role="target"),
    )
)
EVERYTHING = {"codec": "blosc-lz4", "inner-chunk": "y=2,x=64"}
CHAINS = [
    *("none", "blosc-lz4", "blosc:cname=zstd,clevel=3,shuffle=bitshuffle", "bz2:level=9", "gzip"),
    *("lz4:acceleration=2", "lzma:preset=1", "shuffle,zstd", "zlib", "shuffle:elementsize=1,lz4"),
]


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Nothing here cuts the power: these tests write thousands of small files."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class TestZarrStore(StoreTests):
    format = FORMAT


class TestZarrStoreWithAllOptions(StoreTests):
    format = FORMAT
    options = MappingProxyType(EVERYTHING)


class TestZarrStoreOfSharedChunks(StoreTests):
    format = FORMAT
    options = MappingProxyType({"chunk-samples": "2", "codec": "shuffle,zstd:level=3"})


class TestZarrStoreOfSharedParts(StoreTests):
    format = FORMAT
    options = MappingProxyType({"chunk-samples": "3", "inner-chunk": "y=2,x=64"})


def bits(sample):
    return {name: array.tobytes() for name, array in sample.items()}


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
        options["inner-chunk"] = (
            f"{data.draw(st.sampled_from(known))}={data.draw(st.integers(1, 6))}"
        )
    samples = [random_sample(spec, seed) for seed in range(5)]
    store = write_store(tmp_path_factory.mktemp("store"), FORMAT, spec, samples, options=options)
    assert store.codec == options["codec"]
    assert [bits(store[index]) for index in range(5)] == [bits(sample) for sample in samples]
    verify_store(store)
    for _, dims in described(store.path):
        assert dims[0] == "sample"
        assert len(set(dims)) == len(dims)


def described(path):
    """Yield shape and names of dimensions of each array of a store."""
    for file in path.glob("*/zarr.json"):
        metadata = json.loads(file.read_text())
        yield metadata["shape"], metadata["dimension_names"]


def test_one_dimension_name_has_one_length_in_the_group(tmp_path):
    spec = SampleSpec(tuple(v for v in EVERY_DTYPE if np.dtype(v.dtype).itemsize <= 8))
    write_store(tmp_path, FORMAT, spec, [random_sample(spec, 0)])
    lengths = {}
    for shape, dims in described(tmp_path):
        for name, length in zip(dims, shape, strict=True):
            assert lengths.setdefault(name, length) == length
    assert lengths == {"sample": 1, "c": 3, "y_3": 3, "x_5": 5, "y_80": 80, "x_80": 80}


def test_names_that_are_no_nodes_stay_inside_the_folder(tmp_path):
    names = (
        "../a",
        "T",
        "t",
        "zarr.json",
        "__x",
        "iobench.crc32c",
        "u-1.5",
        "é",
        ".",
        "variable-0",
        "e\u0301",
        "température",
        "温" * 80,
    )
    spec = SampleSpec(tuple(Variable(name, (2,), "f4", ("x",)) for name in names))
    sample = random_sample(spec, 0)
    store = write_store(tmp_path / "store", FORMAT, spec, [sample])
    folders = [extent.file.parent.relative_to(store.path).as_posix() for extent in store.extents(0)]
    expected = [f"variable-{number}" for number in range(len(names))]
    for number in (1, 2, 6, 7, 11):
        expected[number] = names[number]
    assert folders == expected
    assert bits(store[0]) == bits(sample)
    attributes = json.loads((store.path / "variable-0/zarr.json").read_text())["attributes"]
    assert attributes["long_name"] == "../a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "zst"}, "no codec 'zst'.*zstd"),
        ({"codec": ",zstd"}, "the name of a codec, got nothing"),
        ({"codec": "pickle"}, "no codec 'pickle'"),
        ({"codec": "zstd:lvl=3"}, "numcodecs refuses it: .*lvl"),
        ({"codec": "gzip:level=high"}, "numcodecs refuses it"),
        ({"codec": "zstd:level"}, "expected NAME:PARAMETER=VALUE"),
        ({"codec": "zstd:level=1,level=2"}, "expected NAME:PARAMETER=VALUE"),
        ({"codec": "blosc:cname=other"}, "numcodecs refuses it"),
        ({"codec": "blosc:shuffle=7"}, "numcodecs refuses it"),
        ({"codec": "zstd,bitround:keepbits=3"}, "name it first"),
        ({"codec": "bitround:keepbits=60"}, "N from 0 to 52"),
        ({"codec": "zstd:level=23"}, "level: expected 22 or less"),
        ({"codec": "gzip,shuffle,lz4"}, "shuffle sorts numbers; name it before"),
        ({"codec": "shuffle:elementsize=2"}, "a chunk of mask has 35 bytes.*leave elementsize out"),
        ({"chunk-samples": "0"}, "chunk-samples=0: expected a number from 1"),
        ({"inner-chunk": "lat=3"}, "inner-chunk=lat=.*are channel, x, y"),
        ({"pack": "channels"}, "'pack' is no option"),
        ({"inner-chunk": "y"}, "inner-chunk=y: expected dimensions"),
        ({"inner-chunk": "y=0"}, "inner-chunk=y=0"),
        ({"inner-chunk": "y=2,y=3"}, "inner-chunk=y=2,y=3"),
        ({"inner-chunk": "y=99999999999999999999"}, "inner-chunk"),
        ({"chunks": "y=2"}, "chunks"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises((OptionError, UnknownNameError), match=message) as caught:
        FORMAT.encoder(FIELDS, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (Variable("x", (3, 0), "f4", GRID), "no values"),
        (Variable("x", (3, 2), "g", GRID), "no dtype"),
        (Variable("x", (3, 2), "G", GRID), "no dtype"),
    ],
)
def test_what_zarr_cannot_hold_is_refused(variable, message):
    with pytest.raises(SampleError, match=f"{message}.*format numpy"):
        FORMAT.encoder(SampleSpec((variable,)), {})


def test_chunk_beyond_what_codecs_take_is_refused():
    spec = SampleSpec((Variable("x", (1 << 29,), "f4", ("x",)),))
    with pytest.raises(OptionError, match="smaller inner-chunk"):
        FORMAT.encoder(spec, {"codec": "blosc-lz4"})


def test_index_is_as_the_sharding_codec_says(tmp_path):
    """Two samples in a shard of room for four: two places are marked as empty."""
    spec = SampleSpec((Variable("x", (3,), "f4", ("x",)),))
    writer = FORMAT.writer(tmp_path, spec, ShardPlan(2, 2, 4), {})
    rows = side_by_side(spec, [random_sample(spec, seed) for seed in range(2)])
    writer.append(FORMAT.encoder(spec, {})(rows))
    (file,) = writer.close().shard.files
    data = (tmp_path / file.name).read_bytes()
    assert file.name == "x/c.2.0"
    empty = (1 << 64) - 1
    index = struct.pack("<8Q", 0, 12, 12, 12, *(empty for _ in range(4)))
    assert data[24:] == index + struct.pack("<I", crc32c(index))
    assert data[:24] == b"".join(random_sample(spec, seed)["x"].tobytes() for seed in range(2))


def test_compressed_bytes_do_not_depend_on_threads(tmp_path):
    """Blosc's own threads would lay blocks down in the order they finish in."""
    spec = SampleSpec((Variable("x", (512, 1024), "f4", GRID),))
    smooth = {
        "x": np.cumsum(np.ones((512, 1024), "f4"), axis=1) + np.arange(512, dtype="f4")[:, None]
    }
    found = []
    for number in range(4):
        store = write_store(
            tmp_path / str(number), FORMAT, spec, [smooth] * 4, options={"codec": "blosc-lz4"}
        )
        found += [bytes(store.read(store.extents(index))[0]) for index in range(4)]
        assert store.manifest.nbytes < 0.5 * 4 * spec.nbytes
    assert len(set(found)) == 1


@pytest.fixture
def store(tmp_path):
    samples = [random_sample(FIELDS, seed) for seed in range(3)]
    return write_store(tmp_path, FORMAT, FIELDS, samples, options=EVERYTHING)


@settings(max_examples=5 * settings().max_examples, deadline=None)
@given(st.data())
def test_damaged_chunks_are_a_store_error_or_a_whole_sample(tmp_path_factory, data):
    store = _one_sample(tmp_path_factory)
    raw = [bytearray(piece) for piece in store.read(store.extents(0))]
    store.close()
    piece = raw[data.draw(st.integers(0, len(raw) - 1))]
    place = st.one_of(st.integers(0, len(piece) - 1), st.integers(0, 15))
    for _ in range(data.draw(st.integers(0, 3))):
        piece[data.draw(place)] = data.draw(st.integers(0, 255))
    del piece[data.draw(st.one_of(st.just(len(piece)), st.integers(0, len(piece)))) :]
    try:
        store.spec.check(store.decode([memoryview(bytes(p)) for p in raw]), where="damaged")
    except StoreError as error:
        assert "\n" not in str(error)  # noqa: PT017


_STORES = []


def _one_sample(tmp_path_factory):
    if not _STORES:
        path = tmp_path_factory.mktemp("damaged")
        _STORES.append(
            write_store(path, FORMAT, FIELDS, [random_sample(FIELDS, 0)], options=EVERYTHING)
        )
    return _STORES[0]
