"""Names, dates, choices and arrays are those of the real plugins."""

from __future__ import annotations

import contextlib
import itertools
import socket

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.registry import find_dataset
from iobench_maelstrom.downscaling.dataset import DownscalingTier1, DownscalingTier2
from iobench_maelstrom.ens10.files import ALL_DATES as STARTS
from iobench_maelstrom.radiation.dataset import DATES, PATCHES, Radiation
from iobench_maelstrom.radiation.files import TIMESTEPS
from iobench_maelstrom.radiation.tf_dataset import RadiationTf
from iobench_maelstrom.yr.dataset import Yr
from iobench_maelstrom.yr.files import ALL_DATES, PREDICTORS, STATIC_PREDICTORS

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning"),
]


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def load(tmp_path, no_network):
    """Run the real plugin with a stand-in as mirror: a context in which it is open."""
    climetlab = pytest.importorskip("climetlab", reason="climetlab is not installed")
    from climetlab.mirrors.directory_mirror import DirectoryMirror

    @contextlib.contextmanager
    def opened(root, name, **options):
        with (
            climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")),
            climetlab.settings.temporary("check-out-of-date-urls", False),
            DirectoryMirror(path=str(root)),
        ):
            yield climetlab.load_dataset(name, **options)

    return opened


@pytest.fixture
def plugin_module():
    def needs(name):
        return pytest.importorskip(name, reason="the real plugin is not installed")

    return needs


def urls_of(dataset):
    return list(map(dataset.file_url, dataset.file_keys()))


def test_choices_of_yr(plugin_module):
    real = plugin_module("climetlab_maelstrom_yr.yr").Yr
    assert list(ALL_DATES) == real.get_all_dates()
    table = {each.name: [each.mean, each.std] for each in (*PREDICTORS, *STATIC_PREDICTORS)}
    assert table == dict(real.get_normalization())
    urls = [url.removesuffix(".nc").rpartition("/")[2] for url in urls_of(Yr())]
    hour = real.get_hour_from_date
    assert urls == [f"{date}T{hour(None, date):02}Z" for date in ALL_DATES]


def test_choices_of_ens10(plugin_module):
    assert list(STARTS) == plugin_module("climetlab_maelstrom_ens10.ens10").Ens10.all_datelist


def test_choices_of_downscaling(plugin_module):
    for tier in (DownscalingTier1, DownscalingTier2):
        module = plugin_module(f"climetlab_maelstrom_downscaling.downscaling_tier{tier.number}")
        real = module.Downscaling.dataset_types
        for split, name in zip(tier.splits, ("training", "validation", "testing"), strict=True):
            assert tuple(split.times) == tuple(f"{date:%Y-%m}" for date in real[name])


def test_choices_of_radiation(plugin_module):
    plugin = plugin_module("climetlab_maelstrom_radiation.radiation")

    assert sorted(plugin.valid_date) == sorted(DATES)
    assert plugin.valid_timestep == list(map(int, TIMESTEPS))
    assert plugin.valid_patch == list(map(int, PATCHES))
    assert list(Radiation.subsets) == plugin.valid_subset
    assert [*Radiation.subsets["2020"][0]] == plugin.date_subsets["2020"]


YR, ENS10 = "climetlab_maelstrom_yr", "climetlab_maelstrom_ens10"
RADIATION, DOWNSCALING = "climetlab_maelstrom_radiation", "climetlab_maelstrom_downscaling"
POWER = "climetlab_maelstrom_power_production"
DAY = {"date": "2019-01-01"}
SAMPLES = [
    ("maelstrom-yr", {"size": "5GB", "dates": "2020-03-01", "normalize": "false"}, YR),
    ("maelstrom-radiation", {"patch": "10"}, RADIATION),
    ("maelstrom-downscaling-tier1", {"months": "2019-04"}, DOWNSCALING),
    ("maelstrom-downscaling-tier2", {"months": "2017-01"}, DOWNSCALING),
    ("maelstrom-power", DAY, POWER),
    ("maelstrom-weather-pressure-level", {"levels": "surface", **DAY}, POWER),
    ("maelstrom-weather-pressure-level", {"sample": "clustering", **DAY}, POWER),
]
HOURS_PER_RUN = 12
TF = "maelstrom-radiation-tf"


