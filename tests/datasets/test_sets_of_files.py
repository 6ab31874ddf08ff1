"""Files of a set mean the same but for the sample dimension, or are refused with advice that works.

Source: what xarray reads of the same files, put together by hand.
"""

import logging
import re

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import FileFormatError, IobenchError, MissingFileError, OptionError

xarray = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
KINDS = pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_64BIT", "zarr"])
R = np.random.default_rng(0).random((6, 3, 4, 5)).astype("f4")
TIMES = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


def fields(start, stop):
    """Return some days of the field, with coordinates."""
    return xarray.Dataset(
        {"r": (("time", "lev", "lat", "lon"), R[start:stop].copy())},
        {
            "time": TIMES[start:stop],
            "lev": [1000.0, 500, 250],
            "lat": np.arange(4) * 10.0,
            "lon": ("lon", np.arange(5) * 72.0, {"units": "degrees_east"}),
        },
    )


def write(made, path, kind="NETCDF4", **more):
    if kind == "zarr":
        pytest.importorskip("zarr")
        texts = {
            n: (v.dims, v.astype(object).data)
            for n, v in made.coords.items()
            if v.dtype.kind == "U"
        }
        made = made.assign_coords(texts)  # of any length, as xarray's own are
        made.to_zarr(path, consolidated=False, **more)
    else:
        made.to_netcdf(path, format=kind, **more)
    return path


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Open files; what is learnt of them is kept in a folder of the test's own, which it is in."""
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)

    def open_files(*paths, sample_dim="time", **more):
        return iobench.open_dataset(*paths, sample_dim=sample_dim, **more)

    return open_files


@pytest.fixture
def load(opened, caplog):
    def read(*paths, **more):
        made = opened(*paths, **more)
        samples = [made[number] for number in range(len(made))]
        return {name: np.stack([each[name] for each in samples]) for name in samples[0]}

    with caplog.at_level(logging.WARNING, logger="iobench"):
        yield read


def turned(other):
    return other.assign_coords(lon=(other.lon + 180) % 360 - 180).sortby("lon")


def curved(made):
    return made.drop_vars(["lat", "lon"]).assign_coords(
        lat2=(("lat", "lon"), np.add.outer(np.arange(4.0), np.arange(5) / 10))
    )


def named(made):
    return made.assign_coords(lat=["Oslo", "Bo", "Ås", "Nesbyen"])


def listed(made):
    return made.drop_vars("lat").assign_coords(station=("lat", ["Oslo", "Bo", "Ås", "Nesbyen"]))


def same(made):
    return made


@pytest.mark.parametrize("kinds", [("NETCDF4", "NETCDF3_64BIT"), ("NETCDF3_CLASSIC", "NETCDF4")])
def test_texts_of_two_containers_are_the_same(tmp_path, load, kinds):
    first = write(named(fields(0, 3)), tmp_path / "a", kinds[0])
    other = write(named(fields(3, 6)), tmp_path / "b", kinds[1])
    np.testing.assert_array_equal(load(first, other)["r"], R)


OTHER = {
    "levels": (same, lambda each: each.assign_coords(lev=[1000.0, 500, 100]), "lev"),
    "listed names": (listed, lambda each: each.isel(lat=[3, 0, 1, 2]), "station"),
    "curvilinear turned": (curved, lambda each: each.isel(lat=slice(None, None, -1)), "lat2"),
    "latitude turned": (same, lambda each: each.isel(lat=slice(None, None, -1)), "lat"),
    "levels in another order": (same, lambda each: each.isel(lev=[1, 0, 2]), "lev"),
    "from -180": (same, turned, "lon"),
    "names in another order": (named, lambda each: each.isel(lat=[3, 0, 1, 2]), "lat"),
    "a longitude": (same, lambda each: each.assign_coords(lon=[-72.0, 0, 72, 144, 217]), "lon"),
    "curvilinear": (curved, lambda each: each.assign_coords(lat2=each.lat2 + 1), "lat2"),
    "curvilinear against its axes": (
        lambda each: curved(each).assign_coords(lat=[1, 2, 3, 4]),
        lambda each: each.assign_coords(lat2=each.lat2[::-1].drop_vars("lat")), "lat2",
    ),
    "names": (named, lambda each: each.assign_coords(lat=["Oslo", "Bo", "Ås", "Moss"]), "lat"),
    "names twice": (
        lambda each: each.assign_coords(lat=["Bo", "Bo", "Ås", "Oslo"]),
        lambda each: each.isel(lat=[0, 2, 1, 3]), "lat",
    ),
}  # fmt: skip


@pytest.mark.quick_cases(6)
@pytest.mark.filterwarnings("ignore:.*(onsolidated|data type)")
@pytest.mark.parametrize("case", OTHER)
@KINDS
def test_other_values_of_a_coordinate_are_refused(tmp_path, load, kind, case):
    change, alter, name = OTHER[case]
    first = write(change(fields(0, 3)), tmp_path / "a", kind)
    other = write(alter(change(fields(3, 6))), tmp_path / "b", kind)
    with pytest.raises(FileFormatError, match=rf"^{other}: coordinate '{name}' has other values"):
        load(first, other)


