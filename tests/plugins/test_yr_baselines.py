"""A1 as its training loads it and as its plugin gives it: the samples are those of our reader."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import itertools
import multiprocessing
import pickle
import threading
from collections import Counter
from pathlib import Path

import numpy as np
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
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError
from iobench.loaders.batch_plan import plan_batches
from iobench.loaders.stream import StreamLoader
from iobench.recording.recorder import Recorder
from iobench_maelstrom.yr.dataset import Yr
from iobench_maelstrom.yr.upstream import shuffled_fields

pytest.importorskip("xarray", reason="the application reads with xarray")
pytest.importorskip("netCDF4", reason="the application reads with netCDF4")

REAL = Path(__file__).parents[1] / "data" / "maelstrom-yr"
DIFFERENCES = {"predict_diff": "true", "probabilistic_target": "true"}
HAS_PLUGIN = importlib.util.find_spec("climetlab_maelstrom_yr") is not None
needs_plugin = pytest.mark.skipif(
    not HAS_PLUGIN, reason="the real plugin climetlab-maelstrom-yr is not installed"
)


@pytest.fixture(autouse=True)
def files_closed():
    """Close what xarray has open while no thread reads: netCDF4 breaks when two do something."""
    yield
    gc.collect()


def prepared(files, locator, **options):
    dataset = Yr(**options)
    return dataset, dataset.samples(files, locator)


def digest(sample):
    whole = hashlib.sha256()
    for name in sorted(sample):
        whole.update(f"{name} {sample[name].dtype} {sample[name].shape}".encode())
        whole.update(np.ascontiguousarray(sample[name]))
    return whole.hexdigest()


def assert_same_samples(dataset, index, baseline, epoch=0):
    """Compare samples by their bytes, whatever their order; those of a patch have no twin."""
    ours = Counter(digest(make_sample(dataset, where)) for where in index.where)
    assert max(ours.values()) == 1
    assert Counter(map(digest, stream_samples(baseline.pipeline, epoch))) == ours


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"predict_diff": "true", "probabilistic_target": "true"},
        {"normalize": "false"},
        {"patch": "100", "x_range": "30,250", "y_range": "11,420"},
    ],
    ids=lambda options: ",".join(options) or "defaults",
)
def test_training_makes_the_samples_of_our_reader(yr_5tb, options):
    files = yr_5tb.files[:2]
    dataset, index = prepared(files, yr_5tb.locator, size="5TB", **options)
    baseline = dataset.upstream(files, index, yr_5tb.locator, batch_size=None)
    assert_same_samples(dataset, index, baseline)


@pytest.mark.quick_cases(1)
def test_training_on_whole_grids_and_on_real_files(yr_5gb, tmp_path):
    locator = FileLocator(data_dir=REAL, cache_dir=tmp_path)
    real = Yr(size="5GB").files(locator)
    for files, each in ((real, locator), (yr_5gb.files[:2], yr_5gb.locator)):
        dataset, index = prepared(files, each, size="5GB", predict_diff="true")
        assert_same_samples(
            dataset, index, dataset.upstream(files, index, each, batch_size=None), epoch=3
        )


def test_stages_are_those_of_the_training(yr_5tb):
    dataset, index = prepared(yr_5tb.files, yr_5tb.locator, size="5TB")
    assert isinstance(dataset, UpstreamBaseline)
    baseline = dataset.upstream(yr_5tb.files, index, yr_5tb.locator, batch_size=None)
    stream = baseline.pipeline
    assert isinstance(stream, Stream)
    assert baseline.batch_size == 32
    assert [(stage.name, stage.threads) for stage in stream.stages] == [
        ("read+decode", 1),
        ("preprocess", 1),
        *[("preprocess", 12)] * 4,
    ]
    assert [stage.spreads for stage in stream.stages] == [False] * 5 + [True]
    assert stream.n_samples_all == len(index) == sum(map(stream.n_samples, stream.items(0)))
    # 50 grids of 2 patches are more than the 4 files have: a quarter of their samples.
    assert stream.shuffle == len(index) // 4
    assert f"({50 * 2}) holds {len(index) // 4}" in baseline.source
    assert [what for what, _ in baseline.setup_s] == ["opening all files"]
    asked = dataset.upstream(yr_5tb.files, index, yr_5tb.locator, batch_size=5)
    assert asked.batch_size == 5


@pytest.mark.thorough
def test_the_loader_of_streams_delivers_each_sample_once(yr_5tb, tmp_path):
    files = yr_5tb.files[:1]
    dataset, index = prepared(files, yr_5tb.locator, size="5TB")
    stream = dataset.upstream(files, index, yr_5tb.locator, batch_size=6).pipeline
    assert stream.shuffle == 3
    ours = Counter(digest(make_sample(dataset, where)) for where in index.where)
    costs = {"light_ns": 0, "full_ns": 0}
    with (
        Recorder(tmp_path / "spans", role="consumer") as recorder,
        StreamLoader(stream, 6, recorder=recorder, unit_costs=costs) as loader,
    ):
        plan = itertools.islice(plan_batches(len(index), 6, seed=0), len(index) // 6)
        found = [dict(batch.arrays) for batch in loader.batches(plan)]
    both = [{name: array[n] for name, array in batch.items()} for batch in found for n in range(6)]
    assert Counter(map(digest, both)) == ours


def test_each_epoch_has_an_order_of_its_own_and_always_the_same():
    orders = [shuffled_fields(6, 9, epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == [(n, k) for n in range(6) for k in range(9)]
    assert orders[0] != sorted(orders[0])


def test_steps_open_files_again_in_another_process(yr_5gb):
    dataset, index = prepared(yr_5gb.files, yr_5gb.locator, size="5GB")
    stream = dataset.upstream(yr_5gb.files, index, yr_5gb.locator, batch_size=None).pipeline
    run, item = stream.stages[0].run, stream.items(0)[0]
    read = run(item), pickle.loads(pickle.dumps(run))(item)
    np.testing.assert_array_equal(read[0].predictors, read[1].predictors)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_while_a_stream_reads_can_read(yr_5tb):
    files = yr_5tb.files[:2]
    dataset, index = prepared(files, yr_5tb.locator, size="5TB")
    stream = dataset.upstream(files, index, yr_5tb.locator, batch_size=None).pipeline
    read, over = stream.stages[0].run, threading.Event()

    def keep_reading():
        while not over.is_set():
            read((0, 0))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=read, args=((1, 1),)) for _ in range(8)]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * 8
    finally:
        over.set()
        reader.join()
        for child in children:
            child.kill()


def test_a_file_that_xarray_cannot_open_is_named(yr_5gb, tmp_path):
    copy = tmp_path / yr_5gb.files[0].name
    copy.write_bytes(yr_5gb.files[0].read_bytes())
    locator = FileLocator(data_dir=tmp_path, cache_dir=tmp_path)
    dataset, index = prepared([copy], locator, size="5GB")
    copy.write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=f"{copy.name}: cannot be opened with xarray"):
        dataset.upstream([copy], index, locator, batch_size=None)


def samples_of(baseline):
    """Return what the plugin's dataset makes, after a journey to another process."""
    assert isinstance(baseline.pipeline, MapStyle)
    made = pickle.loads(pickle.dumps(baseline.pipeline.dataset))
    return [make_sample(made, where) for where in baseline.pipeline.index.where]


