"""Files of a set mean the same but for the sample dimension, or are refused with advice that works.

Source: what xarray reads of the same files, put together by hand.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import FileFormatError, IobenchError, MissingFileError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

xarray = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
KINDS = ("NETCDF4", "NETCDF3_64BIT", "zarr")
R = np.random.default_rng(0).random((6, 3, 4, 5)).astype("f4")
TIMES = np.datetime64("2020-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


def fields(start: int, stop: int) -> Any:
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


def write(made: Any, path: Path, kind: str) -> Path:
    if kind == "zarr":
        pytest.importorskip("zarr")
        made.to_zarr(path, consolidated=False)
    else:
        made.to_netcdf(path, format=kind)
    return path


@pytest.fixture
def load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., Any]]:
    def read(*paths: Any, sample_dim: str = "time", **more: Any) -> dict[str, np.ndarray]:
        made = iobench.open_dataset(
            *paths, sample_dim=sample_dim, store_dir=tmp_path / "kept", **more
        )
        samples = [made[number] for number in range(len(made))]
        return {name: np.stack([each[name] for each in samples]) for name in samples[0]}

    with caplog.at_level(logging.WARNING, logger="iobench"):
        yield read


def turned(other: Any) -> Any:
    return other.assign_coords(lon=(other.lon + 180) % 360 - 180).sortby("lon")


def curved(made: Any) -> Any:
    return made.drop_vars(["lat", "lon"]).assign_coords(
        lat2=(("lat", "lon"), np.add.outer(np.arange(4.0), np.arange(5) / 10))
    )


def named(made: Any) -> Any:
    return made.assign_coords(lat=["Oslo", "Bo", "Ås", "Nesbyen"])


def listed(made: Any) -> Any:
    return made.drop_vars("lat").assign_coords(station=("lat", ["Oslo", "Bo", "Ås", "Nesbyen"]))


def same(made: Any) -> Any:
    return made


Change = "Callable[[Any], Any]"


@pytest.mark.parametrize("kinds", [("NETCDF4", "NETCDF3_64BIT"), ("NETCDF3_CLASSIC", "NETCDF4")])
def test_texts_of_two_containers_are_the_same(
    tmp_path: Path, load: Callable[..., Any], kinds: tuple[str, str]
) -> None:
    first = write(named(fields(0, 3)), tmp_path / "a", kinds[0])
    other = write(named(fields(3, 6)), tmp_path / "b", kinds[1])
    np.testing.assert_array_equal(load(first, other)["r"], R)


OTHER: dict[str, tuple[Change, Change, str]] = {
    "latitude turned": (same, lambda each: each.isel(lat=slice(None, None, -1)), "lat"),
    "levels in another order": (same, lambda each: each.isel(lev=[1, 0, 2]), "lev"),
    "from -180": (same, turned, "lon"),
    "curvilinear turned": (curved, lambda each: each.isel(lat=slice(None, None, -1)), "lat2"),
    "names in another order": (named, lambda each: each.isel(lat=[3, 0, 1, 2]), "lat"),
    "listed names": (listed, lambda each: each.isel(lat=[3, 0, 1, 2]), "station"),
    "levels": (same, lambda each: each.assign_coords(lev=[1000.0, 500, 100]), "lev"),
    "a longitude": (
        same, lambda each: each.assign_coords(lon=[-72.0, 0, 72, 144, 217]), "lon",
    ),
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


@pytest.mark.filterwarnings("ignore:.*(onsolidated|data type)")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", OTHER)
def test_other_values_of_a_coordinate_are_refused(
    tmp_path: Path, load: Callable[..., Any], kind: str, case: str
) -> None:
    change, alter, name = OTHER[case]
    first = write(change(fields(0, 3)), tmp_path / "a", kind)
    other = write(alter(change(fields(3, 6))), tmp_path / "b", kind)
    with pytest.raises(FileFormatError, match=rf"^{other}: coordinate '{name}' has other values"):
        load(first, other)


def test_the_last_digit_of_float32_is_no_other_place(
    tmp_path: Path, load: Callable[..., Any]
) -> None:
    grid = np.linspace(0.1, 0.4, 4)
    paths = [
        write(fields(n, n + 3).assign_coords(lat=grid.astype(dtype)), tmp_path / dtype, "NETCDF4")
        for n, dtype in ((0, "f8"), (3, "f4"))
    ]
    np.testing.assert_array_equal(load(*paths)["r"], R)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("days", [(2, 6), (0, 3)], ids=["overlap", "copy"])
def test_samples_of_a_time_that_is_there_twice_are_kept_with_a_note(
    tmp_path: Path,
    load: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    kind: str,
    days: tuple[int, int],
) -> None:
    paths = [write(fields(0, 3), tmp_path / "a", kind), write(fields(*days), tmp_path / "b", kind)]
    found = load(*paths)["r"]
    assert "files have samples of the same time: all are kept" in caplog.text
    np.testing.assert_array_equal(found, np.concatenate([R[:3], R[slice(*days)]]))


def test_commands_say_it_as_the_loader_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "kept"))
    write(fields(0, 3), tmp_path / "a.nc", "NETCDF4")
    write(fields(2, 6), tmp_path / "b.nc", "NETCDF4")
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
    assert iobench.open_store("out").to_xarray().sizes["sample"] == 7


def variable(name: str, start: int, stop: int, **more: Any) -> Any:
    """Return some days of a file of one variable: `R` and a number of its name."""
    made = (fields(start, stop) + len(name)).rename(r=name)
    made[name].attrs["units"] = f"units of {name}"
    return made.isel(lev=0, drop=True) if more.get("flat") else made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_files_of_one_variable_each_are_one_set(
    tmp_path: Path, load: Callable[..., Any], kind: str, turn: int
) -> None:
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
    made = iobench.open_dataset(*parts, sample_dim="time", store_dir=tmp_path / "kept")
    known = made.index.meteorology
    assert known["lev"].values.tolist() == [1000, 500, 250]
    assert {name: each["units"] for name, each in known.variables.items()} == {
        "t2m": "units of t2m",
        "ta": "units of ta",
    }
    batches = [{n: v.copy() for n, v in batch.items()} for batch in made.loader(batch_size=2)]
    joined = np.concatenate([batch["ta"] for batch in batches])
    assert sorted(joined.sum(axis=(1, 2, 3)).tolist()) == sorted(
        (R + 2).sum(axis=(1, 2, 3)).tolist()
    )


def test_a_variable_that_some_files_lack_is_named_and_the_advice_works(
    tmp_path: Path, load: Callable[..., Any]
) -> None:
    whole = fields(0, 3).assign(more=fields(0, 3)["r"] * 2)
    paths = [write(whole, tmp_path / "a.nc", "NETCDF4")]
    paths.append(write(fields(3, 6), tmp_path / "b.nc", "NETCDF4"))
    for order in (paths, paths[::-1]):
        with pytest.raises(FileFormatError, match=r"b.nc: variable 'more' is missing") as refused:
            load(*order)
        names = eval(re.findall(r"variables=(\(.*\))$", str(refused.value))[0])
        np.testing.assert_array_equal(load(*order, variables=names)["r"], R)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_files_lie_alike(tmp_path: Path, load: Callable[..., Any], kind: str) -> None:
    one = write(variable("ta", 0, 3), tmp_path / "a", kind)
    other = variable("t2m", 0, 3).isel(lat=slice(None, None, -1))
    with pytest.raises(FileFormatError, match=r"b: coordinate 'lat' has other values"):
        load(one, write(other, tmp_path / "b", kind))


def one_time(day: int, *, has_time: bool = True) -> Any:
    made = fields(day, day + 1).isel(time=0)
    return made if has_time else made.drop_vars("time")


UNITS: tuple[dict[str, str], ...] = (
    {},
    {"units": "hours since 1900-01-01"},
    {"units": "seconds since 2020-01-01", "calendar": "standard"},
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sample_dim", ["time", None])
@pytest.mark.parametrize("units", UNITS, ids=str)
def test_each_file_is_a_sample_in_the_order_of_their_times(
    tmp_path: Path,
    load: Callable[..., Any],
    kind: str,
    sample_dim: str | None,
    units: dict[str, str],
) -> None:
    days = [4, 0, 2]
    made = {day: one_time(day) for day in days}
    made[0]["time"].encoding.update(units)
    paths = [write(made[day], tmp_path / f"f{day}", kind) for day in days]
    np.testing.assert_array_equal(load(*paths, sample_dim=sample_dim)["r"], R[[0, 2, 4]])
    made = iobench.open_dataset(*paths, sample_dim=sample_dim, store_dir=tmp_path / "kept")
    assert np.diff(made.index.positions).tolist() == [2 * 86400] * 2
    assert made.index.meteorology["time"].dims == ("sample",)
    batches = [batch["r"].copy() for batch in made.loader(batch_size=3)]
    assert sorted(batches[0][:, 0, 0, 0].tolist()) == sorted(R[[0, 2, 4], 0, 0, 0].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_one_time_alone_is_one_sample(
    tmp_path: Path, load: Callable[..., Any], kind: str
) -> None:
    path = write(one_time(3), tmp_path / "alone", kind)
    np.testing.assert_array_equal(load(path, sample_dim="time")["r"], R[[3]])


@pytest.mark.parametrize("kind", KINDS)
def test_files_without_a_time_are_samples_in_the_order_given(
    tmp_path: Path, load: Callable[..., Any], kind: str
) -> None:
    paths = [write(one_time(day, has_time=False), tmp_path / f"{day}", kind) for day in (3, 1)]
    np.testing.assert_array_equal(load(*paths, sample_dim="file")["r"], R[[3, 1]])
    with pytest.raises(OptionError, match="it is 'file'"):
        load(*paths, sample_dim="time")


def test_patterns_name_files(
    tmp_path: Path,
    load: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    for name, days in (("a1.nc", (0, 3)), ("a2.nc", (3, 6)), (".a3.nc", (0, 1)), ("b.nc", (0, 1))):
        write(fields(*days), tmp_path / name, "NETCDF4")
    for pattern in ("a*.nc", str(tmp_path / "a?.nc"), "**/a[12].nc"):
        np.testing.assert_array_equal(load(pattern)["r"], R)
    assert main(["convert", "a*.nc", "out", "--to", "zarr"]) == 0
    assert main(["verify", "out", "--against", "a*.nc"]) == 0
    assert main(["info", "a*.nc"]) == 0
    assert "iobench profile 'a*.nc' --sample-dim time" in capsys.readouterr().out
    with pytest.raises(MissingFileError, match=r"c\*.nc: no file matches"):
        load("c*.nc")
    write(fields(0, 3), tmp_path / "odd[1].nc", "NETCDF4")
    np.testing.assert_array_equal(load("odd[1].nc")["r"], R[:3])


def test_a_folder_is_searched_by_first_bytes(tmp_path: Path, load: Callable[..., Any]) -> None:
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


@pytest.mark.parametrize("kind", ["NETCDF4", "zarr"])
@pytest.mark.parametrize("group", ["Grid", "deep/er"])
def test_a_group_is_named_and_taken(
    tmp_path: Path,
    load: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    group: str,
) -> None:
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    for name, days in (("a", (0, 3)), ("b", (3, 6))):
        if kind == "zarr":
            pytest.importorskip("zarr")
            fields(*days).to_zarr(tmp_path / name, group=group, consolidated=False)
        else:
            fields(*days).to_netcdf(tmp_path / name, group=group)
    top = group if kind == "NETCDF4" else group.split("/")[0]
    for command in (("convert", "a", "out", "--to", "zarr"), ("profile", "./a"), ("info", "a")):
        assert main([*command]) == 1
        assert f"its variables lie in groups ({top}); name one: " in capsys.readouterr().err
    np.testing.assert_array_equal(load(f"a#{group}", f"b#{group}", sample_dim=None)["r"], R)
    np.testing.assert_array_equal(load(f"[ab]#{group}")["r"], R)
    made = iobench.open_dataset(f"./a#{group}", sample_dim="time", store_dir=tmp_path / "kept")
    assert made.index.meteorology["lev"].values.tolist() == [1000, 500, 250]
    assert main(["convert", f"./a#{group}", "out", "--to", "zarr"]) == 0
    assert main(["verify", "out", "--against", f"./a#{group}"]) == 0
    assert main(["info", f"./a#{group}"]) == 0
    profile = ("--compute", "none", "--batches", "1", "--out", "run")
    assert main(["profile", f"./a#{group}", *profile]) == 0
    with pytest.raises(IobenchError, match="has no group 'none'"):
        load("a#none")


def test_a_name_with_the_mark_is_a_file(tmp_path: Path, load: Callable[..., Any]) -> None:
    path = write(fields(0, 3), tmp_path / "a#b.nc", "NETCDF4")
    np.testing.assert_array_equal(load(path)["r"], R[:3])


def test_several_dtypes_of_one_variable_are_refused(
    tmp_path: Path, load: Callable[..., Any]
) -> None:
    wide = fields(0, 3).map(lambda each: each.astype("f8"))
    paths = [write(wide, tmp_path / "a.nc", "NETCDF4")]
    paths.append(write(fields(3, 6), tmp_path / "b.nc", "NETCDF4"))
    with pytest.raises(FileFormatError, match=r"b.nc: variable 'r' is <f4 .*astype"):
        load(*paths)
