"""A sample of A1 is a patch as its training makes it, read from its own rows only."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench_maelstrom.yr.dataset import PatchGrid, Yr
from iobench_maelstrom.yr.files import (
    PREDICTORS,
    STATIC_PREDICTORS,
)

REAL = Path(__file__).parents[1] / "data" / "maelstrom-yr"
REAL_FILES = sorted((REAL / "air_temperature" / "5GB").glob("*.nc"))


def indexed(files, folder, **options):
    dataset = Yr(**options)
    return dataset, dataset.samples(files, FileLocator(data_dir=folder, cache_dir=folder))


def training_samples(file, patch, *, crop=None, predict_diff=False):
    """What the training code makes of a file, by its description: whole fields, then patches."""
    data = xarray.open_dataset(file, decode_times=False)
    (y0, y1), (x0, x1) = crop or ((0, data.sizes["y"]), (0, data.sizes["x"]))
    data = data.isel(y=slice(y0, y1), x=slice(x0, x1))
    n_y, n_x = y1 - y0, x1 - x0
    seconds = data.leadtime.values
    features = [seconds[:, None, None], np.arange(n_x)[None, None], np.arange(n_y)[None, :, None]]
    statistics = [(each.mean, each.std) for each in (*PREDICTORS, *STATIC_PREDICTORS)]
    statistics += [(values.mean(), values.std()) for values in features]
    static = np.broadcast_to(data.static_predictors.values, (len(seconds), n_y, n_x, 6))
    features = [np.broadcast_to(values, (len(seconds), n_y, n_x))[..., None] for values in features]
    inputs = np.concatenate([data.predictors.values, static, *features], axis=-1)
    targets = data.target_mean.values[..., None]
    if predict_diff:
        targets = targets - inputs[..., 2:3]
    mean, std = np.array(statistics).T
    inputs = (inputs - mean) / std
    for lead in range(len(seconds)):
        for y in range(0, n_y - patch + 1, patch):
            for x in range(0, n_x - patch + 1, patch):
                inside = (slice(lead, lead + 1), slice(y, y + patch), slice(x, x + patch))
                yield inputs[inside], targets[inside]


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize(
    ("options", "crop"),
    [
        ({}, None),
        ({"patch": "100", "predict_diff": "true"}, None),
        ({"patch": "90", "y_range": "50,450", "x_range": "15,300"}, ((50, 450), (15, 300))),
    ],
)
def test_samples_equal_those_of_training(yr_5tb, tmp_path, options, crop):
    dataset, index = indexed(yr_5tb.files[1:2], tmp_path, **options)
    expected = list(
        training_samples(
            yr_5tb.files[1],
            int(options.get("patch", 256)),
            crop=crop,
            predict_diff="predict_diff" in options,
        )
    )
    assert len(index) == len(expected)
    for where, (inputs, targets) in zip(index.where, expected, strict=True):
        sample = make_sample(dataset, where)
        np.testing.assert_allclose(sample["predictors"], inputs, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sample["targets"], targets, rtol=1e-6, atol=1e-6)


def test_real_files_equal_what_netcdf4_reads(tmp_path):
    dataset, index = indexed(REAL_FILES, tmp_path, size="5GB", probabilistic_target="true")
    assert len(REAL_FILES) == 2
    assert len(index) == 10
    for number, where in enumerate(index.where):
        arrays = dataset.decode(dataset.read(where), where)
        with netCDF4.Dataset(REAL_FILES[number // 5]) as file:
            file.set_auto_mask(False)
            for name in ("predictors", "target_mean", "target_std"):
                np.testing.assert_array_equal(arrays[name], file[name][number % 5])
            np.testing.assert_array_equal(arrays["static_predictors"], file["static_predictors"])
            assert dataset.coordinates(where)[0] == file["leadtime"][number % 5]


def test_reads_only_the_rows_of_the_patch(yr_5tb, tmp_path):
    dataset, index = indexed(yr_5tb.files, tmp_path)
    nbytes = sum(len(part) for part in dataset.read(index.where[5]))
    rows = 256 * 256 * 4 * 8
    static = (255 * 384 + 256) * 4 * 6  # rows of 6 KiB with 3 KiB between them
    target = (255 * 384 + 256) * 4
    assert rows <= nbytes <= rows + static + target
    assert nbytes < 0.08 * yr_5tb.files[0].stat().st_size


def test_coordinates_and_splits(yr_5tb, tmp_path):
    _, index = indexed(yr_5tb.files, tmp_path)
    assert index.coordinate[13] == "20200902T09Z +0h y=256 x=0"
    assert list(index.splits["train"]) == list(range(24))
    assert list(index.splits["test"]) == list(range(24, 48))
    assert index.where[-1] == index.where[47]
    assert index.where[46:] == [index.where[46], index.where[47]]
    with pytest.raises(IndexError):
        index.where[48]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 30), st.integers(1, 30), st.data())
def test_patches_lie_side_by_side(n_files, n_leads, n_y, n_x, data):
    patch = data.draw(st.integers(1, min(n_y, n_x)))
    y_first, x_first = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    y_range, x_range = (y_first, y_first + n_y), (x_first, x_first + n_x)
    leadtimes = tuple(map(float, range(n_leads)))
    grid = PatchGrid(("20200301T03Z",) * n_files, leadtimes, y_range, x_range, (patch, patch))
    found = [grid.patch(number) for number in range(math.prod(grid.counts))]
    assert len(set(found)) == len(found) == n_files * n_leads * (n_y // patch) * (n_x // patch)
    for each in found:
        assert ((each.y - y_first) % patch, (each.x - x_first) % patch) == (0, 0)
        assert y_first <= each.y <= y_first + n_y - patch
        assert x_first <= each.x <= x_first + n_x - patch
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch": "5"}, "expected 1 to 4, or whole"),
        ({"x_range": "0,5", "y_range": "0,4"}, "x_range 0,5: expected a range inside 0,4"),
    ],
)
def test_patches_that_do_not_fit(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        indexed(REAL_FILES, tmp_path, size="5GB", **options)


def test_dates_asked_for_are_all_needed(tmp_path):
    locator = FileLocator(data_dir=REAL, cache_dir=tmp_path)
    assert Yr(size="5GB").files(locator) == REAL_FILES
    expected = "https://.*/maelstrom-ap1/air_temperature/5GB/20200303T15Z.nc not found in"
    with pytest.raises(MissingFileError, match=expected):
        Yr(size="5GB", dates="20200301,20200303").files(locator)
    with pytest.raises(MissingFileError, match=r"5TB/20200305T03Z\.nc and 719 more"):
        Yr(size="5TB").files(FileLocator(data_dir=tmp_path, cache_dir=tmp_path))


def test_other_channels_are_another_schema(tmp_path):
    file = tmp_path / "other.nc"
    shutil.copyfile(REAL_FILES[0], file)
    with netCDF4.Dataset(file, "a") as opened:
        opened["predictor"][3] = "dew_point_2m"
    with pytest.raises(FileFormatError, match=r"predictor is .*dew_point_2m, .*bias_yes"):
        indexed([file], tmp_path, size="5GB")
