"""How application A6 loads today gives the samples our readers give."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import sys

import numpy as np
import psutil
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.own_pipelines import (
    MapStyle,
    PluginBaseline,
    Stream,
    UpstreamBaseline,
    stream_samples,
)
from iobench.errors import MissingExtraError, MissingFileError, StorageError
from iobench.registry import find_dataset
from iobench_maelstrom import plugin_samples

POWER, PRESSURE = "maelstrom-power", "maelstrom-weather-pressure-level"
CLUSTERING = {"sample": "clustering"}


@pytest.fixture
def prepared(store_dir, tiny_root):
    """A dataset on its tiny stand-in: dataset, files, index, locator."""

    def make(name, **options):
        dataset = find_dataset(name, **options)
        locator = FileLocator(stand_in=tiny_root(dataset), cache_dir=store_dir)
        files = dataset.files(locator)
        return dataset, files, dataset.samples(files, locator), locator

    return make


def upstream_of(prepared, batch_size=None):
    dataset, files, index, locator = prepared
    assert isinstance(dataset, UpstreamBaseline)
    return dataset.upstream(files, index, locator, batch_size=batch_size)


def through_plugin(prepared):
    dataset, files, index, locator = prepared
    assert isinstance(dataset, PluginBaseline)
    return dataset.through_plugin(files, index, locator, batch_size=None)


def assert_same(ours, theirs, *, rtol=0.0):
    assert list(ours) == list(theirs)
    for name, values in ours.items():
        np.testing.assert_allclose(theirs[name], values, rtol=rtol, strict=True)


@pytest.mark.parametrize("options", [{}, {"wind_turbine_id": "3", "model_level": "130"}])
def test_the_forecasts_table_holds_our_samples_in_our_order(prepared, options):
    made = prepared(POWER, **options)
    dataset, _, index, _ = made
    baseline = upstream_of(made)
    assert isinstance(baseline.pipeline, Stream)
    samples = list(stream_samples(baseline.pipeline, 0))
    assert len(samples) == len(index) == baseline.pipeline.n_samples_all == 48
    for where, theirs in zip(index.where, samples, strict=True):
        index.spec.check(theirs, where="upstream")
        assert_same(make_sample(dataset, where), theirs, rtol=1e-6)


def test_the_forecast_leaves_out_the_hours_we_leave_out(prepared, tmp_path):

    import netCDF4

    _, files, _, _ = prepared(POWER)
    for path in files:
        shutil.copyfile(path, tmp_path / path.name)
    with netCDF4.Dataset(tmp_path / "wind_turbine_1.nc", "a") as file:
        file["production"][18:24] = np.nan
        file["production"][30:36] = -4.0
    dataset = find_dataset(POWER)
    locator = FileLocator(data_dir=tmp_path, cache_dir=tmp_path)
    copies = dataset.files(locator)
    made = dataset, copies, dataset.samples(copies, locator), locator
    samples = list(stream_samples(upstream_of(made).pipeline, 0))
    assert len(samples) == len(made[2]) == 47
    assert samples[4]["production"] == 0
    for where, theirs in zip(made[2].where, samples, strict=True):
        assert_same(make_sample(dataset, where), theirs, rtol=1e-6)


def test_all_is_loaded_by_the_first_item_and_only_once(prepared):
    stream = upstream_of(prepared(POWER)).pipeline
    assert stream.makes == "read+decode+preprocess"
    assert "samples" not in vars(stream.items.__self__)
    first = next(iter(stream.items(0)))
    table = vars(stream.items.__self__)["samples"]
    assert len(table) == 48
    assert next(iter(stream.items(1))) is first


@pytest.mark.parametrize("options", [{}, {"crop": "none"}, {"date": "2019-01-02"}])
def test_clusterings_memory_holds_our_samples(prepared, options):
    made = prepared(PRESSURE, **CLUSTERING, **options)
    dataset, _, index, _ = made
    stream = upstream_of(made).pipeline
    order = list(stream.items(3))
    assert sorted(order) == list(range(len(index)))
    assert order == list(stream.items(3)) != list(stream.items(4))
    for number, theirs in zip(order[:12], stream_samples(stream, 3), strict=False):
        index.spec.check(theirs, where="upstream")
        assert_same(make_sample(dataset, index.where[number]), theirs)


def test_more_than_fits_into_memory_is_refused_before_it_is_loaded(prepared, monkeypatch):
    stream = upstream_of(prepared(PRESSURE, **CLUSTERING)).pipeline
    little = psutil.virtual_memory()._replace(available=1_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    with pytest.raises(StorageError, match=r"into memory, 0\.\d GB, and 0.0 GB are free"):
        next(iter(stream.items(0)))


@pytest.mark.parametrize(("asked", "taken"), [(None, 64), (7, 7)])
@pytest.mark.parametrize(("name", "options"), [(POWER, {}), (PRESSURE, CLUSTERING)])
def test_batches_are_of_64_unless_asked(prepared, name, options, asked, taken):
    assert upstream_of(prepared(name, **options), asked).batch_size == taken


@pytest.mark.parametrize("missing", ["xarray", "netCDF4", "dask"])
def test_missing_libraries_are_named(prepared, monkeypatch, missing):
    made = prepared(POWER)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=rf"needs {missing}: pip install"):
        upstream_of(made)


# Through the real plugin.

NAMES = [
    (POWER, {"wind_turbine_id": "2"}),
    ("maelstrom-power-production", {"wind_turbine_id": "4"}),
    ("maelstrom-constants-a-b", {}),
    ("maelstrom-weather-model-level", {}),
    ("maelstrom-weather-surface-level", {"date": "2019-01-02"}),
    (PRESSURE, {}),
    (PRESSURE, CLUSTERING),
    (PRESSURE, {**CLUSTERING, "crop": "none"}),
]


@pytest.fixture
def plugin():
    for package in ("climetlab", "climetlab_maelstrom_power_production"):
        pytest.importorskip(
            package, reason="needs climetlab 0.24.0 and the plugin of A6 (--no-deps)"
        )


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "options"), NAMES, ids=["-".join([name, *given.values()]) for name, given in NAMES]
)
def test_the_plugin_gives_our_samples(prepared, name, options):
    made = prepared(name, **options)
    dataset, _, index, _ = made
    baseline = through_plugin(made)
    assert isinstance(baseline.pipeline, MapStyle)
    theirs, travelled = pickle.loads(pickle.dumps((baseline.pipeline.dataset, index)))
    assert theirs.fused == ("read", "decode")
    for number in range(0, len(index), max(1, len(index) // 7)):
        sample = make_sample(theirs, travelled.where[number])
        index.spec.check(sample, where="plugin")
        assert_same(make_sample(dataset, index.where[number]), sample)


@pytest.mark.usefixtures("plugin")
def test_the_plugin_opens_once_in_a_process_and_stays_out_of_pickles(prepared, monkeypatch):
    opened = []
    real = plugin_samples.open_through_plugin
    monkeypatch.setattr(
        plugin_samples,
        "open_through_plugin",
        lambda request: opened.append(request.name) or real(request),
    )
    made = prepared("maelstrom-weather-surface-level")
    samples = through_plugin(made).pipeline.dataset
    assert opened == []
    for where in made[2].where[:3]:
        samples.read(where)
    assert opened == ["maelstrom-weather-surface-level"]
    assert len(pickle.dumps(samples)) < 20_000
    monkeypatch.setattr(plugin_samples.os, "getpid", lambda: -1)
    samples.read(made[2].where[0])
    assert len(opened) == 2


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("plugin")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_forked_after_upstream_has_loaded_does_not_wait_for_its_threads(prepared):
    made = prepared("maelstrom-power")
    assert next(iter(upstream_of(made).pipeline.items(0)))
    samples = through_plugin(made).pipeline.dataset
    here = make_sample(samples, made[2].where[0])
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(
        target=lambda: answers.put(make_sample(samples, made[2].where[0])), daemon=True
    )
    child.start()
    child.join(40)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    assert_same(here, answers.get())


@pytest.mark.usefixtures("plugin")
def test_a_file_gone_is_named_by_url_before_the_plugin_looks_for_it(prepared, tmp_path):

    dataset, files, _, _ = prepared("maelstrom-weather-surface-level")
    for path in files:
        shutil.copyfile(path, tmp_path / path.name)
    locator = FileLocator(data_dir=tmp_path, cache_dir=tmp_path)
    copies = dataset.files(locator)
    made = dataset, copies, dataset.samples(copies, locator), locator
    samples = through_plugin(made).pipeline.dataset
    copies[1].unlink()
    with pytest.raises(MissingFileError, match=r"https://.*/maelstrom-ap6/sfc_20190101_12.nc"):
        samples.read(made[2].where[0])


def test_without_the_plugin_the_error_says_what_to_install(prepared, monkeypatch):
    monkeypatch.setattr(plugin_samples.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--no-deps climetlab-maelstrom-power-production"):
        through_plugin(prepared("maelstrom-constants-a-b"))
