"""Samples of Zarr stores made in groups: bit for bit those made one by one."""

import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.chunks import chunk_pieces
from iobench.errors import FileFormatError
from iobench.samples import handed_on_nbytes

numcodecs = pytest.importorskip("numcodecs", reason="reads compressed chunks")
zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")

ROOMY = 1 << 30
LAYOUTS = {
    "version 2, blosc": {
        "zarr_format": 2,
        "compressors": numcodecs.Blosc("lz4", shuffle=1),
    },
    "version 2, Fortran order": {"zarr_format": 2, "compressors": None, "order": "F"},
    "version 3, raw": {"zarr_format": 3, "compressors": None},
    "version 3, checksum": {
        "zarr_format": 3,
        "compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
    },
    "version 3, big": {
        "zarr_format": 3,
        "serializer": zarr.codecs.BytesCodec(endian="big"),
        "compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle"),
    },
}
PACKINGS = [{}, {"scale_factor": 0.5, "add_offset": 1.0}, {"missing_value": 3.0}]


def in_turn(jobs):
    for job in jobs:
        job()


def in_threads(jobs):
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def write(path, variables, *, zarr_format=3):
    """Write arrays by name: (values, dims, attributes, layout, the part that is written)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of consolidated metadata and of orders
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        for name, (values, dims, attributes, layout, part) in variables.items():
            layout = {key: value for key, value in layout.items() if key != "zarr_format"}
            named = {"dimension_names": dims}
            if zarr_format == 2:
                named, attributes = {}, {**attributes, "_ARRAY_DIMENSIONS": list(dims)}
            array = group.create_array(
                name,
                shape=values.shape,
                dtype=values.dtype,
                fill_value=3,
                attributes=attributes,
                **named,
                **layout,
            )
            array[part] = values[part]
    return path


def check_groups(opened, where, *, memory_nbytes=ROOMY, run=in_turn):
    dataset, start = opened.dataset, 0
    expected = [dataset.decode(dataset.read(each), each) for each in where]
    for length in dataset.groups(where, memory_nbytes=memory_nbytes):
        group = where[start : start + length]
        for sample in dataset.decode_group(dataset.read_group(group), group, run):
            assert list(sample) == list(expected[start])
            for name, values in expected[start].items():
                assert sample[name].dtype == values.dtype
                assert sample[name].shape == values.shape
                assert sample[name].tobytes() == values.tobytes(), name
            start += 1
    assert start == len(where)


@st.composite
def arrays(draw):
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 8)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, length)) for length in shape)
    layout = dict(LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))], chunks=chunks)
    if layout["zarr_format"] == 3 and draw(st.booleans()):
        layout["shards"] = tuple(draw(st.integers(1, 3)) * length for length in chunks)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = rng.integers(0, 9, shape).astype(draw(st.sampled_from(["f4", "f8", "i2"])))
    if values.dtype.kind == "f":
        values.reshape(-1)[: min(3, values.size)] = np.array([np.nan, -0.0, 1e-40])[: values.size]
    part = tuple(slice(0, draw(st.integers(0, length))) for length in shape)
    return values, draw(st.integers(0, rank - 1)), draw(st.sampled_from(PACKINGS)), layout, part


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=arrays(), order=st.randoms(use_true_random=False))
def test_groups_equal_single_samples(array, order, open_user_files):
    values, axis, attributes, layout, part = array
    dims = [f"d{n}" for n in range(values.ndim)]
    with tempfile.TemporaryDirectory() as folder:
        path = write(
            Path(folder, "s.zarr"),
            {"v": (values, dims, attributes, layout, part)},
            zarr_format=layout["zarr_format"],
        )
        opened = open_user_files(path, sample_dim=dims[axis])
        where = list(opened.index.where)
        check_groups(opened, where)
        order.shuffle(where)
        check_groups(opened, where)


def several(folder, n, seed):
    """Write variables of different chunking, one without the sample dimension."""
    values = np.random.default_rng(seed).normal(size=(n, 6, 5)).astype("f4")
    blosc = {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")}
    dims, every = ("time", "y", "x"), (slice(None),)
    return write(
        folder / f"{seed}.zarr",
        {
            "time": (np.arange(n) + 100.0 * seed, ("time",), {}, {"chunks": (n,)}, every),
            "a": (values, dims, {}, {**blosc, "chunks": (4, 3, 5)}, every),
            "b": (values + 1, dims, {}, {**blosc, "chunks": (3, 2, 5), "shards": (6, 6, 5)}, every),
            "mask": (values[0], dims[1:], {}, {**blosc, "chunks": (6, 5)}, every),
        },
    )


@pytest.mark.parametrize("memory_nbytes", [3000, 20_000, ROOMY])
def test_several_stores_and_variables(tmp_path, open_user_files, memory_nbytes):
    paths = [several(tmp_path, 12, 1), several(tmp_path, 7, 2)]
    opened = open_user_files(*paths, sample_dim="time", variables=("a", "b", "mask"))
    check_groups(opened, opened.index.where, memory_nbytes=memory_nbytes, run=in_threads)


def test_each_chunk_is_read_and_decoded_once(tmp_path, open_user_files, monkeypatch):
    opened = open_user_files(several(tmp_path, 12, 1), sample_dim="time", variables=("a", "b"))
    read, decoded = [], []
    read_chunks, decode_chunk = chunk_pieces.read_chunks, chunk_pieces.decode_chunk

    def reading(wanted, **options):
        read.extend((variable.name, place) for _, variable, place in wanted)
        return read_chunks(wanted, **options)

    def decoding(file, variable, place, *others):
        decoded.append((variable.name, place))
        return decode_chunk(file, variable, place, *others)

    monkeypatch.setattr(chunk_pieces, "read_chunks", reading)
    monkeypatch.setattr(chunk_pieces, "decode_chunk", decoding)
    where = opened.index.where
    assert opened.dataset.groups(where, memory_nbytes=ROOMY) == [12]
    raw = opened.dataset.read_group(where)
    n_read = handed_on_nbytes(raw)
    opened.dataset.decode_group(raw, where, in_turn)
    grid = {("a", (t, y, 0)) for t in range(3) for y in range(2)}
    grid |= {("b", (t, y, 0)) for t in range(4) for y in range(3)}
    assert set(read) == grid
    assert len(read) == len(decoded) == len(grid)
    assert opened.dataset.group_nbytes(where) == (n_read, 2 * 12 * 6 * 5 * 4)


def test_never_written_chunks_have_no_bytes(tmp_path, open_user_files):
    values = np.ones((6, 4), "f4")
    layout = {"chunks": (3, 4), "compressors": None}
    half = (slice(0, 3),)
    path = write(tmp_path / "s.zarr", {"v": (values, ("time", "x"), {}, layout, half)})
    opened = open_user_files(path, sample_dim="time")
    assert opened.dataset.group_nbytes(opened.index.where) == (48, 96)
    check_groups(opened, opened.index.where)


def test_a_damaged_chunk_is_named(tmp_path, open_user_files):
    path = several(tmp_path, 12, 1)
    chunk = path / "a" / "c" / "1" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    opened = open_user_files(path, sample_dim="time", variables=("a", "b"))
    raw = opened.dataset.read_group(opened.index.where)
    with pytest.raises(FileFormatError, match=r"array 'a': chunk c/1/0/0 is damaged"):
        opened.dataset.decode_group(raw, opened.index.where, in_threads)


def test_transposed_chunks(tmp_path, open_user_files):
    values = np.arange(12, dtype="f4").reshape(6, 2)
    layout = {
        "chunks": (3, 2),
        "compressors": None,
        "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
    }
    path = write(tmp_path / "s.zarr", {"v": (values, ("time", "x"), {}, layout, (slice(None),))})
    opened = open_user_files(path, sample_dim="time")
    assert opened.dataset.groups(opened.index.where, memory_nbytes=ROOMY) == [6]
    check_groups(opened, opened.index.where)
