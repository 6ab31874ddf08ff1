"""The 25 channels of deep clustering: of forecasts and of ERA5's file, cropped."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.patterns import FilePattern
from iobench.errors import FileFormatError, MissingFileError
from iobench_maelstrom.power.weather import CropSize, weather_pressure_level

NAMES = ("z", "r", "t", "u", "v")
LEVELS = (300, 500, 700, 850, 950)
GRID = (12, 20)
ERA5 = "era5_pl_2000_2023_12.nc"


def clustering(**options):
    return weather_pressure_level(sample="clustering", **options)


@pytest.fixture(scope="session")
def forecasts(tiny_root):
    """The tiny stand-in of the pressure levels; read-only."""
    return tiny_root(weather_pressure_level())


def write_era5(path, first_day="2001-05-01", n_days=6, *, levels=LEVELS, names=NAMES, **encoding):
    """Write a file of ERA5's schema: float32, daily at 12 UTC, not packed."""
    random = np.random.default_rng(3)
    shape = (n_days, len(levels), *GRID)
    times = np.datetime64(f"{first_day}T12", "ns") + np.arange(n_days) * np.timedelta64(1, "D")
    dims = ("time", "level", "latitude", "longitude")
    data = xarray.Dataset(
        {name: (dims, random.normal(100, 5, shape).astype("f4")) for name in names},
        {
            "time": times,
            "level": list(levels),
            "latitude": 70 - 0.25 * np.arange(GRID[0]),
            "longitude": -25 + 0.25 * np.arange(GRID[1]),
        },
    )
    data.z.attrs["units"] = "m**2 s**-2"
    data.to_netcdf(path, engine="netcdf4", encoding=dict.fromkeys(names, encoding))
    return path


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


@pytest.mark.parametrize(
    "encoding",
    [{}, {"zlib": True, "chunksizes": (1, 5, *GRID)}, {"zlib": True, "chunksizes": (2, 2, 5, 7)}],
    ids=["contiguous", "chunk a time", "small chunks"],
)
def test_era5s_file_is_taken_where_it_is_at_hand(tmp_path, encoding):
    path = write_era5(tmp_path / ERA5, **encoding)
    dataset, index = sampled(clustering(), data_dir=tmp_path, cache_dir=tmp_path)
    assert index.coordinate[:2] == ["2001-05-01T12:00", "2001-05-02T12:00"]
    assert index.spec["fields"].shape == (25, 9, 16)
    for number, (_, step, row, column) in enumerate(index.where):
        assert step == number
        window = expected(path, step)[:, row : row + 9, column : column + 16]
        np.testing.assert_array_equal(make_sample(dataset, index.where[number])["fields"], window)


def test_era5_of_any_years_through_a_pattern(tmp_path):
    for first in ("2001-05-01", "2001-05-07"):
        write_era5(tmp_path / f"era5_pl_{first}.nc", first)
    pattern = FilePattern(str(tmp_path / "era5_pl_*.nc"))
    dataset, index = sampled(clustering(), pattern=pattern, cache_dir=tmp_path)
    assert len(index) == 12
    assert index.where[6][:2] == (1, 0)
    pickle.dumps(dataset)


def test_days_are_chosen_of_era5_too(tmp_path):
    write_era5(tmp_path / ERA5, "2019-01-01")
    dataset = clustering(date="2019-01-02,2019-01-05")
    _, index = sampled(dataset, data_dir=tmp_path, cache_dir=tmp_path)
    assert index.coordinate == ["2019-01-02T12:00", "2019-01-05T12:00"]
    with pytest.raises(FileFormatError, match=r"no time of 2019-01-07.*2019-01-01 to 2019-01-06"):
        sampled(clustering(date="2019-01-02,2019-01-07"), data_dir=tmp_path, cache_dir=tmp_path)


def test_nothing_at_hand_names_both_sources(tmp_path):
    with pytest.raises(MissingFileError, match=r"pl_20170101_00.nc.*or have era5_pl_1964_2023_12"):
        sampled(clustering(), data_dir=tmp_path, cache_dir=tmp_path)


def test_missing_levels_and_variables_are_named(tmp_path):
    write_era5(tmp_path / ERA5, levels=(500, 700, 850, 950))
    with pytest.raises(FileFormatError, match=r"needs also 300; take --option sample=fields"):
        sampled(clustering(), data_dir=tmp_path, cache_dir=tmp_path)
    write_era5(tmp_path / ERA5, names=("z", "t", "u", "v"))
    with pytest.raises(FileFormatError, match=r"has no variable 'r'"):
        sampled(clustering(), data_dir=tmp_path, cache_dir=tmp_path)
