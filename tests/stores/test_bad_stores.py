"""Stores edited by hand or made to harm: refused in one line that names the file.

Nothing of them is executed, and they make nobody allocate what they announce: each is opened and
verified under a limit of memory.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.errors import IobenchError, StoreError
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


def make(path, fmt, spec=SPEC, options=None):
    samples = [random_sample(spec, seed) for seed in range(4)]
    return write_store(path, FORMATS[fmt], spec, samples, shard_n_samples=2, options=options)


def use(path):
    """Open a store, verify it and read all its samples."""
    store = open_store(path)
    verify_store(store)
    for index in range(min(len(store), 10)):
        store[index]


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
        files = [file for entry in values["shards"] for file in entry["files"]]
        for file in [*files, *values.get("metadata", ())]:
            if file["name"] == name:
                file |= {"nbytes": len(data), "crc32c": crc32c(data)}

    edit(path, change)


# ---- each a function of the store that damages it, and returns what the refusal names


def of_samples(n_samples):
    """As consistent as a hand can make it: sizes of files and numbers of samples fit."""

    def damage(store):
        def change(values):
            values |= {"n_samples": n_samples, "samples": [[0, n_samples]]}
            values["shards"] = values["shards"][:1]
            values["shards"][0]["n_samples"] = n_samples
            for file in values["shards"][0]["files"]:
                file["nbytes"] = (1 << 60) - 1

        edit(store.path, change)
        return "store"

    return damage


def of_format(name):
    def damage(store):
        edit(store.path, lambda values: values.update(format=name))
        return "format"

    return damage


def pipe(name):
    def damage(store):
        (store.path / name).unlink()
        os.mkfifo(store.path / name)
        return name

    return damage


def endless(name):
    def damage(store):
        os.truncate(store.path / name, 1 << 40)  # sparse: the disk holds nothing of it
        return name

    return damage


def file_of(shard, number, data):
    """Other bytes in place of a file of a shard."""

    def damage(store):
        name = store.manifest.shards[shard].files[number].name
        rewrite(store.path, name, data)
        return name

    return damage


def npy(descr, shape, data=b"", *, header=None, announced=None):
    """An ``.npy`` file, version 3."""
    text = header if header is not None else repr(
        {"descr": descr, "fortran_order": False, "shape": shape}
    ).encode()  # fmt: skip
    length = len(text) if announced is None else announced
    return b"\x93NUMPY\x03\x00" + length.to_bytes(4, "little") + text + data


def record_length(nbytes):
    def damage(store):
        name = store.manifest.shards[0].files[0].name
        data = bytearray((store.path / name).read_bytes())
        data[:HEADER_NBYTES] = frame_header(nbytes)  # its own checksum is right
        (store.path / name).write_bytes(data)
        with pytest.raises(StoreError, match=f"{name} at byte 0: a record of {nbytes} bytes"):
            list(scan_frames(store.path / name))
        return name

    return damage


def wrapped_lengths(store):
    data, index = store.manifest.shards[0].files
    quarter = 1 << 62
    lengths = [quarter, quarter, quarter, quarter + data.nbytes]  # their sum is one of int64
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    lines = [f"{end - n} {n}" for end, n in zip(ends.tolist(), lengths, strict=True)]
    rewrite(store.path, index.name, "\n".join(lines).encode())

    def change(values):
        values["shards"][0]["n_samples"] = 4
        values |= {"n_samples": 6, "samples": [[0, 6]]}

    edit(store.path, change)
    return index.name


def shard_shape(n_samples):
    def damage(store):
        values = json.loads((store.path / "x/zarr.json").read_text())
        values["chunk_grid"]["configuration"]["chunk_shape"] = [n_samples, 3, 5]
        rewrite(store.path, "x/zarr.json", json.dumps(values).encode())
        return "zarr.json|x/c"

    return damage


def shard_index(entry, value):
    """Its checksum is right: only its numbers are not those of the chunks."""

    def damage(store):
        file = store.manifest.shards[0].files[0].name
        data = bytearray((store.path / file).read_bytes())
        index = data[-4 - 2 * 16 : -4]
        at = 8 * entry + (0 if entry else 16)  # the first chunk's length, the next one's offset
        index[at : at + 8] = value.to_bytes(8, "little")
        data[-4 - 2 * 16 :] = bytes(index) + crc32c(bytes(index)).to_bytes(4, "little")
        rewrite(store.path, file, bytes(data))
        return r"c\.0\.0\.0: its index"

    return damage


DAMAGES = {
    "numpy": [
        *map(of_format, ["no-such-format", "../numpy", "iobench.stores:open_store"]),
        *map(pipe, [MANIFEST_NAME, CHECKSUMS_NAME]),
        *map(endless, [MANIFEST_NAME, CHECKSUMS_NAME]),
    ],
    "large numpy": [
        file_of(1, 0, data)
        for data in [
            npy("<f4", (2, 1 << 40, 201)),
            npy("", (), header=b"__import__('os').system('true')"),
            npy("", (), header=b"[" + b"0," * (1 << 20) + b"]"),
            npy("", (), header=b"", announced=(1 << 32) - 1),
            *(b"", b"\x93NUMPY\x01\x00" + b"\x00" * 60, b"PK\x03\x04" + b"\x00" * 100),
        ]
    ],
    "tfrecord": [
        *map(record_length, [1 << 40, (1 << 64) - 1, 1 << 63]),
        wrapped_lengths,
        *(
            file_of(0, 1, text.encode())
            for text in [
                *("", "0 1\n", "0 " + "9" * 4000 + "\n1 1\n", "1 " * 2_000_000),
                *("0 4611686018427387904\n4611686018427387904 4611686018427387904\n",),
                *("0 -5\n-5 900\n", "nan nan\n"),
            ]
        ),
    ],
    "zarr": [
        *map(shard_shape, [1 << 60, 1 << 30, -1]),
        *(
            shard_index(entry, value)
            for entry in (0, 1)
            for value in [0, 1 << 40, (1 << 64) - 2, (1 << 64) - 1]
        ),
    ],
}  # fmt: skip
for each in FORMATS:
    DAMAGES[each] += map(of_samples, [1 << 30, 1 << 59])


@pytest.mark.parametrize(
    ("kind", "damage"),
    [pytest.param(kind, each, id=f"{kind}-{n}") for kind in DAMAGES
     for n, each in enumerate(DAMAGES[kind])],
)  # fmt: skip
def test_a_store_made_to_harm_is_refused_with_little_memory(tmp_path, kind, damage):
    is_large, fmt = kind.startswith("large"), kind.split()[-1]
    store = make(tmp_path / "store", fmt, LARGE if is_large else SPEC)
    use(store.path)
    match = damage(store)
    message = survives(store.path)
    assert re.search(match, message), message
    assert len(message) < 2000


def test_a_blosc_chunk_that_announces_too_much(tmp_path):
    store = make(tmp_path / "store", "zarr", LARGE, {"codec": "blosc-lz4"})
    extent = store.extents(0)[0]
    data = bytearray(extent.file.read_bytes())
    data[extent.offset + 4 : extent.offset + 8] = ((1 << 31) - 17).to_bytes(4, "little")
    extent.file.write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        verify_store(store)
    assert "a chunk is damaged" in survives(store.path, lambda path: store[0])


def survives(path, do=use):
    """Use a store that may or may not be damaged: no error but ours, no memory to speak of."""
    message = ""
    tracemalloc.start()
    try:
        do(path)
    except IobenchError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "\n" not in message
    assert peak < LIMIT_NBYTES
    return message


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


@pytest.fixture(scope="module", params=FORMATS)
def target(request, tmp_path_factory):
    """A store to be damaged again and again, and what its files hold."""
    spec = SampleSpec((*SPEC, replace(SPEC["x"], name="p", dtype="<i2", packed=Packed())))
    samples = [random_sample(spec, seed) for seed in range(4)]
    path = tmp_path_factory.mktemp(request.param) / "store"
    write_store(path, FORMATS[request.param], spec, samples, shard_n_samples=2)
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