def assert_equal_samples(dataset, index, baseline):
    for where, theirs in zip(index.where, samples_of(baseline), strict=True):
        ours = make_sample(dataset, where)
        assert list(ours) == list(theirs)
        for name, array in ours.items():
            assert array.dtype == theirs[name].dtype
            np.testing.assert_array_equal(array, theirs[name])


@pytest.mark.quick_cases(1, thorough=0)
@needs_plugin
@pytest.mark.parametrize(
    ("options", "n_files"),
    [
        pytest.param({}, 1, id="defaults-1"),
        pytest.param({}, 3, id="defaults-3", marks=pytest.mark.long),
        pytest.param(DIFFERENCES, 1, id="differences-1", marks=pytest.mark.long),
        pytest.param(DIFFERENCES, 3, id="differences-3", marks=pytest.mark.long),
        pytest.param({"normalize": "false"}, 1, id="raw-1"),
        pytest.param({"normalize": "false"}, 3, id="raw-3", marks=pytest.mark.long),
    ],
)
def test_the_plugin_gives_the_samples_of_our_reader(yr_5gb, options, n_files):
    files = yr_5gb.files[:n_files]
    dataset, index = prepared(files, yr_5gb.locator, size="5GB", **options)
    assert isinstance(dataset, PluginBaseline)
    assert_equal_samples(
        dataset, index, dataset.through_plugin(files, index, yr_5gb.locator, batch_size=None)
    )


