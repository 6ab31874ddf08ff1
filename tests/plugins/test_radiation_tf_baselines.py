"""The application's and the real plugin's ``tf.data`` pipelines give our samples, shuffled."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.own_pipelines import PluginBaseline, Stream, UpstreamBaseline, stream_samples
from iobench.errors import FileFormatError, MissingExtraError
from iobench_maelstrom.radiation.tf_dataset import RadiationTf
from iobench_maelstrom.radiation.tf_pipelines import import_tensorflow

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning"),
]
OPTIONS = [
    {},
    {"hr_units": "K s-1", "netflux": "true", "input_fields": "hl_inputs,pressure_hl"},
    {"minimal_outputs": "true", "topnetflux": "true", "output_fields": "sw,hr_sw"},
    {"minimal_outputs": "true"},
    {"norm": "true"},
    {"norm": "true", "nonormsolar": "true"},
    {"subset": "tier-1-val"},
    {"timestep": "0,2019013100"},
]
KINDS = ["upstream", "climetlab"]


@pytest.fixture(scope="module")
def locator(tiny_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("radiation-tf-baselines")
    return FileLocator(stand_in=tiny_root(RadiationTf()), cache_dir=folder / "cache")


@pytest.fixture
def needs():
    """Skip where a pipeline's libraries are not installed: a function of its kind."""

    def skip(kind):
        pytest.importorskip("tensorflow", reason="upstream's pipeline is TensorFlow's")
        if kind == "climetlab":
            pytest.importorskip(
                "climetlab_maelstrom_radiation",
                reason="the real plugin climetlab-maelstrom-radiation is not installed",
            )

    return skip


def opened(locator, **options):
    dataset = RadiationTf(**options)
    files = dataset.files(locator)
    return dataset, files, dataset.samples(files, locator)


def baseline_of(kind, dataset, files, index, locator, batch_size=100):
    if kind == "upstream":
        return dataset.upstream(files, index, locator, batch_size=batch_size)
    return dataset.through_plugin(files, index, locator, batch_size=batch_size)


