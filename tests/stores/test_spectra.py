"""Spectra before and after: waves, noise and rounding whose powers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from iobench.coordinates import Coordinate, Meteorology
from iobench.samples import SampleSpec, Variable
from iobench.stores.rounding import round_mantissa
from iobench.stores.spectra import (
    SpectraOfSamples,
    band_edges,
    compare_fields,
    grid_of,
    merge_spectra,
)

RNG = np.random.default_rng
BOTH = pytest.mark.parametrize("is_periodic", [True, False])


def band_of(wavelength):
    """Return the band that a wavelength of so many points is in."""
    return math.floor(2 * math.log2(wavelength / 2) + 1e-9)


def red(shape, *, seed=1, mean=300.0, deviation=4.0, slope=1.5):
    """Return a field whose rows have less power the shorter the waves are, as weather has."""
    white = np.fft.rfft2(RNG(seed).normal(size=shape))
    wave = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    wave[0, 0] = 1.0
    field = np.fft.irfft2(white * wave**-slope, shape)
    return (mean + deviation * (field - field.mean()) / field.std()).astype("f4")


NO_GRID = "no two of its dimensions are known to make a grid"


@pytest.mark.parametrize("n_waves", [1, 5, 40, 64])
def test_a_wave_along_rows_has_its_power_at_its_length(n_waves) -> None:
    wave = np.cos(2 * np.pi * n_waves * np.arange(128) / 128 + np.arange(20)[:, None] / 7)
    wave = wave.astype("f4")
    told = merge_spectra([compare_fields(wave, wave / 2, is_periodic=True)])
    band = band_of(128 / n_waves)
    assert told["power"][band] == pytest.approx(1)
    assert told["ratio"][band] == pytest.approx(0.25)
    assert told["error"][band] == pytest.approx(0.25)
    assert [n for n, ratio in enumerate(told["ratio"]) if ratio is not None] == [band]
    assert told["largest_deviation"] == pytest.approx(0.75)
    assert told["deviates_at"][0] <= 128 / n_waves + 1e-9 < told["deviates_at"][1]
    assert told["kept_above"] is None  # the only scale there is


@pytest.mark.parametrize(("m", "n"), [(0, 3), (7, 0), (9, 30), (89, 0)])
def test_a_cosine_of_an_area_has_its_power_at_its_length(m, n) -> None:
    rows, columns = 90, 100
    one = np.cos(np.pi * m * (2 * np.arange(rows) + 1) / (2 * rows))
    two = np.cos(np.pi * n * (2 * np.arange(columns) + 1) / (2 * columns))
    field = 5 + one[:, None] * two
    told = merge_spectra([compare_fields(field, field, is_periodic=False)])
    band = max(0, band_of(2 / math.hypot(m / rows, n / columns)))
    assert told["power"][band] == pytest.approx(1)
    assert told["kind"] == "cosine"


@BOTH
def test_powers_add_up_to_the_variance(is_periodic) -> None:
    field = RNG(0).normal(10, 3, (61, 80))
    told = compare_fields(field, field, is_periodic=is_periodic)
    assert sum(told["power"]) == pytest.approx(1)
    assert told["stored"] == told["power"]
    assert sum(told["error"]) == 0


@BOTH
def test_noise_is_told_by_its_level_at_every_scale(is_periodic) -> None:
    field, level = red((128, 256)).astype("f8"), 0.6
    noisy = field + RNG(2).normal(0, level, field.shape)
    told = compare_fields(field, noisy, is_periodic=is_periodic)
    variance = (field - (field.mean(axis=1, keepdims=True) if is_periodic else field.mean())).var()
    share = level**2 / variance
    assert sum(told["error"]) == pytest.approx(share, rel=0.05)
    white = compare_fields(noisy - field, noisy - field, is_periodic=is_periodic)
    for error, power in zip(told["error"], white["power"], strict=True):
        assert error == pytest.approx(power * sum(told["error"]), rel=1e-6)
    short = merge_spectra([told])
    assert short["ratio"][0] > 2  # there is more noise than field
    assert 2 < short["kept_above"] < 256


@BOTH
def test_rounding_that_hides_short_waves_is_said(is_periodic) -> None:
    field = red((200, 256), slope=2.5)
    kept = []
    for bits in (4, 6, 8, 12, 20):
        rounded = round_mantissa(field, bits)
        told = merge_spectra([compare_fields(field, rounded, is_periodic=is_periodic)])
        kept.append(math.inf if told["kept_above"] is None else told["kept_above"])
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 10
    assert kept[-1] == 0


@BOTH
def test_what_is_kept_whole_is_said_to_be(is_periodic) -> None:
    field = (np.round(red((64, 64)) * 4) / 4).astype("f4")
    rounded = round_mantissa(field, 12)
    np.testing.assert_array_equal(field, rounded)
    told = merge_spectra([compare_fields(field, rounded, is_periodic=is_periodic)])
    assert (told["kept_above"], told["largest_deviation"]) == (0, 0)
    assert set(told["ratio"]) <= {1.0, None}


@BOTH
def test_waves_that_were_smoothed_away_are_missed(is_periodic) -> None:
    field = red((64, 128), slope=2.0)
    spectrum = np.fft.rfft2(field)
    wave = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.rfftfreq(128))
    spectrum[wave > 1 / 8] = 0  # shorter than 8 points
    smooth = np.fft.irfft2(spectrum, field.shape).astype("f4")
    told = merge_spectra([compare_fields(field, smooth, is_periodic=is_periodic)])
    assert told["ratio"][0] < 0.05
    assert 8 <= told["kept_above"] < 64


def test_power_below_the_numbers_own_rounding_is_none() -> None:
    """A wave of float32: what else there is comes of its rounding, and nothing is lost of it."""
    wave = (280 + 10 * np.cos(2 * np.pi * np.arange(256) / 256) * np.ones((32, 1))).astype("f4")
    told = merge_spectra([compare_fields(wave, wave.astype("f2"), is_periodic=True)])
    assert told["kept_above"] == 0
    assert sum(ratio is not None for ratio in told["ratio"]) == 1


UNKNOWN = {
    "its fields are constant": np.full((20, 20), 3.0),
    "its rows are constant to the precision of its numbers": np.arange(20.0)[:, None] * np.ones(20),
    "its fields have missing values": np.where(np.eye(20) > 0, np.nan, 1.0),
    "its fields have 2 different values, as classes do": np.eye(20) * 0.7,
    "its powers overflow": RNG(0).normal(0, 1e300, (20, 20)),
}


@pytest.mark.parametrize("reason", UNKNOWN)
def test_where_a_spectrum_makes_no_sense_it_is_said_why(reason) -> None:
    field = UNKNOWN[reason]
    back = np.where(np.isfinite(field), field * 0.99, field)
    found = compare_fields(field, back, is_periodic=True)
    assert found == {"unknown": reason}
    assert merge_spectra([found, found]) == {"unknown": reason}


def test_a_mask_of_which_nothing_is_lost_has_a_spectrum() -> None:
    told = compare_fields(np.eye(20), np.eye(20), is_periodic=False)
    assert sum(told["error"]) == 0


def test_fields_that_have_none_are_counted() -> None:
    known = compare_fields(red((32, 32)), red((32, 32)), is_periodic=False)
    told = merge_spectra([known, {"unknown": "its fields are constant"}, known])
    assert (told["n_fields"], told["n_left_out"]) == (2, 1)
    assert merge_spectra([]) == {"unknown": "no sample was compared"}
    assert band_edges(2) == [2, pytest.approx(2 * math.sqrt(2)), 4]


def around(length, step, units="degrees_east"):
    values = np.arange(length) * step
    return Meteorology(("time",), (Coordinate("lon", ("lon",), values, {"units": units}),))


@pytest.mark.parametrize(
    ("meteorology", "is_periodic"),
    [
        (around(72, 5.0), True),
        (around(72, -5.0), True),
        (around(72, 4.0), False),
        (around(72, 5.0, "km"), False),
        (around(71, 5.0), False),
        (Meteorology(), False),
    ],
)
def test_rows_go_around_the_globe_where_their_longitudes_say_so(meteorology, is_periodic) -> None:
    variable = Variable("t", (3, 40, 72), "<f4", ("level", "lat", "lon"))
    grid = grid_of(variable, meteorology)
    assert (grid.rows, grid.columns, grid.is_periodic) == (1, 2, is_periodic)


def test_cf_says_what_a_name_does_not() -> None:
    coordinates = (
        Coordinate("a", ("a",), np.arange(40.0), {"axis": "Y"}),
        Coordinate("b", ("b",), np.arange(72.0), {"standard_name": "projection_x_coordinate"}),
    )
    variable = Variable("t", (40, 72), "<f4", ("a", "b"))
    grid = grid_of(variable, Meteorology(("time",), coordinates))
    assert (grid.rows, grid.columns) == (0, 1)
    assert grid_of(variable, Meteorology()) == NO_GRID


@pytest.mark.parametrize(
    ("shape", "dims", "reason"),
    [
        ((137,), ("level",), NO_GRID),
        ((), (), NO_GRID),
        ((20, 30), ("time", "station"), NO_GRID),
        ((8, 300), ("y", "x"), "fewer than 16 points"),
        ((5000,), ("values",), NO_GRID),
    ],
)
def test_what_is_no_grid_is_said(shape, dims, reason) -> None:
    assert reason in grid_of(Variable("t", shape, "<f4", dims), Meteorology())


def test_few_samples_are_compared_a_field_of_each() -> None:
    spec = SampleSpec((Variable("t", (10, 32, 40), "<f4", ("level", "y", "x")),))
    chosen = SpectraOfSamples(spec, spec, ["t"], range(5, 1005), Meteorology())
    numbers = [number for number in range(2000) if number in chosen]
    assert (len(numbers), numbers[0], chosen.n_samples) == (8, 5, 8)
    values = np.stack([red((32, 40), seed=level) for level in range(10)])
    found = []
    for number in numbers:
        for level in range(10):
            back = np.where(np.arange(10)[:, None, None] == level, values * 1.5, values)
            told = chosen.compare(number, {"t": values}, {"t": back.astype("f4")})["t"]
            if sum(told["error"]):
                found.append(level)
    assert found == [0, 1, 2, 3, 5, 6, 7, 8]
