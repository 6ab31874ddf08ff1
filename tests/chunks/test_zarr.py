"""Zarr stores written by hand from the specifications, and what metadata may not do.

Layouts, codecs and packings against xarray are in `test_stored_files`.
"""

import json
import sys
import warnings
from types import SimpleNamespace
from typing import ClassVar

import numcodecs
import numpy as np
import pytest

from iobench.chunks import chunk_codecs
from iobench.chunks.boxes import index_box, read_stored_box
from iobench.chunks.chunked_variable import read_chunks
from iobench.chunks.zarr_store import inspect_zarr
from iobench.datasets.contract import make_sample
from iobench.datasets.plain_loop import VariablePart, XarrayLoop
from iobench.datasets.user_files import UserFiles
from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingExtraError,
    MissingFileError,
)

VALUES = np.arange(24, dtype="<i2").reshape(4, 6)
RAW_2 = {
    "zarr_format": 2,
    "shape": [4, 6],
    "chunks": [3, 4],
    "dtype": "<i2",
    "compressor": None,
    "filters": None,
    "fill_value": None,
    "order": "C",
}
RAW_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 6],
    "data_type": "int16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 4]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 9,
    "dimension_names": ["y", "x"],
}


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def chunk(y, x, shape=(3, 4)):
    """A chunk as it is stored: in full, whatever lies beyond the edge."""
    padded = np.full((6, 8), -1, "<i2")
    padded[:4, :6] = VALUES
    return padded[y * shape[0] : (y + 1) * shape[0], x * shape[1] : (x + 1) * shape[1]]


def version_2(path, *, order="C", separator=".", **more):
    metadata = RAW_2 | {"order": order, "dimension_separator": separator} | more
    write(path / ".zgroup", {"zarr_format": 2})
    write(path / "v" / ".zarray", metadata)
    write(path / "v" / ".zattrs", {"_ARRAY_DIMENSIONS": ["y", "x"]})
    for y in range(2):
        for x in range(2):
            write(path / "v" / f"{y}{separator}{x}", chunk(y, x).tobytes(order))
    return path


def version_3(path, **more):
    write(path / "zarr.json", {"zarr_format": 3, "node_type": "group"})
    write(path / "v" / "zarr.json", RAW_3 | more)
    return path


def whole(path, name="v"):
    return read_stored_box(index_box(str(path), inspect_zarr(path).variables[name]))


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_version_2(tmp_path, order, separator):
    path = version_2(tmp_path / "s", order=order, separator=separator)
    np.testing.assert_array_equal(whole(path), VALUES)
    variable = inspect_zarr(path).variables["v"]
    assert (variable.dims, variable.packing.dtype) == (("y", "x"), "<i2")
    (path / "v" / f"1{separator}0").unlink()
    expected = VALUES.copy()
    expected[3:, :4] = 0  # no fill value is said: zarr fills with zeros
    np.testing.assert_array_equal(whole(path), expected)
    assert read_chunks([(str(path), variable, (1, 0))]) == [None]


def test_version_3(tmp_path):
    path = version_3(tmp_path / "s")
    write(path / "v" / "c" / "0" / "0", chunk(0, 0).tobytes())
    write(path / "v" / "c" / "1" / "1", chunk(1, 1).tobytes())
    expected = VALUES.copy()
    expected[:3, 4:] = expected[3:, :4] = 9
    np.testing.assert_array_equal(whole(path), expected)
    bits = version_3(tmp_path / "bits", data_type="float32", fill_value="0x7fc00001")
    assert set(whole(bits).view("u4").ravel().tolist()) == {0x7FC00001}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"chunk_key_encoding": {"name": "other"}}, "chunk key encoding other"),
        ({"codecs": [{"name": "other"}]}, "codec other"),
        ({"codecs": []}, "codec none"),
        ({"storage_transformers": [{"name": "other"}]}, "storage transformers"),
        ({"colour": "blue"}, "field colour"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, changes, why):
    variable = inspect_zarr(version_3(tmp_path / "s", **changes)).variables["v"]
    assert (variable.keys, variable.why_unread) == (None, why)
    with pytest.raises(FileFormatError, match=rf"variable 'v' has no known chunks \({why}\)"):
        index_box(str(tmp_path / "s"), variable)


def test_codecs_of_numcodecs_in_version_3(tmp_path):
    delta, zlib = numcodecs.Delta("<i2"), numcodecs.Zlib()
    named = [
        {"name": f"numcodecs.{each.codec_id}", "configuration": each.get_config()}
        for each in (delta, zlib)
    ]
    path = version_3(tmp_path / "s", codecs=[named[0], *RAW_3["codecs"], named[1]])
    write(path / "v" / "c" / "0" / "0", zlib.encode(delta.encode(chunk(0, 0).ravel())))
    np.testing.assert_array_equal(whole(path)[:3, :4], chunk(0, 0))


