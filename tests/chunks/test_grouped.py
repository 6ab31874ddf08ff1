"""Samples made in groups: bit for bit those made one by one, each chunk read and decoded once."""

import os
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.chunks import chunk_pieces
from iobench.datasets.contract import GroupedDataset
from iobench.errors import FileFormatError, OptionError
from iobench.samples import handed_on_nbytes

ROOMY = 1 << 30
DTYPES = ["<f4", ">f4", "<f8", "<i2", ">i2", "|u1"]
PACKINGS = [
    {},
    {"_FillValue": 3},
    {"scale_factor": 0.5},
    {"scale_factor": np.float32(0.1), "add_offset": 10.0, "_FillValue": 3},
    {"missing_value": 4, "_FillValue": 3},
]


def in_turn(jobs):
    for job in jobs:
        job()


def in_threads(jobs):
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result()


def grouped_samples(dataset, where, memory_nbytes=ROOMY, run=in_turn):
    """Make samples in the groups that the dataset chooses."""
    samples, start = [], 0
    for length in dataset.groups(where, memory_nbytes=memory_nbytes):
        group = where[start : start + length]
        samples += dataset.decode_group(dataset.read_group(group), group, run)
        start += length
    assert start == len(where)
    return samples


def assert_same_samples(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, values in other.items():
            assert one[name].dtype == values.dtype
            assert one[name].shape == values.shape
            assert one[name].tobytes() == values.tobytes(), name
            assert one[name].flags.c_contiguous


def check_groups(opened, where=None, memory_nbytes=ROOMY, run=in_turn):
    where = list(opened.index.where) if where is None else where
    dataset = opened.dataset
    expected = [dataset.decode(dataset.read(each), each) for each in where]
    assert_same_samples(grouped_samples(dataset, where, memory_nbytes, run), expected)


def write_variable(group, name, dims, values, *, dtype="<f4", packing=(), **storage):
    packing = dict(packing)
    stored = np.dtype(dtype)
    fill = packing.pop("_FillValue", None)
    variable = group.createVariable(
        name,
        stored,
        dims,
        fill_value=None if fill is None else stored.type(fill),
        endian="big" if stored.byteorder == ">" else "native",
        **storage,
    )
    variable.set_auto_maskandscale(False)
    if "missing_value" in packing:
        packing["missing_value"] = stored.type(packing["missing_value"])
    variable.setncatts(packing)
    if values is not None:
        variable[:] = values.astype(stored.newbyteorder("="))
    return variable


def numbers(shape, dtype, seed):
    """Return numbers with everything that could be lost: NaN, -0.0, subnormals, fill values."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 120, size=shape).astype(np.dtype(dtype).newbyteorder("="))
    if np.dtype(dtype).kind == "f" and values.size >= 8:
        values.reshape(-1)[:4] = [np.nan, -0.0, 1e-40, np.inf]
    return values


@st.composite
def layouts(draw):
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    contiguous = draw(st.booleans()) and draw(st.booleans())
    if contiguous:
        storage = {"contiguous": True}
    else:
        storage = {
            "chunksizes": tuple(draw(st.integers(1, length)) for length in shape),
            "zlib": draw(st.booleans()),
            "shuffle": draw(st.booleans()),
            "fletcher32": draw(st.booleans()),
        }
    return {
        "shape": shape,
        "axis": draw(st.integers(0, rank - 1)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "packing": draw(st.sampled_from(PACKINGS)),
        "written": draw(st.sampled_from(["all", "part", "none"])),
        "storage": storage,
    }


@pytest.mark.thorough
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=layouts(), order=st.randoms(use_true_random=False), seed=st.integers(0, 9))
def test_groups_equal_single_samples(layout, order, seed, open_user_files):
    shape, axis = layout["shape"], layout["axis"]
    dims = [f"d{n}" for n in range(len(shape))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.nc")
        with netCDF4.Dataset(path, "w") as ds:
            for dim, length in zip(dims, shape, strict=True):
                ds.createDimension(dim, length)
            values = numbers(shape, layout["dtype"], seed)
            variable = write_variable(
                ds,
                "v",
                dims,
                values if layout["written"] == "all" else None,
                dtype=layout["dtype"],
                packing=layout["packing"],
                **layout["storage"],
            )
            if layout["written"] == "part":
                part = tuple(slice(0, -(-n // 2)) for n in shape)
                variable[part] = values[part]
        opened = open_user_files(path, sample_dim=dims[axis])
        check_groups(opened)
        where = list(opened.index.where)
        order.shuffle(where)
        check_groups(opened, where[: len(where) // 2 + 1])
        whole = opened.dataset.decode_group(opened.dataset.read_group(where), where, in_turn)
        expected = [opened.dataset.decode(opened.dataset.read(each), each) for each in where]
        assert_same_samples(whole, expected)


def write_file(path, n=12, seed=0, first_chunk=4, deflate=True, **more):
    """Write variables of different chunking, one without the sample dimension, one contiguous."""
    with netCDF4.Dataset(path, "w") as ds:
        for dim, length in (("time", n), ("y", 6), ("x", 5)):
            ds.createDimension(dim, length)
        ds.createVariable("time", "f8", ("time",))[:] = np.arange(n) + 1000 * seed
        compressed = {"zlib": deflate, "shuffle": deflate}
        dims = ("time", "y", "x")
        values = numbers((n, 6, 5), "<f4", seed)
        write_variable(ds, "a", dims, values, chunksizes=(first_chunk, 3, 5), **compressed)
        write_variable(ds, "b", dims, values + 1, chunksizes=(3, 6, 2), **compressed)
        write_variable(ds, "c", dims, values + 2, contiguous=True)
        write_variable(ds, "mask", ("y", "x"), values[0], chunksizes=(2, 5), **compressed)
        write_variable(ds, "height", (), values[0, 0, 3])
    return path


NAMES = ("a", "b", "c", "mask", "height")


@pytest.mark.parametrize("run", [in_turn, in_threads])
@pytest.mark.parametrize("memory_nbytes", [4000, 20_000, ROOMY])
def test_several_files_and_variables(tmp_path, open_user_files, run, memory_nbytes):
    paths = [
        write_file(tmp_path / "1.nc", n=12, seed=1),
        write_file(tmp_path / "2.nc", n=7, seed=2, first_chunk=5),
    ]
    opened = open_user_files(*paths, sample_dim="time", variables=NAMES)
    assert isinstance(opened.dataset, GroupedDataset)
    check_groups(opened, memory_nbytes=memory_nbytes, run=run)


def test_a_group_stays_within_its_file(tmp_path, open_user_files):
    paths = [write_file(tmp_path / f"{n}.nc", n=5, seed=n) for n in (1, 2)]
    opened = open_user_files(*paths, sample_dim="time", variables=NAMES)
    assert opened.dataset.groups(opened.index.where, memory_nbytes=ROOMY) == [5, 5]
    with pytest.raises(ValueError, match="of one file"):
        opened.dataset.read_group(opened.index.where)


def test_a_pickled_dataset_makes_groups(tmp_path, open_user_files):
    opened = open_user_files(write_file(tmp_path / "1.nc"), sample_dim="time", variables=NAMES)
    where = opened.index.where
    expected = grouped_samples(opened.dataset, where)
    other = pickle.loads(pickle.dumps(opened.dataset))
    assert_same_samples(other.decode_group(other.read_group(where), where, in_turn), expected)


def test_group_nbytes_tells_how_often_chunks_are_decoded(tmp_path, open_user_files):
    opened = open_user_files(write_file(tmp_path / "1.nc"), sample_dim="time", variables=["a"])
    where = opened.index.where
    alone = opened.dataset.group_nbytes(where[:1])
    row = opened.dataset.group_nbytes(where[:4])
    assert alone == row
    assert row[1] == 4 * 6 * 5 * 4


def test_long_chunks_for_few_samples_are_read_as_they_are_decoded(
    tmp_path, open_user_files, monkeypatch
):
    monkeypatch.setattr("iobench.chunks.pieces.READ_NBYTES", 1)
    path = write_file(tmp_path / "1.nc", n=64, first_chunk=64, deflate=False)
    opened = open_user_files(path, sample_dim="time", variables=["a"])
    where = opened.index.where[:1]
    raw = opened.dataset.read_group(where)
    chunk = 64 * 3 * 5 * 4
    # One sample has 120 bytes; the second chunk is not read before the first is decoded.
    assert handed_on_nbytes(raw) == chunk
    check_groups(opened)
    (sample,) = opened.dataset.decode_group(raw, where, in_turn)
    expected = opened.dataset.decode(opened.dataset.read(where[0]), where[0])
    assert_same_samples([sample], [expected])


def test_raw_bytes_are_let_go_as_they_are_decoded(tmp_path, open_user_files):
    opened = open_user_files(write_file(tmp_path / "1.nc"), sample_dim="time", variables=["a"])
    raw = opened.dataset.read_group(opened.index.where)
    held = []

    def run(jobs):
        for job in jobs:
            job()
            held.append(handed_on_nbytes(raw))

    opened.dataset.decode_group(raw, opened.index.where, run)
    assert held[-1] == 0
    assert len(raw) == 0


def test_a_job_has_several_pieces_only_where_they_fit(tmp_path, open_user_files, monkeypatch):
    opened = open_user_files(write_file(tmp_path / "1.nc"), sample_dim="time", variables=["a"])
    where, put, n_pieces = opened.index.where, chunk_pieces.ChunkPieces.put, []
    (variable,) = opened.dataset._source.grouped._files[0]

    def counting(self, piece, *arguments):
        n_pieces.append(piece)
        put(self, piece, *arguments)

    def n_jobs(job_nbytes):
        monkeypatch.setattr("iobench.chunks.pieces.JOB_NBYTES", job_nbytes)
        ran = []
        raw = opened.dataset.read_group(where)
        opened.dataset.decode_group(raw, where, lambda jobs: ran.extend(job() for job in jobs))
        return len(ran)

    monkeypatch.setattr(chunk_pieces.ChunkPieces, "put", counting)
    assert n_jobs(2 * variable.piece_nbytes - 1) == len(n_pieces) > 1
    assert n_jobs(2 * variable.piece_nbytes) == -(-len(n_pieces) // 4)  # counted twice by now


def test_jobs_wait_for_room(tmp_path, open_user_files, monkeypatch):
    """With memory for one chunk on the way, threads decode one at a time."""
    monkeypatch.setattr("iobench.chunks.pieces.JOB_NBYTES", 1)
    opened = open_user_files(
        write_file(tmp_path / "1.nc", n=40, deflate=False), sample_dim="time", variables=["a"]
    )
    running, most = [0], [0]
    put = chunk_pieces.ChunkPieces.put

    def counting(self, *arguments):
        running[0] += 1
        most[0] = max(most[0], running[0])
        put(self, *arguments)
        running[0] -= 1

    monkeypatch.setattr(chunk_pieces.ChunkPieces, "put", counting)
    chunk, sample = 4 * 3 * 5 * 4, 6 * 5 * 4
    check_groups(opened, memory_nbytes=2 * sample + chunk, run=in_threads)
    assert most[0] == 1


def test_too_little_memory_is_refused_with_what_works(tmp_path, open_user_files):
    with netCDF4.Dataset(tmp_path / "f.nc", "w") as ds:
        for dim, length in (("time", 64), ("y", 64), ("x", 256)):
            ds.createDimension(dim, length)
        values = np.zeros((64, 64, 256))
        write_variable(
            ds, "v", ("time", "y", "x"), values, chunksizes=(64, 64, 256), zlib=True, shuffle=False
        )
    opened = open_user_files(tmp_path / "f.nc", sample_dim="time")
    where = opened.index.where
    # A chunk of 4 MiB and two samples of 64 KiB.
    with pytest.raises(OptionError, match="the smallest that works is --memory 5MiB") as caught:
        opened.dataset.groups(where, memory_nbytes=4 << 20)
    assert "'v'" in str(caught.value)
    lengths = opened.dataset.groups(where, memory_nbytes=5 << 20)
    assert sum(lengths) == 64
    check_groups(opened, memory_nbytes=5 << 20)


def test_a_damaged_chunk_is_named(tmp_path, open_user_files):
    path = write_file(tmp_path / "1.nc")
    with h5py.File(path) as file:
        info = file["a"].id.get_chunk_info(3)
    with path.open("r+b") as file:
        file.seek(info.byte_offset + info.size // 2)
        file.write(b"\xff" * 8)
    opened = open_user_files(path, sample_dim="time", variables=["a"])
    place = tuple(n // c for n, c in zip(info.chunk_offset, (4, 3, 5), strict=True))
    for run in (in_turn, in_threads):
        raw = opened.dataset.read_group(opened.index.where)
        with pytest.raises(FileFormatError) as caught:
            opened.dataset.decode_group(raw, opened.index.where, run)
        for said in (str(path), "'a'", str(place)):
            assert said in str(caught.value)


def test_a_file_cut_short_since_is_named(tmp_path, open_user_files):
    path = write_file(tmp_path / "1.nc")
    opened = open_user_files(path, sample_dim="time", variables=["c"])
    os.truncate(path, 200)
    with pytest.raises(FileFormatError, match=r"1\.nc: 200 bytes, its dataset was opened with"):
        opened.dataset.read_group(opened.index.where)


def test_classic_files_with_records_are_joined(tmp_path, open_user_files):
    with netCDF4.Dataset(tmp_path / "c.nc", "w", format="NETCDF3_64BIT_OFFSET") as ds:
        ds.createDimension("time", None)
        ds.createDimension("x", 50)
        for name in "ab":
            ds.createVariable(name, "f4", ("time", "x"))[:] = numbers((30, 50), "<f4", 1)
    opened = open_user_files(tmp_path / "c.nc", sample_dim="time")
    assert opened.dataset.groups(opened.index.where, memory_nbytes=ROOMY) == [30]
    check_groups(opened)


def test_what_only_the_library_reads_is_made_one_by_one(tmp_path, open_user_files):
    with netCDF4.Dataset(tmp_path / "s.nc", "w") as ds:
        ds.createDimension("time", 4)
        ds.createDimension("x", 50)
        values = numbers((4, 50), "<f4", 1)
        write_variable(ds, "v", ("time", "x"), values, compression="szip", chunksizes=(4, 50))
    opened = open_user_files(tmp_path / "s.nc", sample_dim="time")
    where = opened.index.where
    assert opened.dataset.fused
    assert opened.dataset.groups(where, memory_nbytes=1) == [1] * 4
    assert opened.dataset.group_nbytes(where) == (800, 800)
    expected = [opened.dataset.read(each) for each in where]
    assert_same_samples(grouped_samples(opened.dataset, where), expected)


@pytest.mark.parametrize("run", [in_turn, in_threads])
def test_grib_samples_share_nothing(real, open_user_files, run):
    pytest.importorskip("eccodes", reason="reads GRIB")
    opened = open_user_files(real("era5/era5-levels-members.grib"), sample_dim="number")
    where, dataset = opened.index.where, opened.dataset
    assert dataset.groups(where, memory_nbytes=1 << 20) == [1] * len(where)
    check_groups(opened, run=run)
    raw = [dataset.read(each) for each in where[:3]]
    n_read = sum(part.nbytes for parts in raw for part in parts)
    assert dataset.group_nbytes(where[:3]) == (n_read, 3 * opened.index.spec.nbytes)
    alone = [dataset.decode(each, place) for each, place in zip(raw, where[:3], strict=True)]
    together = dataset.decode_group(dataset.read_group(where[:3]), where[:3], run)
    assert_same_samples(together, alone)


def test_no_samples_make_no_groups(tmp_path, open_user_files):
    opened = open_user_files(write_file(tmp_path / "1.nc"), sample_dim="time", variables=["a"])
    assert opened.dataset.groups([], memory_nbytes=1) == []


def test_messages_of_a_sample_that_do_not_fit_are_refused(real, open_user_files):
    made = open_user_files(real("era5/era5-levels-members.grib"), sample_dim="time")
    where = made.index.where
    assert made.dataset.groups(where, memory_nbytes=3 << 20) == [1] * len(where)
    with pytest.raises(OptionError, match=r"'z' takes .*the smallest that works is --memory 3MiB"):
        made.dataset.groups(where, memory_nbytes=2 << 20)
