"""A5 as its training loads it and as its plugin gives it: the samples are those of our reader."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import itertools
import pickle
import shutil
from collections import Counter

import numpy as np
import pytest

from iobench.datasets import StandIn
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
from iobench_maelstrom.downscaling.dataset import DownscalingTier1, DownscalingTier2
from iobench_maelstrom.downscaling.upstream import group_size

xarray = pytest.importorskip("xarray", reason="the application reads with xarray")
pytest.importorskip("netCDF4", reason="the application reads with netCDF4")
pytest.importorskip("dask", reason="the application opens its files with dask")

FACTORIES = {1: DownscalingTier1, 2: DownscalingTier2}
MONTHS = {1: ("2019-04", "2020-04", "2020-05"), 2: ("2016-01", "2017-01", "2018-01")}
HAS_PLUGIN = importlib.util.find_spec("climetlab_maelstrom_downscaling") is not None
needs_plugin = pytest.mark.skipif(
    not HAS_PLUGIN, reason="the real plugin climetlab-maelstrom-downscaling is not installed"
)


@pytest.fixture(autouse=True)
def files_closed():
    """Close what xarray has open while no thread reads: netCDF4 breaks when two do something."""
    yield
    gc.collect()


def place_of(folder, url):
    return folder / "url" / url.replace("://", "/")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Mirrors of months with 5, 8 and 11 time steps, in order of time; read-only."""
    folder = tmp_path_factory.mktemp("downscaling-baselines")
    for number, tier in FACTORIES.items():
        for month, n_steps in zip(MONTHS[number], (5, 8, 11), strict=True):
            (planned,) = tier().planned_files(StandIn(0, ({"months": month},), n_steps))
            place = folder / str(number) / planned.name
            place.parent.mkdir(parents=True, exist_ok=True)
            planned.write(place, lambda nbytes: None)
    return folder


@pytest.fixture
def prepare(short, tmp_path):
    """Return a dataset with its files, index and locator."""

    def prepare(number, root=None, **options):
        dataset = FACTORIES[number](**options)
        locator = FileLocator(data_dir=root or short / str(number), cache_dir=tmp_path)
        files = dataset.files(locator)
        return dataset, files, dataset.samples(files, locator), locator

    return prepare


@pytest.fixture
def own_copy(short, tmp_path):
    """A mirror of tier 2 that a test may spoil."""
    return shutil.copytree(short / "2", tmp_path / "own")


def digest(sample):
    whole = hashlib.sha256()
    for name in sorted(sample):
        whole.update(f"{name} {sample[name].dtype} {sample[name].shape}".encode())
        whole.update(np.ascontiguousarray(sample[name]))
    return whole.hexdigest()


def digests_of(stream, epoch):
    return [digest(each) for each in stream_samples(stream, epoch)]


def batches_of(stream, epoch):
    load, draw, gather = (stage.run for stage in stream.stages)
    return [gather(drawn) for item in stream.items(epoch) for drawn in draw(load(item))]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [1, 2])
def test_training_makes_the_samples_of_our_reader(prepare, number):
    dataset, files, index, locator = prepare(number)
    assert isinstance(dataset, UpstreamBaseline)
    baseline = dataset.upstream(files, index, locator, batch_size=4)
    ours = Counter(digest(make_sample(dataset, where)) for where in index.where)
    assert max(ours.values()) == 1
    orders = [digests_of(baseline.pipeline, epoch) for epoch in (0, 1, 0)]
    assert Counter(orders[0]) == Counter(orders[1]) == ours
    assert orders[0] == orders[2] != orders[1]


def test_packed_files_are_unpacked(prepare, own_copy):
    for path in own_copy.rglob("*.nc"):
        with xarray.open_dataset(path, decode_times=False) as data:
            loaded = data.load()
        packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
        loaded.to_netcdf(path, encoding={"t2m_in": packing})
    dataset, files, index, locator = prepare(2, own_copy)
    stream = dataset.upstream(files, index, locator, batch_size=None).pipeline
    ours = Counter(digest(make_sample(dataset, where)) for where in index.where)
    assert Counter(digests_of(stream, 0)) == ours


def test_stages_are_those_of_the_training(prepare):
    dataset, files, index, locator = prepare(2)
    baseline = dataset.upstream(files, index, locator, batch_size=None)
    stream = baseline.pipeline
    assert isinstance(stream, Stream)
    assert stream.batched
    assert baseline.batch_size == 32
    names = [(stage.name, stage.spreads) for stage in stream.stages]
    assert names == [
        ("read+decode+preprocess", False),
        ("preprocess", True),
        ("preprocess", False),
    ]
    assert [stage.ahead for stage in stream.stages] == [1, 1, 1]
    assert stream.n_samples_all == len(index) == 24
    # Half of three files are one: three groups, of 5, 8 and 11 samples in a shuffled order.
    assert sorted(map(stream.n_samples, stream.items(0))) == [5, 8, 11]
    assert list(map(stream.n_samples, stream.items(0))) == list(
        map(stream.n_samples, stream.items(1))
    )
    assert "Groups of 1 of 3 months" in baseline.source
    assert "loaded whole" not in baseline.source
    assert [what for what, _ in baseline.setup_s] == [
        "opening all files",
        "statistics of 1 of 3 files",
    ]


def test_batches_have_the_size_asked_for_but_for_the_last_of_a_group(prepare):
    dataset, files, index, locator = prepare(2)
    stream = dataset.upstream(files, index, locator, batch_size=4).pipeline
    batches = batches_of(stream, 0)
    assert sorted(len(batch["inputs"]) for batch in batches) == [1, 3, 4, 4, 4, 4, 4]
    assert {name: array.shape[1:] for name, array in batches[0].items()} == {
        variable.name: variable.shape for variable in index.spec.variables
    }


