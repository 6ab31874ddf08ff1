"""ENS-10's tasks on pressure levels: 14 channels of one level, and ERA5's field there."""

from __future__ import annotations

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingFileError
from iobench_maelstrom.ens10.dataset import Ens10

NAMES = ["z", "t", "q", "w", "d", "u", "v"]


@pytest.fixture
def locator(pressure_root, tmp_path):
    return FileLocator(stand_in=pressure_root, cache_dir=tmp_path)


@pytest.fixture(params=["z500", pytest.param("t850", marks=pytest.mark.long)])
def target(request):
    return request.param


def sampled(locator, target):
    dataset = Ens10(dtype="pl", target=target)
    return dataset, dataset.samples(dataset.files(locator), locator)


@pytest.mark.thorough
def test_a_sample_is_of_14_channels_and_the_tasks_target(locator, target):
    _, index = sampled(locator, target)
    inputs, truth = index.spec
    level = target[1:]
    assert inputs.shape == (14, 46, 90)
    assert inputs.channels == tuple(
        f"{name}{level}_{moment}" for name in NAMES for moment in ("mean", "std")
    )
    units = {"z500": "m**2 s**-2", "t850": "K"}[target]
    assert (truth.name, truth.shape, truth.units) == (target, (46, 90), units)
    assert len(index) == 4


def opened(files):
    import warnings

    import xarray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cfgrib's and xarray's own
        return [
            xarray.open_dataset(
                file, engine="cfgrib", backend_kwargs={"indexpath": "", "squeeze": False}
            ).load()
            for file in files
        ]


@pytest.mark.long
def test_values_equal_a_computation_from_cfgribs_arrays(locator, target):
    import xarray

    dataset, index = sampled(locator, target)
    *files, target_file = dataset.files(locator)
    at_level = {"step": np.timedelta64(48, "h"), "isobaricInhPa": int(target[1:])}
    data = xarray.concat([one.sel(at_level) for one in opened(files)], "time").sortby("time")
    channels = []
    for name in NAMES:
        fields = data[name].transpose("time", "number", ...).values.astype(np.float64)
        channels += [fields.mean(axis=1), fields.std(axis=1)]
    inputs = np.stack(channels, axis=1)
    expected = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 0.1)
    with xarray.open_dataset(target_file) as era5:
        truth = era5[target[0]].load()
    for number in range(4):
        sample = make_sample(dataset, index.where[number])
        np.testing.assert_allclose(sample["inputs"], expected[number], rtol=1e-3, atol=2e-3)
        time = np.datetime64(index.coordinate[number]) + np.timedelta64(48, "h")
        np.testing.assert_array_equal(sample[target], truth.sel(time=time).values)


def test_files_of_the_surface_are_not_taken_for_them(tiny, pressure_root, tmp_path):
    dataset = Ens10(dtype="pl")
    locator = FileLocator(stand_in=pressure_root, cache_dir=tmp_path)
    files = [*tiny.files[:2], dataset.files(locator)[-1]]
    with pytest.raises(FileFormatError, match="no field at 500 hPa of ENS-10 at step 48 h"):
        dataset.samples(files, locator)


def test_a_missing_target_is_named_without_a_way_round_that_is_none(tiny):
    with pytest.raises(MissingFileError, match=r"output\.pl\.20180101"):
        Ens10(dtype="pl").files(tiny.locator)