def test_the_last_digit_of_float32_is_no_other_place(tmp_path, load):
    grid = np.linspace(0.1, 0.4, 4)
    paths = [
        write(fields(n, n + 3).assign_coords(lat=grid.astype(dtype)), tmp_path / dtype)
        for n, dtype in ((0, "f8"), (3, "f4"))
    ]
    np.testing.assert_array_equal(load(*paths)["r"], R)


@KINDS
@pytest.mark.parametrize("days", [(2, 6), (0, 3)], ids=["overlap", "copy"])
def test_samples_of_a_time_that_is_there_twice_are_kept_with_a_note(
    tmp_path, load, caplog, kind, days
):
    paths = [write(fields(0, 3), tmp_path / "a", kind), write(fields(*days), tmp_path / "b", kind)]
    found = load(*paths)["r"]
    assert "files have samples of the same time: all are kept" in caplog.text
    np.testing.assert_array_equal(found, np.concatenate([R[:3], R[slice(*days)]]))


def test_files_whose_times_overlap_stay_in_their_order_with_a_note(tmp_path, load, caplog):
    for n in (0, 1):
        write(fields(0, 6).isel(time=slice(n, None, 2)), tmp_path / f"{n}.nc")
    found = load(tmp_path / "0.nc", tmp_path / "1.nc")["r"]
    assert "files whose values of time overlap stay in order" in caplog.text
    np.testing.assert_array_equal(found, R[[0, 2, 4, 1, 3, 5]])


@pytest.mark.long
def test_commands_say_it_as_the_loader_does(tmp_path, opened, capsys):
    write(fields(0, 3), tmp_path / "a.nc")
    write(fields(2, 6), tmp_path / "b.nc")
    quick = ("--compute", "none", "--batches", "1", "--out", "run")
    for command in (
        ("convert", "a.nc", "b.nc", "out", "--to", "zarr"),
        ("profile", "a.nc", "b.nc", "--sample-dim", "time", *quick),
        ("verify", "out", "--against", "a.nc", "--against", "b.nc"),
    ):
        assert main([*command]) == 0
        printed = capsys.readouterr()
        said = " ".join((printed.out + printed.err).split())
        assert "files have samples of the same time: all are kept" in said
    assert len(iobench.open_store("out")) == 7


# ---- files of other variables


def variable(name, start, stop, *, flat=False):
    """Return some days of a file of one variable: `R` and a number of its name."""
    made = (fields(start, stop) + len(name)).rename(r=name)
    made[name].attrs["units"] = f"units of {name}"
    return made.isel(lev=0, drop=True) if flat else made


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("turn", [1, 0, 2, 3])
@KINDS
def test_files_of_one_variable_each_are_one_set(tmp_path, opened, load, kind, turn):
    parts = [
        write(variable(name, *days, flat=name == "t2m"), tmp_path / f"{name}-{days[0]}", kind)
        for name, days in (("ta", (0, 3)), ("t2m", (0, 3)), ("t2m", (3, 6)), ("ta", (3, 6)))
    ]
    parts = parts[turn:] + parts[:turn]
    for variables in ((), ("t2m",), ("ta", "t2m")):
        found = load(*parts, variables=variables)
        assert list(found) == sorted(variables or ("t2m", "ta"))
        for name, values in found.items():
            expected = R[:, 0] if name == "t2m" else R
            np.testing.assert_array_equal(values, expected + np.float32(len(name)))
    made = opened(*parts)
    known = made.index.meteorology
    assert known["lev"].values.tolist() == [1000, 500, 250]
    units = {name: each["units"] for name, each in known.variables.items()}
    assert units == {"t2m": "units of t2m", "ta": "units of ta"}
    joined = np.concatenate([batch["ta"].copy() for batch in made.loader(batch_size=2)])
    sums = joined.sum(axis=(1, 2, 3)), (R + 2).sum(axis=(1, 2, 3))
    assert sorted(sums[0].tolist()) == sorted(sums[1].tolist())


def test_a_variable_that_some_files_lack_is_named_and_the_advice_works(tmp_path, load):
    paths = [write(fields(0, 3).assign(more=fields(0, 3)["r"] * 2), tmp_path / "a.nc")]
    paths.append(write(fields(3, 6), tmp_path / "b.nc"))
    for order in (paths, paths[::-1]):
        with pytest.raises(FileFormatError, match=r"b.nc: variable 'more' is missing") as refused:
            load(*order)
        names = eval(re.findall(r"variables=(\(.*\))$", str(refused.value))[0])
        np.testing.assert_array_equal(load(*order, variables=names)["r"], R)


def test_several_dtypes_of_one_variable_are_refused(tmp_path, load):
    paths = [write(fields(0, 3).map(lambda each: each.astype("f8")), tmp_path / "a.nc")]
    paths.append(write(fields(3, 6), tmp_path / "b.nc"))
    with pytest.raises(FileFormatError, match=r"b.nc: variable 'r' is <f4 .*astype"):
        load(*paths)


# ---- files of one time each

