"""Stores edited by hand or made to harm: refused in one line that names the file.

Nothing of them is executed, and they make nobody allocate what they announce: each is opened and
verified under a limit of memory.
"""

from __future__ import annotations

import copy
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.errors import IobenchError, SampleError, StoreError
from iobench.files.crc32c import crc32c
from iobench.samples import Packed, SampleSpec, Variable
from iobench.stores.finished_store import CHECKSUMS_NAME, open_store
from iobench.stores.manifest import MANIFEST_NAME, checked_json
from iobench.stores.tfrecord import HEADER_NBYTES, frame_header, scan_frames
from iobench.stores.verification import verify_store
from iobench.testing import random_sample, write_store
from iobench_converters import numpy_records, tfrecord, zarr_groups

SPEC = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x")), Variable("t", (), "i4", ())))
LARGE = SampleSpec((Variable("x", (200, 201), "f4", ("y", "x")),))
FORMATS = {"numpy": numpy_records.FORMAT, "tfrecord": tfrecord.FORMAT, "zarr": zarr_groups.FORMAT}
LIMIT_NBYTES = 8 << 20
"""Of what Python and NumPy allocate while a store is opened, verified and read."""

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=FORMATS)
def fmt(request):
    return FORMATS[request.param]


@pytest.fixture
def store(tmp_path, fmt):
    return make(tmp_path, fmt)


@pytest.fixture
def numpy_store(tmp_path):
    return make(tmp_path, numpy_records.FORMAT)


def make(tmp_path, fmt, spec=SPEC):
    samples = [random_sample(spec, seed) for seed in range(4)]
    return write_store(tmp_path / "store", fmt, spec, samples, shard_n_samples=2)


def use(path):
    """Open a store, verify it and read all its samples."""
    store = open_store(path)
    verify_store(store)
    for index in range(min(len(store), 10)):
        store[index]


