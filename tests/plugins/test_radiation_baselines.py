"""What the application and the real plugin load from NetCDF pairs are our samples."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import shutil
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from iobench.datasets.contract import make_sample, sample_steps
from iobench.datasets.locate import FileLocator
from iobench.datasets.own_pipelines import (
    MapStyle,
    PluginBaseline,
    Stream,
    UpstreamBaseline,
    stream_samples,
)
from iobench.errors import FileFormatError, MissingExtraError, OptionError
from iobench_maelstrom.radiation.dataset import Radiation

pytest.importorskip("dask", reason="the application joins its files with dask")

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning"),
    # The plugin leaves it to xarray how variables of one name are merged.
    pytest.mark.filterwarnings("ignore:In a future version of xarray:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
N_COLUMNS = 128
THREE = {"patch": "0,2,10"}
PATCH_ORDER = (0, 2, 1)
"""Numbers of these patches in upstream's order, by URL: c0, c10, c2."""
OPTIONS = [
    {"raw_inputs": "true"},
    {},
    {"gather_fluxes": "true", "hr_units": "K s-1"},
    {"minimal_outputs": "true"},
    {"minimal_outputs": "true", "topnetflux": "true"},
    {"heating_rate": "false"},
    {"raw_inputs": "true", "all_outputs": "true"},
]


@pytest.fixture(scope="module")
def locator(tiny_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("radiation-baselines")
    return FileLocator(stand_in=tiny_root(Radiation()), cache_dir=folder / "cache")


def opened(locator, **options):
    dataset = Radiation(**{**THREE, **options})
    files = dataset.files(locator)
    return dataset, files, dataset.samples(files, locator)


def assert_same(mine, theirs):
    assert set(mine) == set(theirs)
    for name, array in mine.items():
        assert (array.dtype, array.shape) == (theirs[name].dtype, theirs[name].shape)
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def through_plugin(locator, **options):
    pytest.importorskip(
        "climetlab_maelstrom_radiation",
        reason="the real plugin climetlab-maelstrom-radiation is not installed",
    )
    dataset, files, index = opened(locator, **options)
    return dataset, index, dataset.through_plugin(files, index, locator, batch_size=None)


def test_it_has_both_baselines():
    assert isinstance(Radiation(), UpstreamBaseline)
    assert isinstance(Radiation(), PluginBaseline)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_applications_columns_are_ours(locator, options):
    dataset, files, index = opened(locator, **options)
    stream = dataset.upstream(files, index, locator, batch_size=None).pipeline
    [stage] = stream.stages
    for number in (0, N_COLUMNS + 5, 3 * N_COLUMNS - 1):
        pair = PATCH_ORDER[number // N_COLUMNS]
        mine = make_sample(dataset, index.where[pair * N_COLUMNS + number % N_COLUMNS])
        assert_same(mine, stage.run(number))


def test_the_application_goes_through_all_columns_in_one_thread(locator):
    dataset, files, index = opened(locator)
    baseline = dataset.upstream(files, index, locator, batch_size=None)
    stream = baseline.pipeline
    assert isinstance(stream, Stream)
    assert baseline.batch_size == 512
    assert dataset.upstream(files, index, locator, batch_size=32).batch_size == 32
    items = list(stream.items(0))
    assert items == list(stream.items(3)) == list(range(len(index)))
    assert stream.n_samples_all == sum(map(stream.n_samples, items)) == len(index)
    [stage] = stream.stages
    assert (stage.threads, stage.spreads, stream.batched) == (1, False, False)
    for number, sample in enumerate(itertools.islice(stream_samples(stream), 3)):
        assert_same(make_sample(dataset, index.where[number]), sample)


@pytest.mark.parametrize("raw_inputs", ["true", "false"])
def test_a_single_pair(locator, raw_inputs):
    """The plugin does not join a single pair, nor makes groups of it."""
    options = {"patch": "0", "raw_inputs": raw_inputs}
    dataset, index, baseline = through_plugin(locator, **options)
    columns = baseline.pipeline.dataset
    assert len(index) == N_COLUMNS
    stream = dataset.upstream(dataset.files(locator), index, locator, batch_size=1).pipeline
    assert stream.n_samples_all == N_COLUMNS
    for number in (0, 127):
        mine = make_sample(dataset, index.where[number])
        assert_same(mine, make_sample(columns, index.where[number]))
        assert_same(mine, stream.stages[0].run(number))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_plugins_columns_are_ours(locator, options):
    dataset, index, baseline = through_plugin(locator, **options)
    running = baseline.pipeline
    assert isinstance(running, MapStyle)
    for number in (0, N_COLUMNS + 5, 3 * N_COLUMNS - 1):
        mine = make_sample(dataset, index.where[number])
        assert_same(mine, make_sample(running.dataset, running.index.where[number]))


def test_the_plugins_columns_are_made_in_one_step_and_are_a_dataset(locator):
    dataset, index, baseline = through_plugin(locator)
    columns = baseline.pipeline.dataset
    assert [name for name, _ in sample_steps(columns)] == ["read+decode+preprocess"]
    assert columns.name == dataset.name
    assert columns.files(locator) == dataset.files(locator)
    again = columns.samples(columns.files(locator), locator)
    assert (len(again), again.spec) == (len(index), index.spec)


HELD = {}


def _from_held(number):
    columns, index = HELD["columns"]
    return make_sample(columns, index.where[number])


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that are forked"
)
def test_a_forked_process_opens_them_for_itself(locator):
    """Handles, dask's threads and CliMetLab's do not outlive a fork: it must not wait for them."""
    dataset, index, baseline = through_plugin(locator)
    HELD["columns"] = baseline.pipeline.dataset, index
    mine = make_sample(dataset, index.where[200])
    assert_same(mine, _from_held(200))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as children:
        assert_same(mine, children.submit(_from_held, 200).result(timeout=60))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that are forked"
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_forked_while_the_application_reads_can_read(locator):
    dataset, index, baseline = through_plugin(locator)
    HELD["columns"] = baseline.pipeline.dataset, index
    stream = dataset.upstream(dataset.files(locator), index, locator, batch_size=1).pipeline
    over = threading.Event()

    def keep_reading():
        while not over.is_set():
            stream.stages[0].run(0)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_from_held, args=(number,)) for number in range(2)]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join(40)
        assert [child.exitcode for child in children] == [0, 0]
    finally:
        over.set()
        reader.join()
        for child in children:
            child.kill()


