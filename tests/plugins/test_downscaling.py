"""Samples of both tiers equal a computation from xarray's arrays of the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.standins import ensure_stand_in
from iobench.errors import FileFormatError, OptionError
from iobench_maelstrom.downscaling.dataset import DownscalingTier1, DownscalingTier2, downscaling

FACTORIES = {1: DownscalingTier1, 2: DownscalingTier2}


@pytest.fixture(scope="session")
def roots(tiny_root):
    return {number: tiny_root(factory()) for number, factory in FACTORIES.items()}


def prepared(root, dataset):
    locator = FileLocator(stand_in=root, cache_dir=root / "cache")
    files = dataset.files(locator)
    return dataset, files, dataset.samples(files, locator)


@pytest.fixture(scope="session")
def tier1(roots):
    return prepared(roots[1], DownscalingTier1())


@pytest.fixture(scope="session")
def tier2(roots):
    return prepared(roots[2], DownscalingTier2())


def opened(files):
    import xarray

    return [xarray.open_dataset(file).load() for file in files]


def merged(files):
    """All files as one, static variables at every time too."""
    import xarray

    return xarray.concat(opened(files), "time", data_vars="all")


def short_copy(source: Path, target: Path, change=None, hours=5, **encoding):
    """Write a few time steps of a file anew."""
    import xarray

    with xarray.open_dataset(source) as data:
        data = data.isel(time=slice(hours)).load()
    if change is not None:
        data = change(data)
    target.parent.mkdir(exist_ok=True)
    data.to_netcdf(target, encoding=dict.fromkeys(data.data_vars, encoding) if encoding else None)
    return target


def user_index(folder, dataset):
    locator = FileLocator(data_dir=folder, cache_dir=folder / "cache")
    return dataset.samples(dataset.files(locator), locator)


def test_a_tier1_sample_is_scored_by_training_means(tier1):
    dataset, files, index = tier1
    train, whole = merged(files[:1]), merged(files)
    for number in (0, 70, 181):
        sample = make_sample(dataset, index.where[number])
        for array, names in (
            ("inputs", ("t2m_in", "z_in", "z_tar")),
            ("targets", ("t2m_tar", "z_tar")),
        ):
            for channel, name in enumerate(names):
                over = "time" if name.startswith("t2m") else None
                expected = (whole[name][number] - train[name].mean(over)) / train[name].std(over)
                np.testing.assert_allclose(sample[array][channel], expected, rtol=2e-6, atol=2e-6)


def test_a_tier2_sample_is_scored_over_time_and_space(tier2):
    dataset, files, index = tier2
    train, whole = merged(files[:1]), merged(files)
    assert len(index.spec["inputs"].channels) == 16
    sample = make_sample(dataset, index.where[100])
    for variable in index.spec:
        for channel, name in enumerate(variable.channels):
            expected = (whole[name][100] - train[name].mean()) / train[name].std()
            np.testing.assert_allclose(
                sample[variable.name][channel], expected, rtol=2e-6, atol=2e-6
            )


def test_moments_of_several_files_are_merged(roots, tmp_path):
    months = ("2016-04", "2016-05", "2018-09")
    source = prepared(roots[1], DownscalingTier1())[1][0]
    for number, month in enumerate(months):
        short_copy(
            source,
            tmp_path / f"downscaling_tier1_{month}.nc",
            lambda data, n=number, m=month: (
                data.assign_coords(time=data.time + (np.datetime64(m, "ns") - data.time[0].values))
                * (1 + n / 50)
            ),
            hours=4 + number,
        )
    index = user_index(tmp_path, dataset := DownscalingTier1())
    whole = merged(sorted(tmp_path.glob("*.nc")))
    assert index.splits == {"train": list(range(15))}
    expected = (whole.t2m_in[14] - whole.t2m_in.mean("time")) / whole.t2m_in.std("time")
    sample = make_sample(dataset, index.where[14])
    np.testing.assert_allclose(sample["inputs"][0], expected, rtol=1e-5, atol=1e-5)


def test_files_without_masks_give_the_first_variant(tier2, tmp_path):
    short_copy(
        tier2[1][0],
        tmp_path / "downscaling_tier2_2016-01.nc",
        lambda data: data.drop_vars(["lsm_in", "fr_land_tar"]),
    )
    index = user_index(tmp_path, DownscalingTier2())
    assert index.spec["inputs"].shape == (15, 96, 120)


def test_splits_are_by_month(tier1, tier2):
    assert {name: len(numbers) for name, numbers in tier2[2].splits.items()} == {
        "train": 48,
        "validation": 48,
        "test": 48,
    }
    index = tier1[2]
    months = {
        name: {index.coordinate[n][:7] for n in numbers} for name, numbers in index.splits.items()
    }
    assert months == {"train": {"2019-04"}, "validation": {"2020-05"}, "test": {"2020-04"}}
    assert index.coordinate[:2] == ["2019-04-01T00", "2019-04-01T12"]


def test_a_constant_variable_becomes_0(tier1, tmp_path):
    flat = short_copy(
        tier1[1][0],
        tmp_path / "downscaling_tier1_2019-04.nc",
        lambda data: data.assign(z_in=data.z_in * 0 + 7),
    )
    index = user_index(flat.parent, dataset := DownscalingTier1())
    assert (make_sample(dataset, index.where[0])["inputs"][1] == 0).all()


def test_the_alias_says_its_tier(roots):
    assert downscaling().name == "maelstrom-downscaling-tier2"
    assert "took tier 2" in downscaling().title
    assert "took tier 1" in downscaling(tier="1").title
    assert "took" not in DownscalingTier1().title
    _, files, _ = prepared(roots[1], downscaling(tier="1", months="2020-04-01"))
    assert [file.name for file in files] == ["downscaling_tier1_2020-04.nc"]


def test_what_a_stand_in_lacks_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"holds only downscaling_tier1_2019-04\.nc, "):
        ensure_stand_in(DownscalingTier1(months="2016-04"), tmp_path / "s", tiny=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.where(d.lat < 50), "'t2m_in' has missing values"),
    ],
)
def test_another_schema_is_named(tier1, tmp_path, change, message):
    short_copy(tier1[1][0], tmp_path / "downscaling_tier1_2019-04.nc", change)
    with pytest.raises(FileFormatError, match=message) as raised:
        user_index(tmp_path, DownscalingTier1())
    assert "downscaling_tier1_2019-04.nc" in str(raised.value)
