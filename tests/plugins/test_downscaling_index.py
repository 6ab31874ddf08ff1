"""The index of A5's monthly files: learnt once, kept, learnt again where a file has changed."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from iobench.datasets.contract import make_sample, no_progress
from iobench.datasets.locate import FileLocator
from iobench.datasets.netcdf.file import inspect_netcdf
from iobench.errors import FileFormatError, IobenchError
from iobench_maelstrom.downscaling import month_index
from iobench_maelstrom.downscaling.dataset import downscaling_tier2
from iobench_maelstrom.downscaling.month_index import months_of
from iobench_maelstrom.downscaling.schema import TIERS
from iobench_maelstrom.downscaling.stand_in import MonthsPlan, planned_files

TIER = TIERS[2]
HOURS = 3


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A few hours of a month of the stand-in; read-only."""
    path = tmp_path_factory.mktemp("index") / "downscaling_tier2_2018-01.nc"
    planned_files(MonthsPlan(0, 2, ("2018-01",), HOURS))[0].write(path, lambda nbytes: None)
    return path


@pytest.fixture
def month(small, tmp_path):
    (tmp_path / "data").mkdir()
    return shutil.copy(small, tmp_path / "data" / small.name)


@pytest.fixture
def inspected(monkeypatch):
    """Paths that the NetCDF library was asked about."""
    seen = []

    def noting(path):
        seen.append(path)
        return inspect_netcdf(path)

    monkeypatch.setattr(month_index, "inspect_netcdf", noting)
    return seen


def learn(paths, tmp_path, progress=no_progress):
    return months_of(paths, TIER, cache_dir=tmp_path / "cache", progress=progress)


def assert_same(one, other):
    (file, times), (again, times_again) = one, other
    np.testing.assert_array_equal(times, times_again)
    assert times.dtype == times_again.dtype
    assert (file.path, file.dims, list(file.variables)) == (
        again.path,
        again.dims,
        list(again.variables),
    )
    for name, variable in file.variables.items():
        kept = again.variables[name]
        same = ("name", "dims", "shape", "attributes")
        assert [getattr(variable, each) for each in same] == [getattr(kept, each) for each in same]
        assert repr(variable.packing) == repr(kept.packing)
        assert np.array_equal(variable.fill, kept.fill, equal_nan=True)
        values = month_index.all_values(file, name)
        np.testing.assert_array_equal(values, month_index.all_values(again, name))


def test_a_file_is_inspected_once(month, tmp_path, inspected):
    told = []
    first = learn([month], tmp_path)
    second = learn([month], tmp_path, progress=lambda *at: told.append(at))
    assert inspected == [month]
    assert told[-1] == (1, 1)
    assert_same(first[0], second[0])
    assert len(first[0][1]) == HOURS


@pytest.mark.parametrize(
    "encoding",
    [
        {"zlib": True, "shuffle": True, "chunksizes": (2, 96, 120)},
        {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767},
        {"_FillValue": np.nan, "dtype": "f4"},
    ],
    ids=["chunked", "packed", "nan"],
)
def test_storage_and_packing_are_kept_exactly(small, tmp_path, inspected, encoding):
    xarray = pytest.importorskip("xarray", reason="files of other storage are written with xarray")
    path = tmp_path / "other.nc"
    with xarray.open_dataset(small, decode_times=False) as data:
        data.load().to_netcdf(path, encoding={"t2m_in": encoding})
    first, second = learn([path], tmp_path), learn([path], tmp_path)
    assert inspected == [path]
    assert_same(first[0], second[0])


def test_a_changed_file_is_inspected_again(month, tmp_path, inspected):
    learn([month], tmp_path)
    os.utime(month, ns=(1, 1))
    learn([month], tmp_path)
    assert inspected == [month, month]


def test_a_damaged_index_is_made_again(month, tmp_path, inspected):
    learn([month], tmp_path)
    (kept,) = (tmp_path / "cache").rglob("*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    learn([month], tmp_path)
    assert inspected == [month, month]


def test_index_and_moments_of_a_file_do_not_replace_each_other(month, tmp_path, inspected):
    locator = FileLocator(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    indexes = []
    for _ in range(2):
        dataset = downscaling_tier2()
        indexes.append(dataset.samples([month], locator))
    assert inspected == [month]
    assert [bool(index.setup) for index in indexes] == [True, False]
    assert np.isfinite(make_sample(dataset, indexes[1].where[1])["inputs"]).all()


def test_both_variants_share_an_index(month, tmp_path, inspected):
    locator = FileLocator(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    for variant in TIER.variants:
        dataset = downscaling_tier2(variant=variant)
        assert len(dataset.samples([month], locator)) == HOURS
    assert inspected == [month]


def test_many_files_are_inspected_in_processes_and_in_order(month, tmp_path, monkeypatch):
    monkeypatch.setattr(month_index, "SERIAL_FILES", 2)
    others = [month.with_name(f"{number}.nc") for number in range(3)]
    for other in others:
        shutil.copy(month, other)
    told = []
    found = learn([others[2], month, *others[:2]], tmp_path, lambda *at: told.append(at))
    assert [file.path for file, _ in found] == [others[2], month, *others[:2]]
    assert told[-1] == (4, 4)
    again = learn([others[0]], tmp_path)
    assert_same(found[2], again[0])


def test_a_file_that_is_gone_or_is_none_is_named(month, tmp_path):
    learn([month], tmp_path)
    month.unlink()
    with pytest.raises(IobenchError, match=month.name):
        learn([month], tmp_path)
    month.write_bytes(b"nothing at all")
    with pytest.raises(FileFormatError, match=f"{month.name}: is not NetCDF"):
        learn([month], tmp_path)
