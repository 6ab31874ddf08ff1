"""Groups of samples that are made one variable at a time, where each has a file of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from converting import content, convert

from iobench.datasets import sample_groups
from iobench.datasets.contract import no_progress
from iobench.datasets.grouped_samples import GroupedSamples
from iobench.datasets.user_files import user_files
from iobench.errors import IobenchError
from iobench.stores.shard_writer import ShardWriter
from iobench_converters import numpy_records, tfrecord

pytestmark = pytest.mark.timeout(110)

LARGE = {"t": ("f4", (5, 150, 150)), "u": ("f4", (128, 160)), "cloud": ("i2", (160, 240))}
SMALL = {"t": ("f4", (5, 7)), "u": ("f8", (9,)), "wave": ("c8", (3,))}


def write_netcdf(path, variables, *, n_times=20, sharing=6):
    """Write variables in chunks that several times share; some values are missing."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", data=np.arange(float(n_times)))
        time.make_scale("time")
        for name, (dtype, shape) in variables.items():
            values = rng.integers(0, 50, (n_times, *shape)).astype(dtype)
            if values.dtype.kind == "f":
                values[rng.random(values.shape) < 0.01] = np.nan
            chunks = (sharing, *(-(-length // 2) for length in shape))
            made = file.create_dataset(name, data=values, chunks=chunks, compression="gzip")
            made.dims[0].attach_scale(time)
            for place, length in enumerate(shape, 1):
                scale = file.create_dataset(f"{name}_{place}", data=np.arange(float(length)))
                scale.make_scale(f"{name}_{place}")
                made.dims[place].attach_scale(scale)
    return path


def opened(path, sample_dim="time"):
    dataset = user_files([path], sample_dim=sample_dim)
    places = SimpleNamespace(stand_in=False, progress=no_progress, cache_dir=path.parent / "cache")
    files = dataset.files(places)
    return dataset, dataset.samples(files, places)


@pytest.fixture
def appended(monkeypatch):
    """The names of variables that writers were given, in order."""
    names = []
    append = ShardWriter.append_variable

    def noting(writer, name, rows):
        names.append(name)
        append(writer, name, rows)

    monkeypatch.setattr(ShardWriter, "append_variable", noting)
    return names


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("fmt", "options", "variables"),
    [
        ("numpy", {}, LARGE),
        ("zarr", {}, LARGE),
        ("zarr", {}, SMALL),
        ("zarr", {"inner-chunk": "t_2=40"}, LARGE),
        ("zarr", {"codec": "blosc-lz4", "inner-chunk": "t_2=40"}, LARGE),
    ],
)
def test_the_bytes_are_those_of_whole_samples(
    tmp_path, monkeypatch, appended, fmt, options, variables
):
    if fmt == "zarr":
        pytest.importorskip("numcodecs", reason="Zarr stores need it")
        from iobench_converters import zarr_groups

        fmt = zarr_groups.FORMAT
    else:
        fmt = numpy_records.FORMAT
    monkeypatch.setattr(sample_groups, "APART_NBYTES", 0)
    dataset, index = opened(write_netcdf(tmp_path / "own.nc", variables))
    more = {
        "options": options,
        "shard_nbytes": 9 * index.spec.nbytes,  # two shards share a group, which is put aside
        "memory_nbytes": 1 << 30,
        "workers": 2,
        "samples": [*range(1, 20), 0],
    }
    convert(dataset, index, fmt, tmp_path / "apart", **more).close()
    assert appended[: len(variables)] == list(index.spec.names)
    n_appended = len(appended)
    monkeypatch.setattr(GroupedSamples, "variables_apart", lambda dataset: ())
    convert(dataset, index, fmt, tmp_path / "whole", **more).close()
    assert len(appended) == n_appended
    assert content(tmp_path / "apart") == content(tmp_path / "whole")


def write_columns(path):
    """Write variables whose samples are along a later dimension, in chunks that many share."""
    rng = np.random.default_rng(1)
    lengths = {"level": 37, "column": 3000, "part": 2}
    with h5py.File(path, "w") as file:
        for dim, length in lengths.items():
            file.create_dataset(dim, data=np.arange(float(length))).make_scale(dim)
        for name, dims, chunks in (
            ("t", ("level", "column"), (1, 700)),
            ("q", ("level", "column"), (5, 512)),
            ("wind", ("part", "level", "column"), (1, 1, 3000)),
            ("pair", ("level", "column", "part"), (37, 64, 2)),
            ("few", ("column", "level"), (500, 1)),
        ):
            values = rng.normal(size=[lengths[dim] for dim in dims]).astype("f4")
            values[rng.random(values.shape) < 0.01] = np.nan
            made = file.create_dataset(
                name, data=values, chunks=chunks, compression="gzip", shuffle=True
            )
            for place, dim in enumerate(dims):
                made.dims[place].attach_scale(file[dim])
    return path


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("samples", ["all", "some"])
def test_samples_that_lie_apart_in_their_chunks_have_the_same_bytes(
    tmp_path, monkeypatch, appended, samples
):
    pytest.importorskip("numcodecs", reason="Zarr stores need it")
    from iobench_converters import zarr_groups

    monkeypatch.setattr(sample_groups, "APART_NBYTES", 0)
    path = write_columns(tmp_path / "columns.nc")
    dataset, index = opened(path, sample_dim="column")
    numbers = range(3000) if samples == "all" else [*range(2500, 2990, 3), *range(40), 700, 5]
    more = {"memory_nbytes": 1 << 30, "workers": 2, "samples": numbers}
    store = convert(dataset, index, zarr_groups.FORMAT, tmp_path / "apart", **more)
    with h5py.File(path) as file:
        for place, number in ((0, numbers[0]), (len(numbers) - 1, numbers[-1])):
            for name, values in store[place].items():
                axis = [dim[0].name for dim in file[name].dims].index("/column")
                expected = np.take(file[name][...], number, axis)
                np.testing.assert_array_equal(values, expected)
    store.close()
    assert appended
    n_appended = len(appended)
    monkeypatch.setattr(GroupedSamples, "variables_apart", lambda dataset: ())
    convert(dataset, index, zarr_groups.FORMAT, tmp_path / "whole", **more).close()
    assert len(appended) == n_appended
    assert content(tmp_path / "apart") == content(tmp_path / "whole")


def test_records_are_written_sample_by_sample(tmp_path, monkeypatch, appended):
    monkeypatch.setattr(sample_groups, "APART_NBYTES", 0)
    dataset, index = opened(write_netcdf(tmp_path / "own.nc", SMALL))
    for name, fmt in (("records", numpy_records.FORMAT), ("tfrecord", tfrecord.FORMAT)):
        store = convert(dataset, index, fmt, tmp_path / name)
        assert len(store) == 20
        store.close()
    assert appended == []


def test_a_damaged_chunk_of_a_later_variable_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_groups, "APART_NBYTES", 0)
    path = write_netcdf(tmp_path / "own.nc", LARGE)
    with h5py.File(path) as file:
        chunk = file["u"].id.get_chunk_info(5)
    with path.open("r+b") as damaged:
        damaged.seek(chunk.byte_offset)
        damaged.write(bytes(chunk.size))
    dataset, index = opened(path)
    with pytest.raises(IobenchError, match="'u'"):
        convert(dataset, index, numpy_records.FORMAT, tmp_path / "store")
    assert not (tmp_path / "store" / "iobench.json").exists()


@pytest.mark.long
def test_two_variables_are_resident_not_all(tmp_path):
    variables = {f"v{number}": ("f4", (4, 180, 360)) for number in range(6)}  # 25 MB each
    source = write_netcdf(tmp_path / "own.nc", variables, n_times=24, sharing=24)
    command = [sys.executable, "-m", "iobench", "convert", str(source), str(tmp_path / "store")]
    command += ["--to", "numpy", "--sample-dim", "time", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=100, cwd=tmp_path
    )
    told = json.loads(done.stdout)
    if told["peak_rss_nbytes"] is None:
        pytest.skip("the system does not tell what is resident")
    growth = told["peak_rss_nbytes"] - told["idle_rss_nbytes"]
    # Two of 25 MB, chunks on the way, and libraries that are imported meanwhile.
    assert growth < 100_000_000, f"{Path(source).name}: {growth} bytes of 150 MB in one group"
