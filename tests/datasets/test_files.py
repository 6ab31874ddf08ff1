import eccodes
import netCDF4
import numpy as np
import pytest
import xarray

from iobench.datasets.user_files import user_files
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.files.urls import as_path

MEMBERS = "era5/era5-levels-members.grib"


def cfgrib(path):
    options = {"indexpath": ""}
    return xarray.open_dataset(path, engine="cfgrib", backend_kwargs=options, decode_timedelta=True)


def messages(path):
    with path.open("rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            yield eccodes.codes_get_message(handle)
            eccodes.codes_release(handle)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("sample_dim", "n"), [("time", 4), ("number", 10), ("isobaricInhPa", 2)])
def test_grib_samples_are_cfgribs(real, open_user_files, sample_dim, n):
    path = real(MEMBERS)
    made = open_user_files(path, sample_dim=sample_dim)
    assert len(made.index) == n
    with cfgrib(path) as ds:
        for i in range(n):
            expected, sample = ds.isel({sample_dim: i}), made.sample(i)
            for name in ("z", "t"):
                np.testing.assert_array_equal(sample[name], expected[name].values, strict=True)
                assert made.index.spec[name].dims == expected[name].dims
    assert made.index.spec["t"].units == "K"


def test_level_stands_for_any_type_of_level(real, open_user_files):
    made = open_user_files(real("era5/test4.grib"), sample_dim="level")
    assert list(made.index.coordinate) == ["level 850", "level 500"]


def test_a_missing_message_is_named(real, tmp_path, open_user_files):
    path = tmp_path / "hole.grib"
    path.write_bytes(b"".join(list(messages(real(MEMBERS)))[:-1]))
    with pytest.raises(FileFormatError) as caught:
        open_user_files(path, sample_dim="time")
    said = str(caught.value)
    assert "1 of 80 messages of t are missing" in said
    assert "number=9, time=2017-01-02T12:00, step=0 h, isobaricInhPa=850" in said


def test_holes_of_variables_not_asked_for_do_not_matter(real, tmp_path, open_user_files):
    path = tmp_path / "hole.grib"
    path.write_bytes(b"".join(list(messages(real(MEMBERS)))[:-1]))
    made = open_user_files(path, sample_dim="time", variables=["z"])
    assert (len(made.index), made.index.spec.names) == (4, ("z",))
    assert made.index.provenance["skipped"] == {"t": "not asked for"}


def one_level_of_z(real, tmp_path):
    """Return a file whose ``z`` has one of two levels, as a constant field would."""
    path = tmp_path / "constant.grib"
    path.write_bytes(b"".join(list(messages(real("era5/test4.grib")))[:3]))
    return path


def test_one_value_along_the_sample_dim_must_be_asked_for(real, tmp_path, open_user_files):
    path = one_level_of_z(real, tmp_path)
    with pytest.raises(FileFormatError, match=r"z lacks 1 of 2 values of level.*--variables"):
        open_user_files(path, sample_dim="level")
    made = open_user_files(path, sample_dim="level", variables=["t", "z"])
    np.testing.assert_array_equal(made.sample(0)["z"], made.sample(1)["z"])


def test_constants_are_skipped_and_said_or_repeated_when_asked(yr_files, open_user_files):
    skipped = open_user_files(*yr_files, sample_dim="leadtime").index.provenance["skipped"]
    assert skipped["static_predictors"] == "lacks the dimension leadtime"
    assert skipped["predictor"] == "not numeric"
    names = ["predictors", "static_predictors"]
    made = open_user_files(*yr_files, sample_dim="leadtime", variables=names)
    with xarray.open_dataset(yr_files[1]) as ds:
        found = made.sample(7)["static_predictors"]
        np.testing.assert_array_equal(found, ds.static_predictors.values)


def write_times(path, times, *, units="hours since 2020-01-01", width=3, **storage):
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("time", len(times))
        ds.createDimension("x", width)
        ds.createVariable("time", "f8", ("time",))[:] = times
        ds["time"].units = units
        values = np.repeat(np.asarray(times, dtype="f4")[:, None], width, axis=1)
        ds.createVariable("v", "f4", ("time", "x"), **storage)[:] = values
    return path


@pytest.mark.parametrize(
    ("parts", "ordered"),
    [
        ([[4, 5], [0, 1], [2, 3]], [0, 1, 2, 3, 4, 5]),
        ([([5], "days since 2020-01-01"), [1]], [1, 5]),
        ([([5], "km"), ([1], "m")], [5, 1]),  # other units do not order files
    ],
)
def test_files_follow_their_coordinate(tmp_path, open_user_files, parts, ordered):
    paths = []
    for number, part in enumerate(parts):
        times, units = part if isinstance(part, tuple) else (part, "hours since 2020-01-01")
        paths.append(write_times(tmp_path / f"{number}.nc", times, units=units))
    made = open_user_files(*paths, sample_dim="time")
    assert [float(made.sample(i)["v"][0]) for i in range(len(made.index))] == ordered


@pytest.mark.parametrize("sample_dim", ["tme", None])
@pytest.mark.parametrize(
    ("name", "listed"),
    [
        (MEMBERS, "number (10), time (4), step (1), isobaricInhPa (2), level (2)"),
        ("era5/test4.nc", "longitude (360), latitude (181), level (2), time (1)"),
    ],
)
def test_unknown_sample_dim_lists_those_there_are(real, open_user_files, name, listed, sample_dim):
    with pytest.raises(OptionError, match="--sample-dim") as caught:
        open_user_files(real(name), sample_dim=sample_dim)
    assert listed in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "target", "name"),
    [
        (["/d/2020/a.nc"], "/d", "a.nc"),
        (["/d/2020/a.nc", "/d/2020/b.nc"], "/d/2020/*.nc", "2020"),
        (["/d/2020/a.nc", "/d/2021/b.nc"], None, "d"),
        (["/d/2020/a.nc", "/d/2020/b.nc"], "/d", "d"),
        (["s3://bucket/x/a.nc", "s3://bucket/x/b.nc"], "s3://bucket/x", "x"),
        (["/a.nc", "/b.nc"], None, "2 files"),
    ],
)
def test_several_files_are_called_as_their_folder(paths, target, name):
    named = None if target is None else as_path(target)
    assert user_files(paths, sample_dim="time", target=named).name == name


def test_missing_and_foreign_files(tmp_path, open_user_files):
    with pytest.raises(MissingFileError, match=r"one\.nc, .*two\.nc"):
        open_user_files(tmp_path / "one.nc", tmp_path / "two.nc", sample_dim="time")
    text = tmp_path / "notes.txt"
    text.write_text("hello world")
    with pytest.raises(FileFormatError, match=r"notes\.txt: is neither GRIB nor NetCDF"):
        open_user_files(text, sample_dim="time")
    with pytest.raises(OptionError, match="at least one"):
        user_files([], sample_dim="time")
