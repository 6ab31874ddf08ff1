"""The 25 channels of deep clustering."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import xarray

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError
from iobench_maelstrom.power.weather import weather_pressure_level

NAMES = ("z", "r", "t", "u", "v")
LEVELS = (300, 500, 700, 850, 950)


def clustering(**options):
    return weather_pressure_level(sample="clustering", **options)


@pytest.fixture(scope="session")
def forecasts(tiny_root):
    """The tiny stand-in of the pressure levels; read-only."""
    return tiny_root(weather_pressure_level())


def sampled(dataset, **where):
    locator = FileLocator(cache_dir=where.pop("cache_dir"), **where)
    return dataset, dataset.samples(dataset.files(locator), locator)


def expected(path, time, level_names=LEVELS):
    """Return all channels of a time, the whole grid: by level, then by variable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray's own on the coordinate time
        with xarray.open_dataset(path, engine="netcdf4") as data:
            step = data.isel(time=time).sel(level=list(level_names))[list(NAMES)].load()
    fields = step.to_dataarray().transpose("level", "variable", "latitude", "longitude").values
    return fields.reshape(25, *fields.shape[2:]).astype("f4")


def test_channels_are_level_by_level_as_upstream(forecasts, tmp_path):
    dataset, index = sampled(clustering(), stand_in=forecasts, cache_dir=tmp_path)
    [path] = forecasts.rglob("pl_20190102_00.nc")
    fields = make_sample(dataset, index.where[30])["fields"]
    np.testing.assert_array_equal(fields, expected(path, 6))
    assert index.spec["fields"].channels[:6] == ("z300", "r300", "t300", "u300", "v300", "z500")
    assert index.spec["fields"].units.startswith("z m**2 s**-2, r %, t K")
    assert len(index) == 48


@pytest.mark.parametrize(("absent", "message"), [
    ("level", r"needs also 300; take --option sample=fields"), ("r", r"has no variable 'r'"),
])  # fmt: skip
def test_missing_levels_and_variables_are_named(forecasts, tmp_path, absent, message):
    for path in forecasts.rglob("pl_20190101_*.nc"):
        with xarray.open_dataset(path, decode_times=False, mask_and_scale=False) as data:
            less = data.drop_vars("r") if absent == "r" else data.isel(level=slice(1, None))
            less.to_netcdf(tmp_path / path.name, format="NETCDF3_64BIT")
    with pytest.raises(FileFormatError, match=message):
        sampled(clustering(), data_dir=tmp_path, cache_dir=tmp_path)