def test_compressed_stores_name_the_extra(tmp_path, monkeypatch):
    chunk_codecs.load_numcodecs.cache_clear()
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    np.testing.assert_array_equal(whole(version_2(tmp_path / "raw")), VALUES)
    path = version_2(tmp_path / "s", compressor={"id": "zlib"})
    with pytest.raises(MissingExtraError, match="extra zarr"):
        inspect_zarr(path)


def test_no_more_of_a_shard_is_read_than_its_chunks(tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3)
    layout = {"chunks": (1, 2), "shards": (2, 6), "compressors": None}
    group.create_array("v", shape=VALUES.shape, dtype="i2", **layout)[:] = VALUES
    variable = inspect_zarr(tmp_path).variables["v"]
    for row in range(4):
        [buffer] = read_chunks([(str(tmp_path), variable, (row, 1))])
        assert buffer.tobytes() == VALUES[row, 2:4].tobytes()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["|b1", ">i2", "<f2", "<c8"])
def test_dtypes(tmp_path, zarr_format, dtype):
    zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")
    stored = dtype.replace(">", "<") if zarr_format == 3 else dtype
    expected = (np.arange(12).reshape(3, 4) % 5).astype(stored)
    group = zarr.open_group(tmp_path, mode="w", zarr_format=zarr_format)
    layout = {"fill_value": expected[1, 1], "chunks": (1, 2)}
    array = group.create_array("v", shape=(3, 4), dtype=stored, **layout)
    array[:2] = expected[:2]
    found = whole(tmp_path)
    np.testing.assert_array_equal(found, array[...])
    assert found.dtype == stored


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_is_what_is_used_and_a_store_may_be_one_array(tmp_path, zarr_format):
    zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")
    path = (version_2 if zarr_format == 2 else version_3)(tmp_path / "s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of version 3 it is not in the specification yet
        zarr.consolidate_metadata(path, zarr_format=zarr_format)
    (path / "v" / {2: ".zarray", 3: "zarr.json"}[zarr_format]).unlink()
    np.testing.assert_array_equal(whole(path), VALUES if zarr_format == 2 else 9 + 0 * VALUES)
    zarr.save_array(tmp_path / "one", VALUES, zarr_format=zarr_format)
    store = inspect_zarr(tmp_path / "one")
    assert dict(store.dims) == {"dim_0": 4, "dim_1": 6}
    np.testing.assert_array_equal(whole(tmp_path / "one", "one"), VALUES)


def test_what_is_left_out_is_said(tmp_path):
    path = tmp_path / "s"
    arrays = {
        "v": {},
        "a": {},
        "other": {"shape": [5, 6]},
        "when": {"shape": [4], "chunks": [4], "dtype": "<M8[s]"},
        "text": {"dtype": "<U9"},
        "deeper/w": {},
    }
    consolidated(path, **arrays)
    for name in arrays:
        (path / name).mkdir(parents=True)
    write(path / ".zgroup", {"zarr_format": 2})
    store = inspect_zarr(path)
    assert list(store.variables) == ["a", "v"]
    assert dict(store.skipped) == {
        "deeper/": "a group, named as FILE#deeper",
        "text": "not numeric",
        "other": "its dim_0, which has no name, is 5 long",
        "when": "dates, not numbers",
    }


# What metadata may not do: they come from whoever made the store.


class Flagged(numcodecs.abc.Codec):
    """A codec that somebody's package brought: metadata alone must not get it made."""

    codec_id = "iobench-test-flagged"
    made: ClassVar = []

    def __init__(self, **configuration):
        self.made.append(configuration)

    def encode(self, buf):
        return buf

    def decode(self, buf, out=None):
        self.made.append("decoded")
        return buf


@pytest.fixture
def flagged(monkeypatch):
    monkeypatch.setattr(Flagged, "made", [])
    numcodecs.register_codec(Flagged)
    return {"id": Flagged.codec_id}


def opened(path, **options):
    """All samples of a user's store, as a profile makes them."""
    dataset = UserFiles([path], sample_dim="y", **options)
    locator = SimpleNamespace(cache_dir=path.parent, stand_in=False, progress=lambda *_: None)
    index = dataset.samples(dataset.files(locator), locator)
    for where in index.where:
        make_sample(dataset, where)
    return index


def consolidated(path, **arrays):
    metadata = {"v/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
    metadata |= {f"{name}/.zarray": RAW_2 | changes for name, changes in arrays.items()}
    write(path / ".zmetadata", {"zarr_consolidated_format": 1, "metadata": metadata})


@pytest.mark.parametrize("where", ["compressor", "filters", "consolidated", "behind", "version 3"])
def test_only_codecs_of_our_list_are_made(tmp_path, flagged, where):
    changes = {"filters": [flagged]} if where == "filters" else {"compressor": flagged}
    path = version_2(tmp_path / "s", **({} if where == "consolidated" else changes))
    if where == "consolidated":
        consolidated(path, v=changes)
    if where == "behind":  # what zarr would open is not what was read
        consolidated(path, v={"compressor": {"id": "no-such-codec"}})
    if where == "version 3":
        codecs = [*RAW_3["codecs"], f"numcodecs.{Flagged.codec_id}"]
        path = version_3(tmp_path / "three", codecs=codecs)
    with pytest.raises(FileFormatError, match=r"'v' has no known chunks \(codec .*to_zarr"):
        opened(path)
    assert Flagged.made == []


@pytest.mark.parametrize("where", ["file", "consolidated", "beside", "objects", "codec of 3"])
def test_a_store_that_xarray_opens_is_looked_at_whole(tmp_path, flagged, where):
    """It makes the codecs of all arrays, and loads coordinates, whatever is asked for."""
    path = version_2(tmp_path / "s")
    loop = XarrayLoop(lambda _: [VariablePart(str(path), "v", {"y": 0})], lambda arrays, _: arrays)
    bad = RAW_2 | {"compressor": flagged}
    if where == "objects":
        bad = RAW_2 | {"dtype": "|O", "filters": [{"id": "json2"}]}
    if where == "consolidated":
        metadata = {"zarr_consolidated_format": 1, "metadata": {"w/.zarray": bad}}
        write(path / ".zmetadata", metadata)
    elif where == "codec of 3":
        write(path / "w" / "zarr.json", RAW_3 | {"codecs": [f"numcodecs.{Flagged.codec_id}"]})
    else:
        write(path / ("v" if where == "beside" else "w") / ".zarray", bad)
    with pytest.raises(FileFormatError, match=r"is not handed to zarr: (codec|objects)"):
        loop.read((0, 0))
    assert Flagged.made == []


@pytest.mark.parametrize("kind", ["|O", [["a", "|O"]], "<U9", "object"])
def test_arrays_of_objects_are_no_variables(tmp_path, kind):
    path = version_2(tmp_path / "s")
    metadata = RAW_2 | {"dtype": kind, "filters": [{"id": "pickle"}]}
    write(path / "objects" / ".zarray", metadata)
    assert inspect_zarr(path).skipped == {"objects": "not numeric"}
    with pytest.raises(IobenchError, match="no variable objects"):
        opened(path, variables=["objects"])


@pytest.mark.parametrize(
    ("version", "changes", "said"),
    [
        (2, {"shape": [2**63, 6]}, "more bytes than any store holds"),
        (2, {"shape": [4] * 40, "chunks": [1] * 40}, "a list of up to 32"),
        (2, {"chunks": [0, 4]}, r"lengths \[0, 4\]"),
        (2, {"fill_value": 2**70}, "a fill_value 1180591620717411303424"),
        (2, {"filters": [{"id": "shuffle"}] * 40}, "40 codecs"),
        (3, {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/../"}}}, "/../"),
        (3, {"codecs": [{"name": "transpose", "configuration": {"order": [0, 2]}}]}, "transpose"),
    ],
)  # fmt: skip
def test_numbers_that_no_store_has(tmp_path, version, changes, said):
    path = (version_2 if version == 2 else version_3)(tmp_path / "s", **changes)
    with pytest.raises(FileFormatError, match=rf"is not metadata of Zarr version \d: it .*{said}"):
        inspect_zarr(path)


@pytest.mark.parametrize("length", [10**9, 2**59])
def test_samples_for_which_no_memory_is_taken(tmp_path, length):
    """A billion times are a few bytes of JSON, and took 8 GB."""
    path = version_2(tmp_path / "s", shape=[length, 1], chunks=[3, 1], dtype="|i1")
    with pytest.raises(FileFormatError, match=f"claims {length} samples along y"):
        opened(path)
    path = version_2(tmp_path / "wide", shape=[4, 2**31], chunks=[3, 3], dtype="|i1")
    with pytest.raises(FileFormatError, match=r"variable 'v' claims \d+ chunks"):
        opened(path)


def test_arrays_lie_in_their_store(tmp_path):
    path = version_2(tmp_path / "s")
    for name in (".", ".."):
        consolidated(path, v={}, **{name: {}})
        with pytest.raises(FileFormatError, match="which would lie elsewhere"):
            inspect_zarr(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_folder_that_metadata_name_and_nobody_has(tmp_path, zarr_format):
    path = tmp_path / "a.zarr"
    if zarr_format == 2:
        write(path / ".zmetadata", {"metadata": {".zgroup": {"zarr_format": 2},
                                                 "data/.zarray": RAW_2}})  # fmt: skip
        write(path / ".zgroup", {"zarr_format": 2})
    else:
        held = {"kind": "inline", "must_understand": False, "metadata": {"data": RAW_3}}
        write(path / "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {},
                                   "consolidated_metadata": held})  # fmt: skip
    with pytest.raises(MissingFileError, match=r"a\.zarr: the folder of array 'data' is missing"):
        inspect_zarr(path)
    (path / "data").mkdir()
    assert inspect_zarr(path).variables["data"].shape == (4, 6)
