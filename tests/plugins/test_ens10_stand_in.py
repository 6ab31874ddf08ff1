"""The stand-in has the layout of ENS-10's files, and its bytes follow from the seed alone."""

from __future__ import annotations

import eccodes
import msgspec
import numpy as np
import pytest

from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.ens10.files import SURFACE_FIELDS

NAMES = [variable.name for variable in SURFACE_FIELDS]


def test_target_is_the_field_at_start_plus_48_hours(tiny):
    import netCDF4

    with netCDF4.Dataset(tiny.files[-1]) as file:
        times = netCDF4.num2date(file["time"][:], file["time"].units)
        assert [time.strftime("%Y%m%d%H") for time in times] == [
            "2015010300", "2015010600", "2016010300", "2016010600",
        ]  # fmt: skip
        assert file["t2m"].dimensions == ("time", "latitude", "longitude")
        assert file["t2m"].chunking() == "contiguous"
        for number in range(4):
            np.testing.assert_array_equal(tiny.sample(number)["t2m"], file["t2m"][number])


@pytest.fixture(scope="module")
def real_size(tmp_path_factory):
    """One member of one forecast on the real grid, as the profile's stand-in has it."""
    path = tmp_path_factory.mktemp("real") / "output"
    default = Ens10().stand_in(scale=None, tiny=False, seed=0)
    plan = msgspec.structs.replace(default, years=(2016,), n_members=1)
    Ens10().write(plan, {"date": "0101"}, path)
    assert path.stat().st_size == 11 * 519948
    return path


def test_messages_have_the_real_headers(real_size):
    expected = {
        "edition": 1, "centre": 98, "class": "od", "type": "pf", "stream": "enfo",
        "localDefinitionNumber": 1, "perturbationNumber": 1, "numberOfForecastsInEnsemble": 11,
        "dataDate": 20160101, "dataTime": 0, "step": 48, "levtype": "sfc", "level": 0,
        "packingType": "grid_simple", "bitsPerValue": 16, "gridType": "regular_ll",
        "Ni": 720, "Nj": 361, "iDirectionIncrementInDegrees": 0.5,
        "latitudeOfFirstGridPointInDegrees": 90.0, "latitudeOfLastGridPointInDegrees": -90.0,
        "longitudeOfFirstGridPointInDegrees": 0.0, "longitudeOfLastGridPointInDegrees": 359.5,
    }  # fmt: skip
    with real_size.open("rb") as file:
        handle = eccodes.codes_grib_new_from_file(file)
    found = {key: eccodes.codes_get(handle, key, type(value)) for key, value in expected.items()}
    eccodes.codes_release(handle)
    assert found == expected
