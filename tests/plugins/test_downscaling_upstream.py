"""The real plugin, run on our stand-in without a network, gives the arrays our reader decodes."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench_maelstrom.downscaling.dataset import (
    DownscalingTier1,
    DownscalingTier2,
    downscaling,
)

pytest.importorskip(
    "climetlab_maelstrom_downscaling",
    reason="the real plugin climetlab-maelstrom-downscaling is not installed",
)
pytestmark = [
    pytest.mark.usefixtures("no_network"),
    # xarray's own, on defaults of open_mfdataset that will change
    pytest.mark.filterwarnings("ignore:In a future version of xarray:FutureWarning"),
]
FACTORIES = {1: DownscalingTier1, 2: DownscalingTier2}
VALIDATION = ("2020-05", "2020-07", "2020-08")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def roots(tiny_root):
    return {number: tiny_root(factory()) for number, factory in FACTORIES.items()}


def through_the_plugin(name, mirror, cache, **options):
    """Load through the plugin, in one thread: it opens files in several, netCDF4 fails at times."""
    import climetlab
    import dask
    from climetlab.mirrors.directory_mirror import DirectoryMirror

    with (
        dask.config.set(scheduler="synchronous"),
        climetlab.settings.temporary("cache-directory", str(cache)),
        climetlab.settings.temporary("check-out-of-date-urls", False),
        DirectoryMirror(path=str(mirror)),
    ):
        return climetlab.load_dataset(name, **options).to_xarray().load()


def assert_equal(dataset, locator, real):
    """Compare every variable of every time step; the plugin repeats static ones over time."""
    index = dataset.samples(dataset.files(locator), locator)
    assert [str(time)[:13] for time in real.time.values] == index.coordinate
    over_time = {name: "time" in variable.dims for name, variable in real.variables.items()}
    values = {name: real[name].values for name in real.data_vars}
    for number, where in enumerate(index.where):
        ours = dataset.decode(dataset.read(where), where)
        for name, array in ours.items():
            theirs = values[name][number] if over_time[name] else values[name]
            np.testing.assert_array_equal(array, theirs, strict=True)
    return set(ours)


@pytest.mark.parametrize("n_months", [1, 3])
@pytest.mark.parametrize("number", [1, 2])
def test_months_give_equal_arrays(roots, tmp_path, number, n_months):
    months = {1: ("2019-04", "2020-04", "2020-05"), 2: ("2016-01", "2017-01", "2018-01")}
    dates = [f"{month}-01" for month in months[number][:n_months]]
    name = f"maelstrom-downscaling-tier{number}"
    real = through_the_plugin(name, roots[number], tmp_path / "cache", months=dates)
    locator = FileLocator(stand_in=roots[number], cache_dir=tmp_path)
    names = assert_equal(FACTORIES[number](months=",".join(dates)), locator, real)
    assert names == set(real.data_vars) - {"t137_in"}


def test_the_first_variant_gives_equal_arrays(roots, tmp_path):
    dates = ["2016-01-01", "2017-01-01"]
    real = through_the_plugin(
        "maelstrom-downscaling-tier2", roots[2], tmp_path / "cache", months=dates
    )
    dataset = DownscalingTier2(variant="published", months=",".join(dates))
    locator = FileLocator(stand_in=roots[2], cache_dir=tmp_path)
    names = assert_equal(dataset, locator, real)
    assert names == set(real.data_vars) - {"lsm_in", "fr_land_tar"}


def short_mirror(root, mirror, number, urls):
    """Lay out a mirror of files with a few time steps each, one for each URL."""
    import xarray

    month = {1: "2020-05", 2: "2018-01"}[number]
    (source,) = root.rglob(f"downscaling_tier{number}_{month}.nc")
    with xarray.open_dataset(source) as data:
        few = data.isel(time=slice(4)).load()
    for url, month in urls.items():
        path = mirror / "url" / url.replace("://", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        start = np.datetime64(month, "ns") - few.time[0].values
        few.assign_coords(time=few.time + start).to_netcdf(path)


@pytest.mark.parametrize(
    ("number", "split"),
    [
        (1, "validation"),
        (1, "testing"),
        pytest.param(2, "validation", marks=pytest.mark.long),
        pytest.param(2, "testing", marks=pytest.mark.long),
    ],
)
def test_splits_give_equal_arrays(roots, tmp_path, number, split):
    dataset = downscaling(tier=str(number), dataset=split)
    urls = dict(zip(dataset.urls(), dataset.upstream_months, strict=True))
    mirror = tmp_path / "mirror"
    short_mirror(roots[number], mirror, number, urls)
    real = through_the_plugin(dataset.name, mirror, tmp_path / "cache", dataset=split)
    locator = FileLocator(data_dir=mirror, cache_dir=tmp_path)
    assert_equal(dataset, locator, real)


def test_augmented_files_give_equal_arrays(roots, tmp_path):
    dataset = DownscalingTier1(dataset="testing_aug")
    (url,) = dataset.urls()
    mirror = tmp_path / "mirror"
    short_mirror(roots[1], mirror, 1, {url: "2020-04"})
    real = through_the_plugin(dataset.name, mirror, tmp_path / "cache", dataset="testing_aug")
    locator = FileLocator(data_dir=mirror, cache_dir=tmp_path)
    assert_equal(dataset, locator, real)


def test_splits_and_months_are_the_plugins():
    from climetlab_maelstrom_downscaling import downscaling_tier1 as one
    from climetlab_maelstrom_downscaling import downscaling_tier2 as two

    for number, module in ((1, one), (2, two)):
        real = module.Downscaling.dataset_types
        asked = {*DownscalingTier1.upstream_splits, *FACTORIES[number].augmented}
        assert set(real) == asked
        for name in asked:
            ours = FACTORIES[number](dataset=name)
            if name in ours.augmented:
                folder = module.PATTERN.replace("{url}", module.URL).rpartition("/")[0]
                assert ours.urls() == [f"{folder}/{real[name]}"]
            else:
                assert tuple(f"{date:%Y-%m}" for date in real[name]) == ours.upstream_months
