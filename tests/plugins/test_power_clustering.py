"""The 25 channels of deep clustering, cropped."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError
from iobench_maelstrom.power.weather import CropSize, weather_pressure_level

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
    dataset, index = sampled(clustering(crop="none"), stand_in=forecasts, cache_dir=tmp_path)
    [path] = forecasts.rglob("pl_20190102_00.nc")
    fields = make_sample(dataset, index.where[30])["fields"]
    np.testing.assert_array_equal(fields, expected(path, 6))
    assert index.spec["fields"].channels[:6] == ("z300", "r300", "t300", "u300", "v300", "z500")
    assert index.spec["fields"].units.startswith("z m**2 s**-2, r %, t K")
    assert len(index) == 48


def test_a_crop_is_a_window_of_the_grid_at_the_place_the_index_says(forecasts, tmp_path):
    dataset, index = sampled(clustering(), stand_in=forecasts, cache_dir=tmp_path)
    [path] = forecasts.rglob("pl_20190101_12.nc")
    assert index.spec["fields"].shape == (25, 48, 64)
    for number in (12, 17):
        _, step, row, column = index.where[number]
        window = expected(path, step)[:, row : row + 48, column : column + 64]
        np.testing.assert_array_equal(make_sample(dataset, index.where[number])["fields"], window)


def test_places_move_with_time_and_depend_on_nothing_else(forecasts, tmp_path):
    _, index = sampled(clustering(), stand_in=forecasts, cache_dir=tmp_path)
    _, second_day = sampled(clustering(date="2019-01-02"), stand_in=forecasts, cache_dir=tmp_path)
    assert len({place[2:] for place in index.where}) > 30
    assert [w[2:] for w in second_day.where] == [w[2:] for w in index.where[24:]]


@given(st.integers(1, 400), st.integers(1, 600), st.integers(-(10**10), 10**11))
def test_crops_lie_inside_the_grid(n_rows, n_columns, seconds):
    size = CropSize("moving", (n_rows, n_columns))
    row, column = size.corner(np.datetime64(seconds, "s"))
    assert 0 <= row <= n_rows - size.shape[0]
    assert 0 <= column <= n_columns - size.shape[1]


def test_the_published_grid_is_cropped_as_upstream():
    assert CropSize("moving", (141, 221)).shape == (112, 176)
    assert CropSize("centre", (141, 221)).corner(np.datetime64("2020-01-01")) == (14, 22)
    assert CropSize("none", (141, 221)).shape == (141, 221)


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
