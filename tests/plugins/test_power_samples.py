"""Samples of application A6 equal what xarray and numpy make of the same files."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
import xarray

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingFileError
from iobench_maelstrom.power.features import (
    PowerFeatures,
    wind_direction,
    year_part,
)
from iobench_maelstrom.power.weather import weather_pressure_level


@pytest.fixture(scope="session")
def stand_ins(store_dir, tiny_root):
    """All files of A6, tiny, in one flat folder; read-only."""
    folder = store_dir / "flat-a6"
    folder.mkdir(exist_ok=True)
    for dataset in (PowerFeatures(), weather_pressure_level()):
        for file in tiny_root(dataset).rglob("*.nc"):
            (folder / file.name).unlink(missing_ok=True)
            (folder / file.name).symlink_to(file)
    return folder


@pytest.fixture
def copied(stand_ins, tmp_path):
    """The files of one day, two turbines and the constants, to be changed."""
    for file in stand_ins.glob("*.nc"):
        if "20190102" not in file.name and not file.name.endswith(("_3.nc", "_4.nc")):
            shutil.copyfile(file, tmp_path / file.name)
    return tmp_path


def sampled(folder, dataset):
    locator = FileLocator(data_dir=folder, cache_dir=folder)
    return dataset, dataset.samples(dataset.files(locator), locator)


def opened(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray's own on the coordinate time
        return xarray.open_dataset(path, engine="netcdf4", **options)


def expected_features(folder, turbine, level):
    """Return features and production of every hour, computed with xarray and pandas."""
    production = opened(folder / f"wind_turbine_{turbine}.nc").load()
    hours = [
        {
            prefix: opened(folder / f"{prefix}_2019010{day}_{run}.nc").isel(time=slice(12))
            for prefix in ("ml", "sfc")
        }
        for day in (1, 2)
        for run in ("00", "12")
    ]
    place = {dim: float(production[dim][0]) for dim in ("latitude", "longitude")}
    ml, sfc = (
        xarray.concat([run[prefix] for run in hours], "time").sel(place, method="nearest").load()
        for prefix in ("ml", "sfc")
    )
    ml = ml.sel(level=level)
    constants = opened(folder / "ECMWF_AB137.nc")
    a, b = (constants[name].values[0, level - 1 : level + 1].mean() for name in ("hyai", "hybi"))
    density = (a + b * sfc.sp) / ((287.05 * (1 - ml.q) + 461.523 * ml.q) * ml.t)
    columns = [
        density,
        (ml.u**2 + ml.v**2) ** 0.5,
        90 - np.degrees(np.arctan(ml.v / ml.u)),
        ml.time.dt.hour / 24,
        (ml.time.dt.dayofyear - 1) / 365,
    ]
    series = production.production.to_series().droplevel([1, 2, 3]).resample("1h").mean()
    produced = series.reindex(ml.time.to_index()).clip(lower=0)
    return np.stack([column.values for column in columns], axis=1), produced.values


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("turbine", "level"), [(1, 133), (4, 128)])
def test_features_equal_a_computation_with_xarray(stand_ins, turbine, level):
    options = {"wind_turbine_id": str(turbine), "model_level": str(level)}
    dataset, index = sampled(stand_ins, PowerFeatures(**options))
    features, produced = expected_features(stand_ins, turbine, level)
    assert len(index) == 48
    for number, where in enumerate(index.where):
        sample = make_sample(dataset, where)
        np.testing.assert_allclose(sample["features"], features[number], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(sample["production"], produced[number], rtol=1e-6)


@pytest.mark.parametrize(
    ("u", "v", "angle"),
    [(1, 0, 90), (0, 2, 0), (0, -2, 180), (-1, 0, 90), (1, 1, 45), (-1, 1, 135)],
)
def test_wind_direction_is_the_notebooks(u, v, angle):
    assert wind_direction(u, v) == pytest.approx(angle)


def test_part_of_the_year():
    days = np.array(["2020-01-01", "2020-12-31", "2019-07-02"], "datetime64[D]").astype(int)
    assert [year_part(day) for day in days.tolist()] == pytest.approx([0, 1, 182 / 365])


def set_production(path, start, stop, value):
    import netCDF4

    with netCDF4.Dataset(path, "a") as file:
        file["production"][start:stop] = value


def test_hours_without_production_are_left_out_and_counted(copied):
    set_production(copied / "wind_turbine_1.nc", 18, 24, np.nan)
    _, index = sampled(copied, PowerFeatures())
    assert len(index) == 23
    assert "2019-01-01T03:00" not in index.coordinate
    assert index.provenance["hours_without_production"] == 1


def test_negative_production_is_none(copied):
    set_production(copied / "wind_turbine_1.nc", 18, 24, -3.0)
    dataset, index = sampled(copied, PowerFeatures())
    assert make_sample(dataset, index.where[3])["production"] == 0


def test_no_hour_with_production_is_an_error(copied):
    set_production(copied / "wind_turbine_1.nc", 0, 30 * 144, np.nan)
    with pytest.raises(FileFormatError, match=r"wind_turbine_1.nc.*no hour of the weather"):
        sampled(copied, PowerFeatures())


# What bad input gets.


@pytest.mark.parametrize(
    ("removed", "options", "message"),
    [
        ("ml_20190101_12.nc", {}, r"https://.*/maelstrom-ap6/ml_20190101_12.nc not"),
        ("", {"date": "2019-01-01,2019-01-02"}, r"https://.*/maelstrom-ap6/sfc_20190102_00.nc"),
        ("ECMWF_AB137.nc", {}, r"maelstrom-ap6/ECMWF_AB137.nc not found"),
        ("*.nc", {}, r"ml_20170101_00.nc, .* and 5841 more not found"),
    ],
)
def test_missing_files_are_named_by_url(copied, removed, options, message):
    for path in copied.glob(removed) if removed else ():
        path.unlink()
    with pytest.raises(MissingFileError, match=message):
        sampled(copied, PowerFeatures(**options))


def changed(path, change):
    with opened(path, mask_and_scale=False, decode_times=False) as data:
        data = data.load()
    made = change(data)
    path.unlink()
    made.to_netcdf(path, engine="netcdf4", format="NETCDF3_64BIT")


def later(data):
    return data.assign_coords(time=("time", data.time.values + 1, data.time.attrs))


def far(data):
    return data.assign_coords(longitude=data.longitude - 8)


WRONG = [
    ("ml_20190101_12.nc", lambda d: d.isel(time=slice(11)), r"'time' is 11, expected at least"),
    ("sfc_20190101_12.nc", later, r"variable 'time' begins"),
    ("wind_turbine_1.nc", far, r"'longitude' is 6.12, outside .* from 7 to 14.9"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_another_schema_is_named(copied, name, change, message):
    changed(copied / name, change)
    with pytest.raises(FileFormatError, match=rf"{name}: .*{message}"):
        sampled(copied, PowerFeatures())


def test_the_same_run_twice_is_an_error(copied):
    shutil.copyfile(copied / "pl_20190101_00.nc", copied / "pl_20190101_12.nc")
    with pytest.raises(FileFormatError, match=r"pl_20190101_12.nc: its times .* do not follow"):
        sampled(copied, weather_pressure_level())


def test_level_that_the_files_lack(copied):
    for hour in ("00", "12"):
        changed(copied / f"ml_20190101_{hour}.nc", lambda data: data.isel(level=slice(3, None)))
    with pytest.raises(FileFormatError, match=r"variable 'level' is 131, .*expected 128 among"):
        sampled(copied, PowerFeatures(model_level="128"))
