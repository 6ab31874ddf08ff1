"""The stand-in of A1 has the real files' schema, deterministic bytes and plausible values."""

from __future__ import annotations

from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest

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


@pytest.mark.parametrize("size", ["5gb", "5tb"])
def test_schema_is_the_real_files(request, size):
    made = request.getfixturevalue(f"yr_{size}").files[0]
    dims, variables = described(made)
    real_dims, real_variables = described(REAL)
    assert dims == real_dims
    assert variables == real_variables


def test_names_and_units_are_the_real_ones(yr_5gb):
    with netCDF4.Dataset(REAL) as real, netCDF4.Dataset(yr_5gb.files[0]) as made:
        for name in ("predictor", "predictor_units", "static_predictor", "static_predictor_units"):
            assert made[name][:].tolist() == real[name][:].tolist()


def test_coordinates_are_those_of_the_real_crop(yr_5gb):
    with netCDF4.Dataset(REAL) as real, netCDF4.Dataset(yr_5gb.files[0]) as made:
        assert made["time"][...] == real["time"][...]
        np.testing.assert_array_equal(made["leadtime"][:5], real["leadtime"][:])
        for name in ("x", "y"):
            length = real.dimensions[name].size
            np.testing.assert_allclose(made[name][:length], real[name][:], atol=0.2)
        for name in ("latitude", "longitude"):
            np.testing.assert_allclose(made[name][:6, :4], real[name][:], atol=1e-4)