UNITS = (
    {"units": "seconds since 2020-01-01", "calendar": "standard"},
    {},
    {"units": "hours since 1900-01-01"},
)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("units", UNITS, ids=str)
@pytest.mark.parametrize("sample_dim", ["time", None])
@KINDS
def test_each_file_is_a_sample_in_the_order_of_their_times(
    tmp_path, opened, load, kind, sample_dim, units
):
    paths = []
    for day in (4, 0, 2):
        made = fields(day, day + 1).isel(time=0)
        made["time"].encoding.update(units if day == 0 else {})
        paths.append(write(made, tmp_path / f"f{day}", kind))
    np.testing.assert_array_equal(load(*paths, sample_dim=sample_dim)["r"], R[[0, 2, 4]])
    np.testing.assert_array_equal(load(paths[0])["r"], R[[4]])
    made = opened(*paths, sample_dim=sample_dim)
    assert np.diff(made.index.positions).tolist() == [2 * 86400] * 2
    assert made.index.meteorology["time"].dims == ("sample",)
    (batch,) = [batch["r"][:, 0, 0, 0].tolist() for batch in made.loader(batch_size=3)]
    assert sorted(batch) == sorted(R[[0, 2, 4], 0, 0, 0].tolist())


@KINDS
def test_files_without_a_time_are_samples_in_the_order_given(tmp_path, load, kind):
    paths = [
        write(fields(day, day + 1).isel(time=0).drop_vars("time"), tmp_path / f"{day}", kind)
        for day in (3, 1)
    ]
    np.testing.assert_array_equal(load(*paths, sample_dim="file")["r"], R[[3, 1]])
    with pytest.raises(OptionError, match="it is 'file'"):
        load(*paths)


# ---- names of files, folders, groups


@pytest.mark.long
def test_patterns_name_files(tmp_path, load, capsys):
    for name, days in (("a1.nc", (0, 3)), ("a2.nc", (3, 6)), (".a3.nc", (0, 1)), ("b.nc", (0, 1))):
        write(fields(*days), tmp_path / name)
    for pattern in ("a*.nc", str(tmp_path / "a?.nc"), "**/a[12].nc"):
        np.testing.assert_array_equal(load(pattern)["r"], R)
    assert main(["convert", "a*.nc", "out", "--to", "zarr"]) == 0
    assert main(["verify", "out", "--against", "a*.nc"]) == 0
    assert main(["info", "a*.nc"]) == 0
    assert "iobench profile 'a*.nc' --sample-dim time" in capsys.readouterr().out
    with pytest.raises(MissingFileError, match=r"c\*.nc: no file matches"):
        load("c*.nc")
    for name in ("odd[1].nc", "a#b.nc"):
        write(fields(0, 3), tmp_path / name)
        np.testing.assert_array_equal(load(name)["r"], R[:3])


def test_a_folder_is_searched_by_first_bytes(tmp_path, load):
    for kind, folder in (("NETCDF4", "run"), ("NETCDF3_64BIT", "other/member1")):
        (tmp_path / folder).mkdir(parents=True)
        for start in (0, 3):
            name = f"wrfout_d01_2020-01-0{start + 1}_00:00:00"
            write(fields(start, start + 3), tmp_path / folder / name, kind)
        (tmp_path / folder / "namelist.input").write_text("&time_control")
        (tmp_path / folder / "empty").touch()
        np.testing.assert_array_equal(load(tmp_path / folder.split("/")[0])["r"], R)
    (tmp_path / "run" / "field").write_bytes(b"GRIB")
    with pytest.raises(OptionError, match=r"several formats.*name one: .*/run/field\*"):
        load(tmp_path / "run")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("group", ["Grid", "deep/er"])
@pytest.mark.parametrize("kind", ["zarr", "NETCDF4"])
def test_a_group_is_named_and_taken(tmp_path, opened, load, capsys, kind, group):
    for name, days in (("a", (0, 3)), ("b", (3, 6))):
        write(fields(*days), tmp_path / name, kind, group=group)
    top = group if kind == "NETCDF4" else group.split("/")[0]
    for command in (("convert", "a", "out", "--to", "zarr"), ("profile", "./a"), ("info", "a")):
        assert main([*command]) == 1
        assert f"its variables lie in groups ({top}); name one: " in capsys.readouterr().err
    np.testing.assert_array_equal(load(f"a#{group}", f"b#{group}", sample_dim=None)["r"], R)
    np.testing.assert_array_equal(load(f"[ab]#{group}")["r"], R)
    levels = opened(f"./a#{group}").index.meteorology["lev"]
    assert levels.values.tolist() == [1000, 500, 250]
    assert main(["convert", f"./a#{group}", "out", "--to", "zarr"]) == 0
    assert main(["verify", "out", "--against", f"./a#{group}"]) == 0
    assert main(["info", f"./a#{group}"]) == 0
    profile = ("--compute", "none", "--batches", "1", "--out", "run")
    assert main(["profile", f"./a#{group}", *profile]) == 0
    with pytest.raises(IobenchError, match="has no group 'none'"):
        load("a#none")
