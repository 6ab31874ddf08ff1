"""A sample of ens5mini equals a computation from xarray's arrays of the same files."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError
from iobench_maelstrom.ens10.ens5mini import Ens5mini
from iobench_maelstrom.ens10.files import LEVELS

DIMS = ("number", "time", "step", "isobaricInhPa", "latitude", "longitude")
NAMES = ["z", "t", "q", "w", "d", "u", "v"]


@pytest.fixture(scope="session")
def root(tiny_root):
    return tiny_root(Ens5mini())


@pytest.fixture
def files(root, tmp_path):
    return Ens5mini().files(FileLocator(stand_in=root, cache_dir=tmp_path))


@pytest.fixture
def copied(files, tmp_path):
    """The stand-in's files as a user's own, in one flat folder."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return folder


def sampled(folder, **options):
    dataset = Ens5mini(**options)
    locator = FileLocator(data_dir=folder, cache_dir=folder / "cache")
    return dataset, dataset.samples(dataset.files(locator), locator)


def opened(files):
    import xarray

    return [xarray.open_dataset(file).load() for file in files]


def test_the_stand_in_is_of_the_published_schema(files):
    assert [file.name for file in files] == ["ens5mini.01.nc", "ens5mini.07.nc"]
    for data in opened(files):
        assert list(data.data_vars) == NAMES
        assert {(data[name].dims, data[name].dtype.str) for name in NAMES} == {(DIMS, "<f4")}
        assert data.isobaricInhPa.values.tolist() == list(LEVELS)
        assert {data[name].encoding["contiguous"] for name in NAMES} == {True}
        assert not np.isnan(data.z.values).any()


def test_samples_are_the_members_that_xarray_reads(files, copied):
    dataset, index = sampled(copied)
    starts = sorted((start, data) for data in opened(files) for start in data.time.values)
    assert index.coordinate == [str(start)[:10] for start, _ in starts]
    for where, (start, data) in zip(index.where, starts, strict=True):
        sample = make_sample(dataset, where)
        for name in NAMES:
            field = data[name].sel(time=start, step=np.timedelta64(24, "h"))
            np.testing.assert_array_equal(sample[name], field)


def changed(file, change):
    import xarray

    with xarray.open_dataset(file, decode_times=False) as data:
        data.load()
    change(data).to_netcdf(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.isel(isobaricInhPa=slice(None, None, -1)), "'isobaricInhPa' has other"),
        (lambda data: data.assign_coords(step=data.step.assign_attrs(units="m")), "units 'm'"),
    ],
)
def test_another_schema_is_named(copied, change, message):
    changed(copied / "ens5mini.07.nc", change)
    with pytest.raises(FileFormatError, match=rf"ens5mini\.07\.nc: .*{message}"):
        sampled(copied)
