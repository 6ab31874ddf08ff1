"""Samples of application A6 equal what xarray and numpy make of the same files."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import xarray

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench_maelstrom.power.features import (
    PowerFeatures,
    wind_direction,
    year_part,
)
from iobench_maelstrom.power.weather import ModelLevels, SurfaceLevels, weather_pressure_level

WEATHER = {
    "ml": ModelLevels,
    "pl": weather_pressure_level,
    "sfc": SurfaceLevels,
}


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


def decoded(dataset, index, number):
    return dataset.decode(dataset.read(index.where[number]), index.where[number])


def opened(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray's own on the coordinate time
        return xarray.open_dataset(path, engine="netcdf4", **options)


def rewrite(path, **encoding):
    """Write a file anew as NetCDF-4, with a layout of the caller's for all its fields."""
    with opened(path, mask_and_scale=False, decode_times=False) as data:
        data = data.load()
    fields = [name for name in data.data_vars if data[name].ndim > 2]
    for name in fields:
        data[name].encoding.clear()
    data.to_netcdf(path, engine="netcdf4", encoding=dict.fromkeys(fields, encoding))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("prefix", WEATHER)
@pytest.mark.parametrize("number", [0, 11, 12, 47])
def test_fields_equal_xarrays(stand_ins, prefix, number):
    dataset, index = sampled(stand_ins, WEATHER[prefix]())
    day, hour = divmod(number, 24)
    run, step = divmod(hour, 12)
    with opened(stand_ins / f"{prefix}_2019010{day + 1}_{12 * run:02d}.nc") as data:
        expected = data.isel(time=step).load()
    arrays = decoded(dataset, index, number)
    assert set(arrays) == set(expected.data_vars)
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, expected[name].values, strict=True)
    assert index.coordinate[number] == str(expected.time.values)[:16]


def test_fields_have_the_units_and_dims_of_the_file(stand_ins):
    _, index = sampled(stand_ins, ModelLevels())
    assert index.spec.names == ("t", "q", "u", "v")
    assert index.spec["q"].units == "kg kg**-1"
    assert index.spec["t"].dims == ("level", "latitude", "longitude")
    assert {variable.dtype for variable in index.spec} == {"<f4"}
    assert index.provenance["levels"] == list(range(128, 138))


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


def bits(sample):
    return {name: values.tobytes() for name, values in sample.items()}


LAYOUTS = {
    "contiguous": {"contiguous": True},
    "deflated chunks": {"zlib": True, "shuffle": True, "chunksizes": (7, 3, 33, 41)},
    "only the library can": {"compression": "szip"},
}


@pytest.mark.quick_cases(0, thorough=1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_storage_gives_the_same_samples(copied, layout):
    before = sampled(copied, ModelLevels()), sampled(copied, PowerFeatures())
    wanted = {
        n: [make_sample(dataset, index.where[n]) for dataset, index in before] for n in (0, 8, 23)
    }
    copies = copied / "new"
    copies.mkdir()
    for path in copied.glob("*.nc"):
        shutil.copyfile(path, copies / path.name)
        if path.name.startswith("ml"):
            rewrite(copies / path.name, **LAYOUTS[layout])
    fields, points = sampled(copies, ModelLevels()), sampled(copies, PowerFeatures())
    is_fused = layout == "only the library can"
    assert fields[0].fused == points[0].fused == (("read", "decode") if is_fused else ())
    assert points[0].thread_safe is not is_fused
    for n, (field, point) in wanted.items():
        for (dataset, index), expected in ((fields, field), (points, point)):
            assert bits(make_sample(dataset, index.where[n])) == bits(expected)


def test_provenance_is_json_without_folders(stand_ins):
    _, index = sampled(stand_ins, PowerFeatures(date="2019-01-02"))
    text = json.dumps(index.provenance)
    assert str(stand_ins) not in text
    assert index.provenance["options"] == {
        "wind_turbine_id": "1", "date": ["2019-01-02"], "model_level": "133",
    }  # fmt: skip
    assert len(index) == 24


@pytest.mark.parametrize(
    "make",
    [PowerFeatures, SurfaceLevels, lambda: weather_pressure_level(sample="clustering")],
    ids=["features", "fields", "clustering"],
)
def test_samples_lie_along_the_time_in_hours(stand_ins, make):
    _, index = sampled(stand_ins, make())
    first = (np.datetime64("2019-01-01", "h") - np.datetime64("1970-01-01", "h")).astype(float)
    assert (index.positions[0], index.position_units) == (first, "hours")
    np.testing.assert_allclose(np.diff(index.positions), 1.0, rtol=1e-6)


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


def fortnights(data):
    data.time.attrs["units"] = "fortnights since 1900-01-01"
    return data


def far(data):
    return data.assign_coords(longitude=data.longitude - 8)


WRONG = [
    ("ml_20190101_00.nc", lambda d: d.drop_vars("q"), r"has no variable 'q'"),
    ("sfc_20190101_12.nc", lambda d: d.rename(latitude="lat"), r"'sp' is float64 \(time, lat, "),
    ("ml_20190101_12.nc", lambda d: d.isel(latitude=slice(50)), r"'latitude' has 50, expected 60"),
    ("ml_20190101_12.nc", lambda d: d.isel(time=slice(11)), r"'time' is 11, expected at least"),
    ("sfc_20190101_12.nc", later, r"variable 'time' begins"),
    ("sfc_20190101_00.nc", fortnights, r"time has units 'fortnights since"),
    ("wind_turbine_1.nc", far, r"'longitude' is 6.12, outside .* from 7 to 14.9"),
    ("wind_turbine_1.nc", lambda d: xarray.concat([d, d], "level"), r"'level' has 2, expected 1"),
    ("ECMWF_AB137.nc", lambda d: d.isel(dim0_0=slice(92)), r"'dim0_0' has 92, expected 138"),
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


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ModelLevels, {"date": "20190101"}, "expected YYYY-MM-DD"),
        (ModelLevels, {"date": "2021-01-01"}, "2017-01-01 to 2020-12-31"),
        (ModelLevels, {"dates": "x"}, "'dates': .* knows date"),
        (weather_pressure_level, {"sample": "x"}, "one of fields, clustering"),
        (weather_pressure_level, {"levels": "soil"}, "one of pressure, model, surface"),
        (weather_pressure_level, {"levels": "model", "sample": "clustering"}, "of pressure levels"),
        (weather_pressure_level, {"crop": "none"}, "option sample=clustering"),
        (PowerFeatures, {"wind_turbine_id": "5"}, "expected one of 1, 2, 3, 4"),
        (PowerFeatures, {"model_level": "127"}, "expected one of 128, .* 137"),
        (PowerFeatures, {"level": "133"}, "knows wind_turbine_id, date, model_level"),
    ],
)
def test_wrong_options(make, options, message):
    with pytest.raises(OptionError, match=message):
        make(**options)
