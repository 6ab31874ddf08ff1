"""Patches across the ends of longitudes that go once around the globe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

import iobench
from iobench.cli import main
from iobench.coordinates import Coordinate
from iobench.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

N, LATITUDES, LONGITUDES = 6, 5, 12
PATCH = {"latitude": 3, "longitude": 7}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a global grid, whose values tell their places."""
    pytest.importorskip("h5netcdf", reason="xarray writes NetCDF-4 with it")
    shape = (N, LATITUDES, LONGITUDES)
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    east = {"units": "degrees_east", "standard_name": "longitude"}
    made = xarray.Dataset(
        {
            "t": (("time", "latitude", "longitude"), values),
            "turned": (("time", "longitude", "latitude"), -values.transpose(0, 2, 1)),
            "row": (("time", "latitude"), values[..., 0]),
        },
        {
            "time": np.datetime64("2020-01-01", "ns") + np.arange(N) * np.timedelta64(1, "D"),
            "longitude": ("longitude", np.arange(LONGITUDES) * 30.0, east),
            "latitude": ("latitude", np.linspace(60, -60, LATITUDES), {"units": "degrees_north"}),
        },
    )
    path = tmp_path_factory.mktemp("globe") / "globe.nc"
    made.to_netcdf(path, engine="h5netcdf")
    return path


@pytest.fixture(scope="module", params=["zarr", "numpy", "zarr in chunks"])
def store(request: pytest.FixtureRequest, source: Path) -> Path:
    out = source.parent / request.param.replace(" ", "-")
    fmt, _, chunks = request.param.partition(" ")
    words = ["convert", source, out, "--to", fmt, "--sample-dim", "time"]
    words += ["--inner-chunk", "longitude=5", "--codec", "blosc-lz4"] if chunks else []
    assert main(list(map(str, [*words, "--store-dir", source.parent / "places"]))) == 0
    return out


def patch_of(values: Any, axis: int, start: int, size: int) -> Any:
    return np.take(values, (start + np.arange(size)) % values.shape[axis], axis=axis)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("window", [None, "-1,0:1"])
def test_patches_go_on_at_the_beginning(store: Path, source: Path, window: str | None) -> None:
    options: dict[str, Any] = {"shuffle": True, "window": window, "patch_at": "wrapped"}
    loader = iobench.loader(store, 2, patch=PATCH, **options)
    held = iobench.open_store(store)
    seen = set()
    with xarray.open_dataset(source) as file:
        for _ in range(12):
            for batch in loader:
                places = loader.coordinates()
                for row, centre in enumerate(places["sample"].reshape(len(batch["t"]), -1)):
                    y, x = (int(places[f"{dim}_start"][row]) for dim in PATCH)
                    seen.add(x)
                    items = centre[: 2 if window else 1].tolist()
                    own = {"t": (1, 2), "turned": (2, 1)}
                    for name, (at_y, at_x) in own.items():
                        whole = np.stack([held[item][name] for item in items])
                        expected = patch_of(patch_of(whole, at_y, y, 3), at_x, x, 7)
                        found = batch[name][row] if window else batch[name][row][None]
                        np.testing.assert_array_equal(found, expected)
                    rows = np.stack([held[item]["row"] for item in items])[:, y : y + 3]
                    found = batch["row"][row] if window else batch["row"][row][None]
                    np.testing.assert_array_equal(found, rows)
                    east = patch_of(file.longitude.values, 0, x, 7)
                    np.testing.assert_array_equal(places["longitude"][row], east)
    assert seen == set(range(LONGITUDES))
    loader.close()


@pytest.mark.quick_cases(1)
def test_each_longitude_is_in_as_many_patches(store: Path) -> None:
    loader = iobench.loader(store, N, patch={"longitude": 4}, patch_at="wrapped")
    starts = []
    for _ in range(300):
        for _ in loader:
            starts += loader.coordinates()["longitude_start"].tolist()
    loader.close()
    held = (np.array(starts)[:, None] + np.arange(4)) % LONGITUDES
    share = np.bincount(held.ravel(), minlength=LONGITUDES) / held.size * LONGITUDES
    assert share.min() > 0.8
    assert share.max() < 1.2


@pytest.mark.parametrize("patch", [{"latitude": 2}, {"longitude": 4}])
def test_what_does_not_go_around_is_refused(
    source: Path, tmp_path: Path, patch: dict[str, int]
) -> None:
    part = tmp_path / "part.nc"
    with xarray.open_dataset(source) as file:
        kept = file.isel(longitude=slice(0, 9)) if "longitude" in patch else file
        kept.to_netcdf(part, engine="h5netcdf")
    words = ["convert", part, tmp_path / "out", "--to", "numpy", "--sample-dim", "time"]
    assert main(list(map(str, [*words, "--store-dir", tmp_path / "places"]))) == 0
    with pytest.raises(OptionError, match="is not known to go around the globe"):
        iobench.loader(tmp_path / "out", 2, patch=patch, patch_at="wrapped")


@given(
    st.integers(3, 2000),  # of two each is west and east of the other
    st.floats(-360, 360),
    st.sampled_from([1, -1]),
    st.sampled_from(["f4", "f8"]),
    st.sampled_from([0, 180, 360]),
)
def test_a_circle_is_known_wherever_it_begins(n, first, sign, dtype, fold):
    values = first + sign * np.arange(n) * (360 / n)
    values = (values % 360 if fold else values).astype(dtype)
    values[values > (fold or 720)] -= 360
    east = {"units": "degrees_east"}
    assert Coordinate("lon", ("lon",), values, east).is_cyclic
    assert not Coordinate("lon", ("lon",), values, {"units": "m"}).is_cyclic
    assert not Coordinate("lon", ("lon",), values[:-1], east).is_cyclic
    assert not Coordinate("lon", ("lon",), values.astype("U8"), east).is_cyclic
    assert not Coordinate("lon", ("sample",), values, east).is_cyclic
