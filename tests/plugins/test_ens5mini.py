"""A sample of ens5mini equals a computation from xarray's arrays of the same files."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError
from iobench_maelstrom.ens10.ens5mini import Ens5mini
from iobench_maelstrom.ens10.files import LEVELS, TOY_CHANNELS

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


def test_values_equal_a_computation_from_xarrays_arrays(files, copied):
    dataset, index = sampled(copied)
    channels = []
    for name in NAMES:
        fields = np.concatenate([data[name].values[:, :, 1] for data in opened(files)], axis=1)
        fields = fields[:, [0, 1, 4, 5, 2, 3, 6, 7]].astype(np.float64)
        channels.append(np.stack([fields.mean(axis=0), fields.std(axis=0)], axis=2))
    inputs = np.concatenate(channels, axis=1).reshape(8, len(TOY_CHANNELS), 10, 20)
    expected = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 0.1)
    for number in range(8):
        found = make_sample(dataset, index.where[number])["inputs"]
        np.testing.assert_allclose(found, expected[number], rtol=2e-4, atol=5e-4)


def test_normalisation_is_computed_once_and_again_for_other_files(copied):
    sampled(copied)
    [kept] = copied.parent.rglob("ens5mini-normalisation-*")
    before = kept.stat()
    sampled(copied)
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    sampled(copied, date="01")
    assert len(list(kept.parent.glob("ens5mini-normalisation-*"))) == 2


def changed(file, change):
    import xarray

    with xarray.open_dataset(file, decode_times=False) as data:
        data.load()
    change(data).to_netcdf(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.isel(isobaricInhPa=slice(None, None, -1)), "isobaricInhPa is 10 50"),
        (lambda data: data.assign_coords(step=data.step.assign_attrs(units="m")), "units 'm'"),
    ],
)
def test_another_schema_is_named(copied, change, message):
    changed(copied / "ens5mini.07.nc", change)
    with pytest.raises(FileFormatError, match=rf"ens5mini\.07\.nc: .*{message}"):
        sampled(copied)
