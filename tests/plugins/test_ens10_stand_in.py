"""The stand-in has the layout of ENS-10's files, and its bytes follow from the seed alone."""

from __future__ import annotations

import eccodes
import msgspec
import numpy as np
import pytest

from iobench.datasets.grib_samples import index_grib
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.ens10.files import SURFACE_FIELDS

NAMES = [variable.name for variable in SURFACE_FIELDS]


def test_cfgrib_decodes_names_dims_and_order(decoded):
    assert list(decoded[0].data_vars) == NAMES
    assert dict(decoded[0].sizes) == {
        "number": 3, "time": 2, "step": 3, "surface": 1, "latitude": 91, "longitude": 180,
    }  # fmt: skip
    assert decoded[0]["t2m"].dims[:4] == ("number", "time", "step", "surface")
    assert decoded[0].number.values.tolist() == [1, 2, 3]
    assert (decoded[0].step.values / np.timedelta64(1, "h")).tolist() == [0, 24, 48]
    assert [str(time)[:10] for time in decoded[1].time.values] == ["2015-01-04", "2016-01-04"]


def test_messages_follow_year_step_member_parameter(tiny):
    index = index_grib(tiny.files[:1], cache_dir=tiny.locator.cache_dir)
    order = [
        (date, step, member, variable.param_id)
        for date in (20150101, 20160101)
        for step in (0, 24, 48)
        for member in (1, 2, 3)
        for variable in SURFACE_FIELDS
    ]
    columns = (index[key].tolist() for key in ("dataDate", "step", "number", "paramId"))
    assert list(zip(*columns, strict=True)) == order
    assert set(index["bitsPerValue"].tolist()) == {16}


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