@pytest.mark.quick_cases(4)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning")
@pytest.mark.parametrize(("name", "options", "package"), SAMPLES)
def test_arrays_equal_the_real_plugins(
    plugin_module, prepared, load, tiny_root, name, options, package
):
    plugin_module(package)
    dataset, _, index = prepared(name, **options)
    opened = []
    for call in dataset.downloads():
        with load(tiny_root(dataset), call.name, **call.arguments) as plugin:
            opened.append(plugin.to_xarray())
    for number in (0, len(index) // 2, len(index) - 1):
        where, compared = index.where[number], 0
        ours = dataset.decode(dataset.read(where), where)
        for slab in dataset.hyperslabs(where):
            at = dict(slab.ranges)
            if isinstance(at.get("time"), int):  # forecasts are joined, other files single
                at["time"] += HOURS_PER_RUN * where[0]
            for each in opened:
                if slab.variable in each:
                    theirs = each[slab.variable].isel(at, missing_dims="ignore").values
                    array = ours[slab.name or slab.variable]
                    np.testing.assert_array_equal(theirs.reshape(array.shape), array)
                    compared += 1
        assert compared >= len(ours) - 1  # pressure of outputs, which it takes of inputs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("options", [{"target": "none"}, {"dtype": "pl", "target": "t850"}])
def test_members_equal_the_real_plugins(plugin_module, prepared, load, tiny_root, options):
    plugin_module(ENS10)
    dataset, _, index = prepared("maelstrom-ens10", date="0104", **options)
    (call,) = dataset.downloads()
    with load(tiny_root(dataset), call.name, **call.arguments) as plugin:
        opened = plugin.to_xarray()
    for start, where in zip(index.coordinate, index.where, strict=True):
        ours = dataset.decode(dataset.read(where), where)
        chosen = opened.sel(time=start, step=np.timedelta64(48, "h"))
        if dataset.task.level:
            chosen = chosen.sel(isobaricInhPa=dataset.task.level)
        for each in dataset.task.fields:
            theirs = chosen[each.short_name].values.reshape(ours[each.name].shape)
            np.testing.assert_array_equal(theirs, ours[each.name])


@pytest.fixture
def tf_plugin(plugin_module):
    plugin_module("tensorflow")
    return plugin_module("climetlab_maelstrom_radiation.radiation_tf")


@pytest.mark.usefixtures("tf_plugin")
def test_examples_equal_the_real_plugins(prepared, tiny_root, load):
    dataset, _, index = prepared(TF)
    with load(tiny_root(dataset), TF, timestep=[0]) as plugin:
        batches = plugin.to_tfdataset(batch_size=1, shuffle=False, parallel_reads=1)
        theirs = [
            {name: array.numpy()[0] for part in batch for name, array in part.items()}
            for batch in itertools.islice(batches, 40)
        ]
    assert len(theirs) == 40
    for number, expected in enumerate(theirs):
        sample = make_sample(dataset, index.where[number])
        assert set(sample) == set(expected)
        for name, array in sample.items():
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.usefixtures("tf_plugin")
def test_every_example_of_mcica_equals_the_real_plugins(prepared, load, tmp_path):
    """Upstream mends the heating rates of mcica's files, which are named otherwise."""
    _, (file, *_), _ = prepared(TF)
    copy = tmp_path / file.parents[1].relative_to(file.parents[5]) / "TFR/TripCloud0.0.tfrecord"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(file.read_bytes())
    dataset = find_dataset(TF, dataset="mcica")
    index = dataset.samples([copy], FileLocator(cache_dir=tmp_path / "cache"))
    with load(tmp_path, TF, dataset="mcica") as plugin:
        [(_, theirs)] = plugin.to_tfdataset(batch_size=256, shuffle=False, parallel_reads=1)
    for name in ("hr_sw", "hr_lw"):
        mine = np.stack([make_sample(dataset, where)[name] for where in index.where])
        np.testing.assert_array_equal(mine, theirs[name].numpy())


def test_subsets_of_radiation_tf(tf_plugin):
    assert set(RadiationTf.subsets) == set(tf_plugin.timestep_subset)
    for name, (timesteps, numbers) in RadiationTf.subsets.items():
        assert list(map(int, timesteps)) == tf_plugin.timestep_subset[name]
        assert list(map(int, numbers)) == tf_plugin.filenum_subset[name]