def test_what_is_opened_stays_behind_when_pickled(locator):
    _, index, baseline = through_plugin(locator)
    columns = baseline.pipeline.dataset
    empty = len(pickle.dumps(columns))
    sample = make_sample(columns, index.where[7])
    assert len(pickle.dumps(columns)) == empty
    assert_same(sample, make_sample(pickle.loads(pickle.dumps(columns)), index.where[7]))


def test_what_the_plugin_cannot_do_is_refused(locator):
    with pytest.raises(OptionError, match="raw_inputs=true"):
        through_plugin(locator, all_outputs="true")


@pytest.mark.parametrize("module", ["climetlab", "climetlab_maelstrom_radiation"])
def test_a_missing_plugin_is_named_with_what_installs_it(locator, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    dataset, files, index = opened(locator)
    with pytest.raises(MissingExtraError, match=rf"needs .*{module}\b.*pip install .*--no-deps"):
        dataset.through_plugin(files, index, locator, batch_size=None)


@pytest.mark.parametrize("module", ["xarray", "dask"])
def test_a_missing_library_is_named_with_what_installs_it(locator, monkeypatch, module):
    dataset, files, index = opened(locator)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        dataset.upstream(files, index, locator, batch_size=None)


def test_files_spoiled_meanwhile_are_named(locator, tmp_path):
    dataset, files, index = opened(locator)
    copies = [Path(shutil.copy(file, tmp_path)) for file in files]
    copies[0].write_bytes(b"no file of any kind")
    with pytest.raises(FileFormatError, match=copies[0].name):
        dataset.upstream(copies, index, locator, batch_size=None)


def test_files_spoiled_meanwhile_are_named_by_the_plugins_columns_too(locator, tmp_path):
    dataset, index, _ = through_plugin(locator)
    copies = [Path(shutil.copy(file, tmp_path)) for file in dataset.files(locator)]
    copies[0].write_bytes(b"no file of any kind")
    columns = dataset.through_plugin(copies, index, locator, batch_size=None).pipeline.dataset
    with pytest.raises(FileFormatError, match="the plugin of maelstrom-radiation cannot open"):
        make_sample(columns, index.where[0])
