"""Arrays of Zarr versions 2 and 3 against zarr-python: layouts, codecs, never written chunks."""

import json
import warnings

import numpy as np
import pytest

from iobench.chunks.boxes import index_box, read_stored_box
from iobench.chunks.chunked_variable import read_chunks
from iobench.chunks.zarr_store import inspect_zarr

numcodecs = pytest.importorskip("numcodecs", reason="reads compressed chunks")
zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")


def write(path, values, *, zarr_format=3, fill_value=7, part=None, **layout):
    """Write an array called ``v``; of ``part`` only, if given."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    names = [f"d{axis}" for axis in range(values.ndim)]
    if zarr_format == 2:
        layout["attributes"] = {"_ARRAY_DIMENSIONS": names}
    else:
        layout["dimension_names"] = names
    array = group.create_array(
        "v", shape=values.shape, dtype=values.dtype, fill_value=fill_value, **layout
    )
    array[part if part is not None else ...] = values[part if part is not None else ...]
    return array


def cut_of(store, *where):
    return read_stored_box(index_box(str(store.path), store.variables["v"], *where))


def assert_same(path, array):
    """The whole, and an index along each axis, is as zarr-python gives it."""
    store = inspect_zarr(path)
    expected = array[...]
    np.testing.assert_array_equal(cut_of(store), expected)
    for axis, length in enumerate(expected.shape):
        found = cut_of(store, (axis,), (length // 2,))
        np.testing.assert_array_equal(found, np.take(expected, length // 2, axis))
        assert found.dtype == store.variables["v"].packing.stored


VALUES = np.arange(5 * 4 * 6, dtype="<i4").reshape(5, 4, 6)


@pytest.mark.parametrize("location", ["start", "end"])
def test_shard_indexes(tmp_path, location):
    checked = [zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec()]
    for n_codecs in (1, 2):
        serializer = zarr.codecs.ShardingCodec(
            chunk_shape=(1, 2, 3), index_codecs=checked[:n_codecs], index_location=location
        )
        path, layout = tmp_path / str(n_codecs), {"chunks": (2, 2, 6), "compressors": None}
        assert_same(path, write(path, VALUES, serializer=serializer, **layout))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["|b1", ">i2", "<f2", "<c8"])
def test_dtypes(tmp_path, zarr_format, dtype):
    values = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    if zarr_format == 3 and dtype.startswith(">"):
        dtype = "<" + dtype[1:]
        values = values.astype(dtype)
    part = np.s_[:2]
    layout = {"fill_value": values[1, 1], "chunks": (1, 2), "part": part}
    array = write(tmp_path / "s", values, zarr_format=zarr_format, **layout)
    assert_same(tmp_path / "s", array)
    assert inspect_zarr(tmp_path / "s").variables["v"].packing.stored == dtype


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf, 0.1])
def test_never_written_chunks_hold_the_fill_value(tmp_path, zarr_format, fill):
    values = np.ones((4, 3), "f8")
    path = tmp_path / "s"
    array = write(
        path, values, zarr_format=zarr_format, chunks=(1, 3), fill_value=fill, part=np.s_[1:3]
    )
    assert_same(path, array)
    variable = inspect_zarr(path).variables["v"]
    assert read_chunks([(str(path), variable, (0, 0))]) == ([None], [])


def test_fill_values_as_bits(tmp_path):
    write(tmp_path / "s", np.ones(3, "f4"), chunks=(1,), fill_value=np.nan, part=np.s_[:0])
    file = tmp_path / "s" / "v" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fill_value": "0x7fc00001"}))
    assert cut_of(inspect_zarr(tmp_path / "s")).view("u4").tolist() == [0x7FC00001] * 3


def test_no_more_of_a_shard_is_read_than_its_chunks(tmp_path):
    path = tmp_path / "s"
    write(path, VALUES, chunks=(1, 4, 6), shards=(5, 4, 6), compressors=None)
    variable = inspect_zarr(path).variables["v"]
    [buffer], _ = read_chunks([(str(path), variable, (3, 0, 0))])
    assert buffer.nbytes == 4 * 6 * 4
    assert (path / "v" / "c" / "0" / "0" / "0").stat().st_size == 5 * (96 + 16) + 4


def test_scalars(tmp_path):
    for zarr_format in (2, 3):
        path = tmp_path / str(zarr_format)
        array = write(path, np.array(3.5), zarr_format=zarr_format, chunks=())
        assert_same(path, array)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_is_what_is_used(tmp_path, zarr_format):
    path = tmp_path / "s"
    write(path, VALUES, zarr_format=zarr_format, chunks=(2, 4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of version 3 it is not in the specification yet
        zarr.consolidate_metadata(path, zarr_format=zarr_format)
    (path / "v" / {2: ".zarray", 3: "zarr.json"}[zarr_format]).unlink()
    np.testing.assert_array_equal(cut_of(inspect_zarr(path)), VALUES)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_store_may_be_one_array(tmp_path, zarr_format):
    zarr.save_array(tmp_path / "s", VALUES, zarr_format=zarr_format)
    store = inspect_zarr(tmp_path / "s")
    assert list(store.variables) == ["s"]
    assert dict(store.dims) == {"dim_0": 5, "dim_1": 4, "dim_2": 6}
    found = read_stored_box(index_box(str(store.path), store.variables["s"], (0,), (2,)))
    np.testing.assert_array_equal(found, VALUES[2])


def test_what_is_left_out_is_said(tmp_path):
    group = zarr.open_group(tmp_path / "s", mode="w", zarr_format=2)
    for name, values in {
        "v": np.zeros((3, 2)),
        "other": np.zeros((4, 2)),
        "when": np.zeros(3, "M8[s]"),
        "text": np.array(["a", "b", "c"]),
    }.items():
        group.create_array(name, data=values)
    group.create_group("deeper").create_array("w", data=np.zeros(3))
    zarr.consolidate_metadata(tmp_path / "s")
    store = inspect_zarr(tmp_path / "s")
    assert list(store.variables) == ["other"]
    assert dict(store.skipped) == {
        "deeper/": "a group, named as FILE#deeper",
        "text": "not numeric",
        "v": "its dim_0, which has no name, is 3 long",
        "when": "its dim_0, which has no name, is 3 long",
    }