def by_pressure(samples):
    """Return samples by the bytes of their pressure, which no two columns share."""
    found = [(sample["pressure_hl"].tobytes(), sample) for sample in samples]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_it_has_both_baselines():
    assert isinstance(RadiationTf(), UpstreamBaseline)
    assert isinstance(RadiationTf(), PluginBaseline)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_samples_are_ours(locator, needs, kind, options):
    needs(kind)
    dataset, files, index = opened(locator, **options)
    mine = by_pressure(make_sample(dataset, where) for where in index.where)
    stream = baseline_of(kind, dataset, files, index, locator).pipeline
    theirs = by_pressure(stream_samples(stream))
    assert stream.n_samples_all == len(theirs) == len(mine)
    for key, sample in mine.items():
        assert tuple(theirs[key]) == index.spec.names
        for name, array in sample.items():
            assert (array.dtype, array.shape) == (theirs[key][name].dtype, theirs[key][name].shape)
            np.testing.assert_array_equal(array, theirs[key][name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_stream_of_batches_that_tensorflow_makes(locator, needs, kind):
    needs(kind)
    dataset, files, index = opened(locator)
    baseline = baseline_of(kind, dataset, files, index, locator)
    stream = baseline.pipeline
    assert stream.framework == "tensorflow"  # whose threads a profile can see
    assert isinstance(stream, Stream)
    assert (stream.stages, stream.batched, stream.ahead, stream.shuffle) == ((), True, 0, 0)
    assert stream.makes == "read+decode+preprocess+collate"
    assert [stream.n_samples(batch) for batch in stream.items(0)] == [100, 100, 56]
    assert baseline.files == tuple(files)
    assert [name for name, _ in baseline.setup_s] == ["TensorFlow"]
    default = baseline_of(kind, dataset, files, index, locator, batch_size=None)
    assert default.batch_size == 512
    assert [stream.n_samples(batch) for batch in default.pipeline.items(0)] == [256]


def test_the_order_follows_from_the_epoch(locator, needs):
    needs("upstream")
    dataset, files, index = opened(locator)
    stream = dataset.upstream(files, index, locator, batch_size=64).pipeline
    orders = [list(by_pressure(stream_samples(stream, epoch))) for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != [make_sample(dataset, w)["pressure_hl"].tobytes() for w in index.where]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_may_be_left_early(locator, needs, kind):
    needs(kind)
    dataset, files, index = opened(locator)
    stream = baseline_of(kind, dataset, files, index, locator, batch_size=16).pipeline
    for epoch in range(2):
        batches = stream.items(epoch)
        assert len(list(itertools.islice(batches, 3))) == 3
        batches.close()


@pytest.mark.parametrize("kind", KINDS)
def test_mcicas_heating_rates_are_mended(locator, needs, tmp_path, kind):
    """Its files hold something else, under other names."""
    needs(kind)
    [file] = RadiationTf().files(locator)
    shutil.copy(file, tmp_path / "TripCloud0.0.tfrecord")
    there = FileLocator(data_dir=tmp_path, cache_dir=tmp_path / "cache")
    dataset, files, index = opened(there, dataset="mcica")
    mine = by_pressure(make_sample(dataset, where) for where in index.where)
    theirs = by_pressure(stream_samples(baseline_of(kind, dataset, files, index, there).pipeline))
    assert set(mine) == set(theirs)
    for key, sample in mine.items():
        np.testing.assert_array_equal(sample["hr_lw"], theirs[key]["hr_lw"])


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named(locator, needs, tmp_path, kind):
    needs(kind)
    [file] = RadiationTf().files(locator)
    copy = Path(shutil.copy(file, tmp_path))
    there = FileLocator(data_dir=tmp_path, cache_dir=tmp_path / "cache")
    dataset, files, index = opened(there)
    content = bytearray(copy.read_bytes())
    content[30_000] ^= 1
    copy.write_bytes(content)
    stream = baseline_of(kind, dataset, files, index, there).pipeline
    message = (
        r"triplecloud0\.0\.tfrecord: TensorFlow cannot read the examples: corrupted record at "
    )
    with pytest.raises(FileFormatError, match=message + r"\d+; fetch the files again$"):
        list(stream.items(0))


def test_folders_that_look_like_patterns(locator, needs, tmp_path):
    needs("upstream")
    folder = tmp_path / "run [1] *"
    folder.mkdir()
    shutil.copy(RadiationTf().files(locator)[0], folder)
    there = FileLocator(data_dir=folder, cache_dir=tmp_path / "cache")
    dataset, files, index = opened(there)
    stream = dataset.upstream(files, index, there, batch_size=None).pipeline
    assert sum(map(stream.n_samples, stream.items(0))) == 256


@pytest.mark.parametrize("kind", KINDS)
def test_missing_tensorflow_is_named_with_what_installs_it(locator, monkeypatch, kind):
    if kind == "climetlab":
        pytest.importorskip("climetlab", reason="CliMetLab is looked for first")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    dataset, files, index = opened(locator)
    with pytest.raises(MissingExtraError, match=r"pip install 'iobench\[.*tensorflow\]'"):
        baseline_of(kind, dataset, files, index, locator)


def test_a_missing_plugin_is_named_with_what_installs_it(locator, monkeypatch):
    pytest.importorskip("climetlab", reason="CliMetLab is looked for first")
    monkeypatch.setitem(sys.modules, "climetlab_maelstrom_radiation", None)
    dataset, files, index = opened(locator)
    with pytest.raises(MissingExtraError, match="--no-deps climetlab-maelstrom-radiation"):
        dataset.through_plugin(files, index, locator, batch_size=None)


def test_tensorflow_is_kept_quiet_and_from_gpus(monkeypatch, capfd):
    hidden = []

    def set_visible_devices(devices, kind):
        hidden.append((devices, kind, os.environ["TF_CPP_MIN_LOG_LEVEL"]))
        os.write(2, b"chatter")
        raise RuntimeError("TensorFlow has run already")

    stub = SimpleNamespace(config=SimpleNamespace(set_visible_devices=set_visible_devices))
    monkeypatch.setitem(sys.modules, "tensorflow", stub)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert import_tensorflow("a test") is stub
    os.write(2, b"heard")
    assert hidden == [([], "GPU", "3")]
    assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    assert capfd.readouterr().err == "heard"
