"""Stand-ins have the layout of the published files: dimensions, attributes, headers."""

from __future__ import annotations

import datetime
from pathlib import Path

import eccodes
import h5py
import netCDF4
import numpy as np
import pytest

from iobench.datasets import StandIn
from iobench.registry import find_dataset

REAL = Path(__file__).parents[1] / "data/maelstrom-yr/air_temperature/5GB/20200301T03Z.nc"


def described(path):
    """Everything of a file but its numbers and the lengths of what is cropped."""
    with netCDF4.Dataset(path) as file, h5py.File(path) as raw:
        found = {}
        for name, variable in file.variables.items():
            attributes = {key: np.array(variable.getncattr(key)) for key in variable.ncattrs()}
            layout = raw[name].id.get_create_plist().get_layout()
            found[name] = (
                str(variable.dtype),
                variable.dimensions,
                {key: (value.dtype.kind, value.tolist()) for key, value in attributes.items()},
                layout == h5py.h5d.CONTIGUOUS,
            )
        return set(file.dimensions), found


@pytest.mark.long
@pytest.mark.parametrize("size", ["5GB", "5TB"])
def test_yr_has_the_schema_of_real_files(prepared, size):
    _, files, _ = prepared("maelstrom-yr", size=size)
    (real_dims, real), (dims, variables) = described(REAL), described(files[0])
    assert dims == real_dims
    unread = {"altitude", "land_area_fraction", "predictor_units", "static_predictor_units"}
    assert variables.keys() == real.keys() - unread
    for name, (dtype, own_dims, attributes, is_contiguous) in variables.items():
        assert (dtype, own_dims, is_contiguous) == (*real[name][:2], real[name][3]), name
        assert attributes == {key: real[name][2][key] for key in attributes}, name


@pytest.mark.long
def test_yr_has_names_units_and_coordinates_of_the_real_crop(prepared):
    _, files, _ = prepared("maelstrom-yr", size="5GB")
    with netCDF4.Dataset(REAL) as real, netCDF4.Dataset(files[0]) as made:
        for name in ("predictor", "static_predictor"):
            assert made[name][:].tolist() == real[name][:].tolist()
        assert made["time"][...] == real["time"][...]
        np.testing.assert_array_equal(made["leadtime"][:5], real["leadtime"][:])
        for name in ("x", "y"):
            length = real.dimensions[name].size
            np.testing.assert_allclose(made[name][:length], real[name][:], atol=0.2)


def test_messages_of_ens10_have_the_real_headers(tmp_path):
    dataset = find_dataset("maelstrom-ens10")
    plan = StandIn(seed=0, keys=(), n_steps=1, lengths={"number": 1})
    dataset.write(plan, {"date": "0101"}, tmp_path / "output")
    assert (tmp_path / "output").stat().st_size == 11 * 519948
    expected = {
        "edition": 1, "centre": 98, "class": "od", "type": "pf", "stream": "enfo",
        "localDefinitionNumber": 1, "perturbationNumber": 1, "numberOfForecastsInEnsemble": 11,
        "dataDate": 20160101, "dataTime": 0, "step": 48, "levtype": "sfc", "level": 0,
        "packingType": "grid_simple", "bitsPerValue": 16, "gridType": "regular_ll",
        "Ni": 720, "Nj": 361, "iDirectionIncrementInDegrees": 0.5,
        "latitudeOfFirstGridPointInDegrees": 90.0, "latitudeOfLastGridPointInDegrees": -90.0,
        "longitudeOfFirstGridPointInDegrees": 0.0, "longitudeOfLastGridPointInDegrees": 359.5,
    }  # fmt: skip
    with (tmp_path / "output").open("rb") as file:
        handle = eccodes.codes_grib_new_from_file(file)
    found = {key: eccodes.codes_get(handle, key, type(value)) for key, value in expected.items()}
    eccodes.codes_release(handle)
    assert found == expected


@pytest.mark.parametrize(
    ("prefix", "levels"), [("ml", "model"), ("pl", "pressure"), ("sfc", "surface")]
)
def test_weather_is_laid_out_as_grib_to_netcdf_writes(prepared, prefix, levels):
    dataset, files, _ = prepared("maelstrom-weather-pressure-level", levels=levels)
    [path] = [file for file in files if file.name == f"{prefix}_20190102_12.nc"]
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        assert (file.data_model, file.Conventions) == ("NETCDF3_64BIT_OFFSET", "CF-1.6")
        since = datetime.datetime(2019, 1, 2, 12) - datetime.datetime(1900, 1, 1)
        first = since // datetime.timedelta(hours=1)
        assert file["time"][:].tolist() == list(range(first, first + 49))
        assert file["time"].units == "hours since 1900-01-01 00:00:00.0"
        level_type = dataset.level_type
        fields = (*level_type.fields, *level_type.assumed)
        assert set(file.variables) - set(file.dimensions) == {v.name for v in fields}
        for variable in fields:
            packed = file[variable.name]
            assert (packed.dtype, packed.dimensions) == (np.dtype("i2"), level_type.dims)
            assert packed.units == variable.units
            assert packed.missing_value == packed._FillValue == -32767
            assert not (packed[:] == -32767).any()