def refused(path, *, match="store", error=StoreError):
    """Check that a store is refused in one line that names a file, with little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error, match=match) as caught:
            use(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < LIMIT_NBYTES
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 2000
    return message


def edit(path, change):
    """Change the manifest of a store by hand, and its checksum with it."""
    values = json.loads((path / MANIFEST_NAME).read_text())
    values.pop("crc32c", None)
    change(values)
    (path / MANIFEST_NAME).write_bytes(checked_json(values))


def rewrite(path, name, data):
    """Replace a file of a store, and its size and checksum in the manifest with it."""
    (path / name).write_bytes(data)

    def change(values):
        for entry in values["shards"]:
            for file in entry["files"]:
                if file["name"] == name:
                    file |= {"nbytes": len(data), "crc32c": crc32c(data)}
        for file in values.get("metadata", ()):
            if file["name"] == name:
                file |= {"nbytes": len(data), "crc32c": crc32c(data)}

    edit(path, change)


def test_the_checks_pass_what_is_whole(store):
    use(store.path)


@pytest.mark.parametrize("n_samples", [1 << 30, 1 << 59])
def test_more_samples_than_there_are_bytes(store, n_samples):
    """As consistent as a hand can make it: sizes of files and numbers of samples fit."""

    def change(values):
        values["n_samples"] = n_samples
        values["samples"] = [[0, n_samples]]
        values["shards"] = values["shards"][:1]
        values["shards"][0]["n_samples"] = n_samples
        for file in values["shards"][0]["files"]:
            file["nbytes"] = (1 << 60) - 1

    edit(store.path, change)
    refused(store.path, match="store")


@pytest.mark.parametrize("name", ["no-such-format", "../numpy", "iobench.stores:open_store"])
def test_a_format_that_is_none(numpy_store, name):
    edit(numpy_store.path, lambda values: values.update(format=name))
    refused(numpy_store.path, match="format", error=IobenchError)


@pytest.mark.parametrize("name", [MANIFEST_NAME, CHECKSUMS_NAME])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(numpy_store, name):
    (numpy_store.path / name).unlink()
    os.mkfifo(numpy_store.path / name)
    with pytest.raises(IobenchError, match=name):
        verify_store(open_store(numpy_store.path))


def test_a_manifest_of_any_size_is_not_read(numpy_store):
    os.truncate(numpy_store.path / MANIFEST_NAME, 1 << 40)  # sparse: the disk holds nothing of it
    refused(numpy_store.path, match=f"{MANIFEST_NAME}: {1 << 40} bytes")


def test_checksums_of_any_size_are_not_read(numpy_store):
    os.truncate(numpy_store.path / CHECKSUMS_NAME, 1 << 40)
    refused(numpy_store.path, match=CHECKSUMS_NAME)


# numpy


def npy(descr, shape, data=b"", *, header=None, announced=None):
    """An ``.npy`` file, version 3."""
    text = header if header is not None else repr(
        {"descr": descr, "fortran_order": False, "shape": shape}
    ).encode()  # fmt: skip
    length = len(text) if announced is None else announced
    return b"\x93NUMPY\x03\x00" + length.to_bytes(4, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        npy("<f4", (2, 1 << 40, 201)),
        npy("", (), header=b"__import__('os').system('true')"),
        npy("", (), header=b"[" + b"0," * (1 << 20) + b"]"),
        npy("", (), header=b"", announced=(1 << 32) - 1),
        b"",
        b"\x93NUMPY\x01\x00" + b"\x00" * 60,
        b"PK\x03\x04" + b"\x00" * 100,
    ],
    ids=str,
)
def test_npy_files_that_are_none(tmp_path, data):
    store = make(tmp_path, numpy_records.FORMAT, LARGE)
    name = store.manifest.shards[1].files[0].name
    rewrite(store.path, name, data)
    refused(store.path, match=name)


# TFRecord


@pytest.mark.parametrize("nbytes", [1 << 40, (1 << 64) - 1, 1 << 63])
def test_an_absurd_length_in_a_record_header(tmp_path, nbytes):
    store = make(tmp_path, tfrecord.FORMAT)
    name = store.manifest.shards[0].files[0].name
    data = bytearray((store.path / name).read_bytes())
    data[:HEADER_NBYTES] = frame_header(nbytes)  # its own checksum is right
    (store.path / name).write_bytes(data)
    refused(store.path, match=name)
    with pytest.raises(StoreError, match=f"{name} at byte 0: a record of {nbytes} bytes"):
        list(scan_frames(store.path / name))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 1\n",
        "0 " + "9" * 4000 + "\n1 1\n",
        "1 " * 2_000_000,
        "0 4611686018427387904\n4611686018427387904 4611686018427387904\n",
        "0 -5\n-5 900\n",
        "nan nan\n",
    ],
    ids=lambda text: text[:20] or "empty",
)
def test_indexes_that_are_none(tmp_path, text):
    store = make(tmp_path, tfrecord.FORMAT)
    name = store.manifest.shards[0].files[1].name
    rewrite(store.path, name, text.encode())
    refused(store.path, match=name)


def test_an_index_whose_lengths_wrap_around(tmp_path):
    store = make(tmp_path, tfrecord.FORMAT)
    data, index = store.manifest.shards[0].files
    quarter = 1 << 62
    lengths = [quarter, quarter, quarter, quarter + data.nbytes]  # their sum is one of int64
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    lines = [f"{end - n} {n}" for end, n in zip(ends.tolist(), lengths, strict=True)]
    rewrite(store.path, index.name, "\n".join(lines).encode())

    def change(values):
        values["shards"][0]["n_samples"] = 4
        values["n_samples"] = 6
        values["samples"] = [[0, 6]]

    edit(store.path, change)
    refused(store.path, match=index.name)


# Zarr


ARRAY = "x/zarr.json"


def zarr_metadata(path, change):
    values = json.loads((path / ARRAY).read_text())
    change(values)
    rewrite(path, ARRAY, json.dumps(values).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 60, 3, 5]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 30, 3, 5]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [-1, 3, 5]}}},
    ],
    ids=str,
)
def test_zarr_metadata_that_are_others(tmp_path, change):
    store = make(tmp_path, zarr_groups.FORMAT)
    zarr_metadata(store.path, lambda values: values.update(change))
    refused(store.path, match="zarr.json|x/c")


@pytest.mark.parametrize("value", [0, 1 << 40, (1 << 64) - 2, (1 << 64) - 1])
@pytest.mark.parametrize("entry", [0, 1])
def test_a_shard_index_that_lies(tmp_path, value, entry):
    """Its checksum is right: only its numbers are not those of the chunks."""
    store = make(tmp_path, zarr_groups.FORMAT)
    file = Path(store.manifest.shards[0].files[0].name)
    data = bytearray((store.path / file).read_bytes())
    index = data[-4 - 2 * 16 : -4]
    at = 8 * entry + (0 if entry else 16)  # the length of the first chunk, the offset of the next
    index[at : at + 8] = value.to_bytes(8, "little")
    data[-4 - 2 * 16 :] = bytes(index) + crc32c(bytes(index)).to_bytes(4, "little")
    rewrite(store.path, file.as_posix(), bytes(data))
    refused(store.path, match=r"c\.0\.0\.0: its index")


def test_a_blosc_chunk_that_announces_too_much(tmp_path):
    pytest.importorskip("numcodecs", reason="codec=blosc-lz4 needs it")
    samples = [random_sample(LARGE, seed) for seed in range(2)]
    store = write_store(
        tmp_path / "store", zarr_groups.FORMAT, LARGE, samples, options={"codec": "blosc-lz4"}
    )
    extent = store.extents(0)[0]
    data = bytearray(extent.file.read_bytes())
    data[extent.offset + 4 : extent.offset + 8] = ((1 << 31) - 17).to_bytes(4, "little")
    extent.file.write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        verify_store(store)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError):
            store[0]
        assert tracemalloc.get_traced_memory()[1] < LIMIT_NBYTES
    finally:
        tracemalloc.stop()


def test_a_sample_that_numpy_has_no_dtype_for_is_refused_before_it_is_made(tmp_path):
    spec = SampleSpec((Variable("x", (1 << 16, 1 << 16), "f4", ("y", "x")),))
    with pytest.raises(SampleError, match="less than 2 GiB"):
        numpy_records.FORMAT.encoder(spec, {})
    assert not list(tmp_path.iterdir())


# Whatever is changed


ODD = [
    None, True, -1, 0, 1, 7, 1 << 31, (1 << 59) + 1, 1 << 70, 1.5, 1e308, "", "x", "../x", "|O",
    "<f4", "<M8[s]", "V9", "none", [], [[]], [0], ["x"], [[0, 1]], [[0, 1 << 58]], {}, {"x": 1},
    {"name": "x", "nbytes": 1 << 40, "crc32c": 0},
]  # fmt: skip
"""What a hand may put in the place of anything."""


def places(values, at=()):
    """Yield the way to each value of nested lists and objects."""
    yield at
    items = values.items() if isinstance(values, dict) else ()
    for key, value in enumerate(values) if isinstance(values, list) else items:
        yield from places(value, (*at, key))


def put(values, at, value):
    if not at:
        return value
    inner = values
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return values


def survives(path):
    """Use a store that may or may not be damaged: no error but ours, no memory to speak of."""
    message = ""
    tracemalloc.start()
    try:
        use(path)
    except IobenchError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "\n" not in message
    assert peak < LIMIT_NBYTES


@pytest.fixture(scope="module", params=FORMATS)
def target(request, tmp_path_factory):
    """A store to be damaged again and again, and what its files hold."""
    fmt = FORMATS[request.param]
    spec = SampleSpec((*SPEC, replace(SPEC["x"], name="p", dtype="<i2", packed=Packed())))
    samples = [random_sample(spec, seed) for seed in range(4)]
    path = tmp_path_factory.mktemp(request.param) / "store"
    write_store(path, fmt, spec, samples, shard_n_samples=2)
    return path, {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def restore(content):
    for file, data in content.items():
        file.write_bytes(data)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_a_manifest_may_be_something_else(target, data):
    path, content = target
    restore(content)
    values = json.loads((path / MANIFEST_NAME).read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from(sorted(places(values), key=repr)))
        values = put(values, at, copy.deepcopy(data.draw(st.sampled_from(ODD))))
    (path / MANIFEST_NAME).write_text(json.dumps(values))
    survives(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_of_any_file_may_be_others(target, data):
    """With sizes and checksums in the manifest put right, so that only the content is wrong."""
    path, content = target
    restore(content)
    file = data.draw(st.sampled_from(sorted(content)))
    changed = bytearray(content[file])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(changed)))
        stop = data.draw(st.integers(start, min(len(changed), start + 20)))
        changed[start:stop] = data.draw(
            st.binary(max_size=12) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f"])
        )
    file.write_bytes(changed)
    if file.name not in (MANIFEST_NAME, CHECKSUMS_NAME):
        rewrite(path, file.relative_to(path).as_posix(), bytes(changed))
    survives(path)
