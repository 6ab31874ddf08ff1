"""Stores written by hand from the specifications: what is read does not depend on any zarr."""

import json
import struct
import sys

import numpy as np
import pytest

from iobench.datasets.zarr_arrays.chunks import Cut, cut_array, missing_keys, read_cut
from iobench.datasets.zarr_arrays.store import inspect_zarr
from iobench.errors import FileFormatError, MissingExtraError
from iobench.stores.checksums import crc32c

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


def whole(path):
    cut = Cut(inspect_zarr(path).variables["v"])
    return cut_array(cut, read_cut(cut))


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_version_2(tmp_path, order, separator):
    path = version_2(tmp_path / "s", order=order, separator=separator)
    np.testing.assert_array_equal(whole(path), VALUES)
    variable = inspect_zarr(path).variables["v"]
    assert (variable.dims, variable.packing.dtype) == (("y", "x"), "<i2")
    (path / "v" / f"1{separator}0").unlink()
    assert missing_keys([Cut(variable, 0, y) for y in (0, 3)]) == [None, f"1{separator}0"]
    expected = VALUES.copy()
    expected[3:, :4] = 0  # no fill value is said: zarr fills with zeros
    np.testing.assert_array_equal(whole(path), expected)


def test_version_2_without_a_separator_or_a_group(tmp_path):
    version_2(tmp_path / "s")
    metadata = tmp_path / "s" / "v" / ".zarray"
    write(metadata, RAW_2)
    np.testing.assert_array_equal(whole(tmp_path / "s" / "v"), VALUES)


def test_version_3(tmp_path):
    path = version_3(tmp_path / "s")
    write(path / "v" / "c" / "0" / "0", chunk(0, 0).tobytes())
    write(path / "v" / "c" / "1" / "1", chunk(1, 1).tobytes())
    expected = VALUES.copy()
    expected[:3, 4:] = expected[3:, :4] = 9
    np.testing.assert_array_equal(whole(path), expected)


@pytest.mark.parametrize("location", ["start", "end"])
def test_shards(tmp_path, location):
    """One shard: a chunk that was never written, one after the other in the wrong order."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [3, 4],
        "codecs": [little, "crc32c"],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": location,
    }
    grid = {"name": "regular", "configuration": {"chunk_shape": [6, 8]}}
    codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    path = version_3(tmp_path / "s", chunk_grid=grid, codecs=codecs)
    absent = (1 << 64) - 1
    content, places = b"", {(1, 0): (absent, absent)}
    start = 4 * 16 + 4 if location == "start" else 0
    for place in ((1, 1), (0, 1), (0, 0)):
        stored = chunk(*place).tobytes()
        stored += struct.pack("<I", crc32c(stored))
        places[place] = (start + len(content), len(stored))
        content += stored
    index = b"".join(struct.pack("<QQ", *places[y, x]) for y in range(2) for x in range(2))
    index += struct.pack("<I", crc32c(index))
    shard = path / "v" / "c" / "0" / "0"
    write(shard, index + content if location == "start" else content + index)
    expected = VALUES.copy()
    expected[3:, :4] = 9
    np.testing.assert_array_equal(whole(path), expected)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"order": "A"}, "order 'A'"),
        ({"chunks": [0, 4]}, r"chunks \[0, 4\]"),
        ({"dtype": "<q9"}, "has "),
        ({"separator": "-"}, "dimension_separator '-'"),
        ({"zarr_format": 4}, "zarr_format 4"),
    ],
)
def test_metadata_of_version_2_that_is_wrong(tmp_path, changes, said):
    path = version_2(tmp_path / "s")
    if "separator" in changes:
        changes = {"dimension_separator": changes["separator"]}
    write(path / "v" / ".zarray", RAW_2 | changes)
    with pytest.raises(FileFormatError, match=rf"v/\.zarray: is not metadata .*{said}"):
        inspect_zarr(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}}}, r"\[3\]"),
        ({"codecs": [{"name": "transpose", "configuration": {"order": [0, 2]}}]}, "transpose"),
        ({"fill_value": "nothing"}, "nothing"),
    ],
)
def test_metadata_of_version_3_that_is_wrong(tmp_path, changes, said):
    path = version_3(tmp_path / "s", **changes)
    with pytest.raises(FileFormatError, match=rf"v/zarr\.json: is not metadata .*{said}"):
        inspect_zarr(path)


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
def test_what_is_left_to_zarr_is_named(tmp_path, changes, why):
    variable = inspect_zarr(version_3(tmp_path / "s", **changes)).variables["v"]
    assert (variable.chunking, variable.only_zarr) == (None, why)
    with pytest.raises(FileFormatError, match=f"array 'v': {why}: read it through zarr"):
        read_cut(Cut(variable))


def test_fields_that_need_not_be_understood(tmp_path):
    optional = {"name": "x", "must_understand": False}
    assert inspect_zarr(version_3(tmp_path / "s", colour=optional)).variables["v"].chunking


def test_compressed_stores_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    np.testing.assert_array_equal(whole(version_2(tmp_path / "raw")), VALUES)
    path = version_2(tmp_path / "s", compressor={"id": "zlib"})
    with pytest.raises(MissingExtraError, match=r"pip install 'iobench\[zarr\]'"):
        inspect_zarr(path)


def test_packed_stores_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    path = version_2(tmp_path / "s", fill_value=3)
    with pytest.raises(MissingExtraError, match=r"array 'v' is packed.*'iobench\[zarr\]'"):
        inspect_zarr(path)
