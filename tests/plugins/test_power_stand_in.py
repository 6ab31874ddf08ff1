"""The stand-ins of application A6 have its files' layout, and their bytes follow from the seed."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from iobench_maelstrom.power.weather import weather_pressure_level

BUCKET = "url/https/object-store.os-api.cci1.ecmwf.int/maelstrom-ap6"


@pytest.mark.parametrize(
    ("prefix", "levels"), [("ml", "model"), ("pl", "pressure"), ("sfc", "surface")]
)
def test_weather_is_laid_out_as_grib_to_netcdf_writes(tiny_root, prefix, levels):
    import netCDF4

    dataset = weather_pressure_level(levels=levels)
    level_type = dataset.level_type
    with netCDF4.Dataset(tiny_root(dataset) / BUCKET / f"{prefix}_20190102_12.nc") as file:
        file.set_auto_maskandscale(False)
        assert (file.data_model, file.Conventions) == ("NETCDF3_64BIT_OFFSET", "CF-1.6")
        since = datetime.datetime(2019, 1, 2, 12) - datetime.datetime(1900, 1, 1)
        first = since // datetime.timedelta(hours=1)
        assert file["time"][:].tolist() == list(range(first, first + 49))
        assert file["time"].units == "hours since 1900-01-01 00:00:00.0"
        assert set(file.variables) - set(file.dimensions) == {v.name for v in level_type.variables}
        for variable in level_type.variables:
            packed = file[variable.name]
            assert (packed.dtype, packed.dimensions) == (np.dtype("i2"), level_type.dims)
            assert packed.units == variable.units
            assert packed.missing_value == packed._FillValue == -32767
            assert not (packed[:] == -32767).any()