def test_the_loader_of_streams_delivers_each_sample_once(prepare, tmp_path):
    dataset, files, index, locator = prepare(2)
    stream = dataset.upstream(files, index, locator, batch_size=4).pipeline
    ours = Counter(digest(make_sample(dataset, where)) for where in index.where)
    costs = {"light_ns": 0, "full_ns": 0}
    with (
        Recorder(tmp_path / "spans", role="consumer") as recorder,
        StreamLoader(stream, 4, recorder=recorder, unit_costs=costs) as loader,
    ):
        # Groups of 5, 8 and 11 samples are 2, 2 and 3 batches.
        plan = itertools.islice(plan_batches(len(index), 4, seed=0), 7)
        found = [dict(batch.arrays) for batch in loader.batches(plan)]
    both = [
        {name: array[n] for name, array in batch.items()}
        for batch in found
        for n in range(len(batch["inputs"]))
    ]
    assert Counter(map(digest, both)) == ours


def test_tier_1_says_that_upstream_loads_it_whole(prepare):
    dataset, files, index, locator = prepare(1)
    assert "is loaded whole" in dataset.upstream(files, index, locator, batch_size=8).source


@pytest.mark.parametrize(
    ("n_files", "month_nbytes", "expected"),
    [(264, 1 << 20, 22), (264, 1 << 30, 4), (4, 1 << 20, 2), (1, 1 << 20, 1), (30, 9 << 30, 1)],
)
def test_groups_are_upstreams_within_bounds(n_files, month_nbytes, expected):
    assert group_size(n_files, month_nbytes) == expected


def test_a_stream_can_travel(prepare):
    dataset, files, index, locator = prepare(2)
    stream = dataset.upstream(files, index, locator, batch_size=8).pipeline
    assert digests_of(pickle.loads(pickle.dumps(stream)), 0) == digests_of(stream, 0)


def test_a_month_that_is_gone_is_named(prepare, own_copy):
    dataset, files, index, locator = prepare(2, own_copy)
    stream = dataset.upstream(files, index, locator, batch_size=8).pipeline
    files[1].unlink()
    with pytest.raises(MissingFileError, match=files[1].name):
        dataset.upstream(files, index, locator, batch_size=8)
    with pytest.raises(MissingFileError, match=files[1].name):
        batches_of(stream, 0)


def test_a_month_that_xarray_cannot_open_is_named(prepare, own_copy):
    dataset, files, index, locator = prepare(2, own_copy)
    files[1].write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=f"{files[1].name}: cannot be opened with xarray"):
        dataset.upstream(files, index, locator, batch_size=8)


def assert_plugin_gives_equal_samples(dataset, files, index, locator):
    assert isinstance(dataset, PluginBaseline)
    pipeline = dataset.through_plugin(files, index, locator, batch_size=None).pipeline
    assert isinstance(pipeline, MapStyle)
    made = pickle.loads(pickle.dumps(pipeline.dataset))
    for where in index.where:
        ours, theirs = make_sample(dataset, where), make_sample(made, where)
        assert list(ours) == list(theirs)
        for name, array in ours.items():
            assert array.dtype == theirs[name].dtype
            np.testing.assert_array_equal(array, theirs[name])


@needs_plugin
@pytest.mark.parametrize("n_months", [1, 3])
@pytest.mark.parametrize("number", [1, 2])
def test_the_plugin_gives_the_samples_of_our_reader(prepare, number, n_months):
    months = ",".join(MONTHS[number][:n_months])
    assert_plugin_gives_equal_samples(*prepare(number, months=months))


@needs_plugin
def test_the_plugin_gives_augmented_files(prepare, short, tmp_path):
    (url,) = DownscalingTier1(dataset="testing_aug").urls()
    root = tmp_path / "mirror"
    place_of(root, url).parent.mkdir(parents=True)
    source = next((short / "1").rglob("*_2020-04.nc"))
    with xarray.open_dataset(source, decode_times=False) as data:
        # As augmented files may: each time twice.
        xarray.concat([data, data], dim="time").load().to_netcdf(place_of(root, url))
    assert_plugin_gives_equal_samples(*prepare(1, root, dataset="testing_aug"))


@needs_plugin
def test_the_plugin_names_a_month_that_is_gone(prepare, own_copy):
    dataset, files, index, locator = prepare(2, own_copy)
    made = dataset.through_plugin(files, index, locator, batch_size=None).pipeline.dataset
    files[1].unlink()
    with pytest.raises(MissingFileError, match=r"downscaling_tier2_2017-01\.nc"):
        made.read(index.where[0])


@needs_plugin
def test_other_time_steps_than_those_indexed_are_refused(prepare, own_copy):
    dataset, files, index, locator = prepare(2, own_copy)
    made = dataset.through_plugin(files, index, locator, batch_size=None).pipeline.dataset
    with xarray.open_dataset(files[2], decode_times=False) as data:
        fewer = data.isel(time=slice(2)).load()
    fewer.to_netcdf(files[2])
    with pytest.raises(FileFormatError, match="other time steps than 2018-01-01T00 to 2018-01"):
        made.read(index.where[0])


@pytest.mark.parametrize("module", ["climetlab", "climetlab_maelstrom_downscaling"])
def test_a_plugin_that_is_not_installed_is_named(prepare, monkeypatch, module):
    dataset, files, index, locator = prepare(2)
    found = importlib.util.find_spec

    def without(name, *arguments):
        return None if name == module else found(name, *arguments) or object()

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(MissingExtraError, match=rf"needs {module}: .*iobench\[climetlab\]"):
        dataset.through_plugin(files, index, locator, batch_size=None)