@pytest.mark.long
@needs_plugin
def test_the_plugin_gives_patches_of_crops(yr_5tb):
    options = {"patch": "100", "x_range": "30,250", "y_range": "11,420", "predict_diff": "true"}
    files = yr_5tb.files[1:3]
    dataset, index = prepared(files, yr_5tb.locator, size="5TB", **options)
    assert_equal_samples(
        dataset, index, dataset.through_plugin(files, index, yr_5tb.locator, batch_size=None)
    )


@needs_plugin
def test_the_plugin_reads_real_files(tmp_path):
    locator = FileLocator(data_dir=REAL, cache_dir=tmp_path)
    files = Yr(size="5GB").files(locator)
    dataset, index = prepared(files, locator, size="5GB", probabilistic_target="true")
    assert_equal_samples(
        dataset, index, dataset.through_plugin(files, index, locator, batch_size=None)
    )


@needs_plugin
def test_a_date_that_is_gone_is_named_before_the_plugin_looks_for_it(yr_5gb, tmp_path):
    copies = [tmp_path / file.name for file in yr_5gb.files[:2]]
    for copy, file in zip(copies, yr_5gb.files, strict=False):
        copy.write_bytes(file.read_bytes())
    dataset, index = prepared(copies, yr_5gb.locator, size="5GB")
    baseline = dataset.through_plugin(copies, index, yr_5gb.locator, batch_size=None)
    copies[1].unlink()
    with pytest.raises(MissingFileError, match=copies[1].name):
        baseline.pipeline.dataset.read(index.where[0])


@needs_plugin
@pytest.mark.long
def test_files_whose_times_are_not_those_of_their_names_are_refused(yr_5gb):
    files = yr_5gb.files[:2]
    dataset, index = prepared(files, yr_5gb.locator, size="5GB")
    made = dataset.through_plugin(
        files[::-1], index, yr_5gb.locator, batch_size=None
    ).pipeline.dataset
    swapped = [make_sample(made, where) for where in index.where[:1]]
    # The plugin tells dates by what files hold: two that were swapped are put right,
    np.testing.assert_array_equal(
        swapped[0]["targets"], make_sample(dataset, index.where[0])["targets"]
    )
    other = dataset.through_plugin(
        [files[0], yr_5gb.files[2]], index, yr_5gb.locator, batch_size=None
    )
    # and one of another date is an error.
    with pytest.raises(FileFormatError, match="expected each file to hold the time its name says"):
        other.pipeline.dataset.read(index.where[0])


@pytest.mark.parametrize("module", ["climetlab", "climetlab_maelstrom_yr"])
def test_a_plugin_that_is_not_installed_is_named(yr_5gb, monkeypatch, module):
    found = importlib.util.find_spec

    def without(name, *arguments):
        return None if name == module else found(name, *arguments) or object()

    monkeypatch.setattr(importlib.util, "find_spec", without)
    files = yr_5gb.files[:2]
    dataset, index = prepared(files, yr_5gb.locator, size="5GB")
    with pytest.raises(MissingExtraError, match=rf"needs {module}: .*iobench\[climetlab\]"):
        dataset.through_plugin(files, index, yr_5gb.locator, batch_size=None)
