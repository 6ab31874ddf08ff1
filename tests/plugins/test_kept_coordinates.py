"""What named datasets keep of their files' coordinates, and what they say of those they do not."""

import numpy as np
import pytest
import xarray

from iobench.registry import dataset_names

# Of the others the time, and what they have beside.
KEPT = {
    "cosmoflow": set(),
    "deepcam": set(),
    "maelstrom-ens10": {"time", "valid_time", "step", "latitude", "longitude", "crs"},
    "maelstrom-power": {"time", "level", "latitude", "longitude"},
    "maelstrom-radiation": {"lat", "lon"},
    "maelstrom-radiation-tf": set(),
    "maelstrom-yr": {"time", "valid_time", "leadtime", "x", "y", "projection_lcc"},
}  # fmt: skip
LEFT_OUT = {
    "deepcam": {"time"},
    "maelstrom-radiation": {"time"},
    "maelstrom-radiation-tf": {"lat, lon, time"},
    "maelstrom-yr": {"predictor", "static_predictor", "latitude", "longitude"},
}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", dataset_names())
def test_every_name_keeps_its_coordinates_or_says_why_not(name, prepared):
    _, _, index = prepared(name)
    known = index.meteorology
    found = {each.name for each in known.coordinates}
    if name in KEPT:
        assert found == KEPT[name]
    else:
        assert {"time"} < found
    assert known.left_out.keys() == LEFT_OUT.get(name, set())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("patch", ["100", "whole"])
def test_each_patch_of_yr_has_its_own_places(patch, prepared):
    options = {} if patch == "whole" else {"y_range": "28,428", "x_range": "20,320"}
    _, files, index = prepared("maelstrom-yr", patch=patch, **options)
    known = index.meteorology
    for number in (0, 1, len(index) // 2, len(index) - 1):
        where = index.where[number]
        with xarray.open_dataset(files[where.file], decode_timedelta=False) as file:
            size = (file.sizes["y"], file.sizes["x"]) if patch == "whole" else (100, 100)
            y, x = slice(where.y, where.y + size[0]), slice(where.x, where.x + size[1])
            expected = {"y": file.y[y].values, "x": file.x[x].values}
            for name in ("latitude", "longitude"):
                if patch == "whole":
                    expected[name] = file[name][y, x].values
                else:
                    assert "bytes for the parts of all samples" in known.left_out[name]
            for name, values in expected.items():
                each = known[name]
                own = each.values[number] if each.of_samples else each.values
                np.testing.assert_array_equal(own, values)
            start = file.time.values.astype("M8[s]").astype(np.int64)
            lead = file.leadtime.values[where.lead]
        assert known["time"].values[number] == start
        assert known["valid_time"].values[number] == start + lead


def test_the_point_of_a_turbine_is_where_its_weather_is_taken(prepared):
    _, files, index = prepared("maelstrom-power", model_level="131")
    known = index.meteorology
    place = {name: known[name].values for name in ("latitude", "longitude", "level")}
    with xarray.open_dataset(files[0]) as file:
        point = file.sel(place)
        assert int(point.level) == 131
        assert index.provenance["grid_point"] == [
            file[name].values.tolist().index(place[name]) for name in ("latitude", "longitude")
        ]
        assert index.coordinate[0] == str(file.time.values[0])[:16]
    names = known["time"].attributes["units"]
    times = xarray.decode_cf(xarray.Dataset({"t": ("t", known["time"].values, {"units": names})}))
    spelled = np.datetime_as_string(times.t.values, unit="m")
    np.testing.assert_array_equal(spelled, index.coordinate)


def test_columns_of_radiation_lie_where_their_file_says(prepared):
    _, files, index = prepared("maelstrom-radiation")
    half, known = len(files) // 2, index.meteorology
    read = []
    for path in files[:half]:
        with xarray.open_dataset(path) as file:
            read.append((file.lat.values, file.lon.values))
    for name, values in zip(("lat", "lon"), zip(*read, strict=True), strict=True):
        np.testing.assert_array_equal(known[name].values, np.concatenate(values))
