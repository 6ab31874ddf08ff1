"""Columns of the NetCDF pairs are what xarray and numpy make of them; wrong input is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray

from iobench.datasets.contract import make_sample
from iobench.errors import FileFormatError, OptionError
from iobench_maelstrom.radiation.dataset import Radiation
from iobench_maelstrom.radiation.files import INPUTS, POSITIONS

N_COLUMNS = 128
TWO = {"patch": "0,10"}


@pytest.fixture(scope="module")
def tiny(tiny_of):
    return tiny_of(Radiation)


@pytest.fixture
def pair(tiny, tmp_path):
    """A copy of one pair of files, to be spoiled: a function that indexes it, and the files."""
    dataset = Radiation(patch="0")
    files = [Path(shutil.copy(file, tmp_path)) for file in dataset.files(tiny.locator)]
    return (lambda: dataset.samples(files, tiny.locator)), *files


def sources(tiny, patch):
    dataset = Radiation(patch=str(patch))
    return [xarray.load_dataset(file) for file in dataset.files(tiny.locator)]


@pytest.mark.parametrize(("number", "patch"), [(0, 0), (127, 0), (128, 10), (255, 10)])
def test_groups_hold_the_variables_in_order(tiny, number, patch):
    dataset, index = tiny.open(**TWO)
    sample = make_sample(dataset, index.where[number])
    inputs, _ = sources(tiny, patch)
    column = inputs.isel(column=number % N_COLUMNS)
    scalars = [np.atleast_1d(column[name]) for name in (
        "skin_temperature", "cos_solar_zenith_angle", "sw_albedo", "sw_albedo_direct",
        "lw_emissivity", "solar_irradiance",
    )]  # fmt: skip
    np.testing.assert_array_equal(sample["sca_inputs"], np.concatenate(scalars))
    levels = []
    for name, variable in INPUTS.items():
        if variable.dims == ("level",):
            levels.append(column[name].values[:, None])
        elif name == "aerosol_mmr":
            levels.append(column[name].transpose("level", "aerosol_type").values)
    np.testing.assert_array_equal(sample["col_inputs"], np.concatenate(levels, axis=1))
    np.testing.assert_array_equal(sample["hl_inputs"][:, 0], column["temperature_hl"])
    np.testing.assert_array_equal(sample["hl_inputs"][:, 1], column["pressure_hl"])
    np.testing.assert_array_equal(sample["pressure_hl"][:, 0], column["pressure_hl"])
    np.testing.assert_array_equal(sample["inter_inputs"][:, 0], column["overlap_param"])


def test_fluxes_and_heating_rates(tiny):
    dataset, index = tiny.open(**TWO)
    sample = make_sample(dataset, index.where[130])
    column = sources(tiny, 10)[1].isel(column=2).astype("f8")
    for band in ("sw", "lw"):
        net = column[f"flux_dn_{band}"].values - column[f"flux_up_{band}"].values
        expected = -9.80665 / 1004 * 86400 * np.diff(net) / np.diff(column["pressure_hl"])
        np.testing.assert_allclose(sample[f"hr_{band}"], expected, rtol=1e-3, atol=1e-2)
        np.testing.assert_array_equal(sample[f"flux_up_{band}"], column[f"flux_up_{band}"])


def test_raw_inputs_are_the_variables_with_their_positions(tiny):
    dataset, index = tiny.open(**TWO, raw_inputs="true")
    sample = make_sample(dataset, index.where[200])
    inputs, _ = sources(tiny, 10)
    column = inputs.isel(column=200 - N_COLUMNS)
    for name in (*INPUTS, *POSITIONS):
        np.testing.assert_array_equal(sample[name], column[name].values)
    assert sum(v.nbytes for v in index.spec if v.role == "input") == 4 * 4130


def test_gathered_fluxes_and_heating_rates_in_other_units(tiny):
    dataset, index = tiny.open(**TWO, gather_fluxes="true", hr_units="K s-1")
    sample = make_sample(dataset, index.where[3])
    plain, index = tiny.open(**TWO)
    expected = make_sample(plain, index.where[3])
    for band in ("sw", "lw"):
        fluxes = np.stack([expected[f"flux_{way}_{band}"] for way in ("dn", "up")], axis=-1)
        np.testing.assert_array_equal(sample[band], fluxes)
        np.testing.assert_allclose(expected[f"hr_{band}"], 86400 * sample[f"hr_{band}"], rtol=1e-6)
    _, index = tiny.open(**TWO, heating_rate="false")
    assert not {"hr_sw", "hr_lw"} & set(index.spec.names)


def test_samples_are_in_order_of_patch_and_named(tiny):
    _, index = tiny.open(subset="tier-1")
    assert len(index) == 8 * N_COLUMNS
    assert index.where[2 * N_COLUMNS + 1] == index.where[-6 * N_COLUMNS + 1] == (2, 1)
    assert index.coordinate[2 * N_COLUMNS + 1] == "20200101 step 0 patch 4 column 1"
    assert index.splits == {"train": range(8 * N_COLUMNS)}
    with pytest.raises(IndexError):
        _ = index.where[len(index)]


def test_dates_of_2019_validate_and_test(tiny):
    dataset = Radiation(date="20190131,20190531,20190829,20200131", patch="0")
    files = Radiation(patch="0").files(tiny.locator)
    index = dataset.samples([files[0]] * 4 + [files[1]] * 4, tiny.locator)
    assert index.splits["test"] == range(128, 256)
    assert list(index.splits["validation"]) == [*range(128), *range(256, 384)]
    assert index.splits["train"] == range(384, 512)


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, lambda d: d.rename(column="col"), r"rad4NN.*lacks the dimension 'column'"),
        (1, lambda d: d.drop_vars("flux_up_lw"), r"triplecloud.*lacks the variable 'flux_up_lw'"),
        (0, lambda d: d.isel(level=slice(60)), r"'q' is float32 .*'level': 60.*expected float32"),
        (0, lambda d: d.assign(q_ice=d.q_ice.astype("f8")), r"'q_ice' is .*expected float32"),
        (1, lambda d: d.isel(column=slice(100)), r"'column' is 100, expected 128"),
    ],
)
def test_another_schema_is_named(pair, number, change, message):
    samples, *files = pair
    made = change(xarray.load_dataset(files[number]))
    files[number].unlink()
    made.to_netcdf(files[number])
    with pytest.raises(FileFormatError, match=message):
        samples()


def test_files_that_differ_among_themselves_are_named(tiny, pair, tmp_path):
    _, inputs, outputs = pair
    turned = xarray.load_dataset(inputs).transpose("column", "level", "aerosol_type", ...)
    turned.to_netcdf(tmp_path / "turned.nc")
    files = [inputs, tmp_path / "turned.nc", outputs, outputs]
    with pytest.raises(FileFormatError, match=r"turned\.nc: variable 'aerosol_mmr'.* as in .*rad4"):
        Radiation(patch="0,2").samples(files, tiny.locator)


def test_stand_in_is_refused_for_what_it_does_not_hold():
    with pytest.raises(OptionError, match=r"rad4NN_outputs_.* was not found.*holds only rad4NN"):
        Radiation(dataset="mcica").stand_in_files(scale=None, tiny=True, seed=0)
    with pytest.raises(OptionError, match=r"rad4NN_inputs_2020010100_0c1\.nc was not found"):
        Radiation(patch="1").stand_in_files(scale=None, tiny=True, seed=0)
