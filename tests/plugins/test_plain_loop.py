"""``--pipeline upstream``: plain loops of xarray and tf.data make the samples of our readers."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from iobench.datasets.contract import SamplePasses, make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError
from iobench.registry import dataset_names, find_dataset
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.radiation.tf_dataset import RadiationTf
from iobench_maelstrom.yr.dataset import Yr

pytest.importorskip("xarray", reason="plain loops read with xarray")

# Each with the library that reads it.
SAMPLES = [
    ("maelstrom-yr", {"predict_diff": "true", "probabilistic_target": "true"}, "netCDF4"),
    ("maelstrom-ens10", {"target": "none"}, "cfgrib"),
    ("maelstrom-yr", {"size": "5GB"}, "netCDF4"),
    ("maelstrom-yr", {"patch": "100", "x_range": "30,250", "y_range": "11,420"}, "netCDF4"),
    ("maelstrom-radiation", {}, "netCDF4"),
    ("maelstrom-ens10", {}, "cfgrib"),
    ("maelstrom-ens10", {"dtype": "pl", "target": "z500"}, "cfgrib"),
    ("maelstrom-downscaling-tier1", {}, "netCDF4"),
    ("maelstrom-downscaling-tier2", {"variant": "published"}, "netCDF4"),
    ("maelstrom-power", {}, "netCDF4"),
    ("maelstrom-weather-pressure-level", {"sample": "clustering"}, "netCDF4"),
    ("maelstrom-weather-pressure-level", {"levels": "surface"}, "netCDF4"),
    ("deepcam", {}, "h5netcdf"),
]
N_COMPARED = 8


def some(index):
    """Return which samples are compared: all of a few, else those of every part of the index."""
    return sorted({*np.linspace(0, len(index) - 1, N_COMPARED).astype(int).tolist()})


def assert_equal(ours, theirs, index):
    assert set(theirs) == set(ours)
    for name, array in ours.items():
        # Our spec says in which byte order; stacking makes it the machine's.
        assert theirs[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("="), name
        np.testing.assert_array_equal(theirs[name], array, err_msg=name)


def test_every_name_but_one_has_a_plain_loop():
    others = {"maelstrom-radiation-tf", "maelstrom-downscaling"}
    known = {name for name in dataset_names() if hasattr(find_dataset(name), "upstream")}
    assert {name for name, _, _ in SAMPLES} | others == known
    assert set(dataset_names()) - known == {"cosmoflow"}  # of TFRecords


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("name", "options", "library"), SAMPLES, ids=lambda each: str(each))
def test_samples_are_those_of_our_reader(prepared, name, options, library):
    pytest.importorskip(library, reason=f"the plain loop reads {name} with {library}")
    dataset, files, index = prepared(name, **options)
    running = dataset.upstream(files, index, batch_size=None).pipeline
    assert running.fused == ("read", "decode")
    loop = pickle.loads(pickle.dumps(running))  # as in a worker
    for number in some(index):
        where = index.where[number]
        assert_equal(make_sample(dataset, where), make_sample(loop, where), index)
    loop.close()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda path: path.write_bytes(b"nothing"), FileFormatError, "xarray cannot read it"),
        (Path.unlink, MissingFileError, "is gone since it was indexed"),
    ],
)
def test_a_file_that_xarray_cannot_open_is_named(prepared, tmp_path, damage, error, message):
    _, files, _ = prepared("maelstrom-yr", size="5GB")
    copy = Path(shutil.copy(files[0], tmp_path))
    dataset, locator = Yr(size="5GB"), FileLocator(data_dir=tmp_path, cache_dir=tmp_path)
    index = dataset.samples([copy], locator)
    damage(copy)
    with pytest.raises(error, match=rf"{copy.name}: .*{message}"):
        dataset.upstream([copy], index, batch_size=None)


def test_a_variable_spread_over_files_is_refused(prepared):
    pytest.importorskip("cfgrib", reason="the plain loop reads GRIB with cfgrib")
    dataset, files, index = prepared("maelstrom-ens10", target="none")
    assert isinstance(dataset, Ens10)
    dataset.opened[0].variables["tp"].numbers[0] += 1
    with pytest.raises(FileFormatError, match=r"members of tp are in several files"):
        dataset.upstream(files, index, batch_size=None)


def test_what_no_plain_loop_reads_is_refused(prepared, monkeypatch):
    dataset, files, index = prepared("maelstrom-yr", size="5GB")
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match="extra netcdf"):
        dataset.upstream(files, index, batch_size=None)


# ---- tf.data


@pytest.mark.timeout(110)
def test_tf_data_makes_the_samples_of_our_reader(prepared):
    pytest.importorskip("tensorflow", reason="the pipeline is TensorFlow's")
    dataset, files, index = prepared("maelstrom-radiation-tf", timestep="0,2019013100")
    passes = dataset.upstream(files, index, batch_size=100).pipeline
    assert isinstance(passes, SamplePasses)
    assert (passes.framework, passes.batched) == ("tensorflow", True)  # its threads can be seen
    number = 0
    for batch in passes.items(0):
        for row in range(len(batch[index.spec.names[0]])):
            theirs = {name: array[row] for name, array in batch.items()}
            assert_equal(make_sample(dataset, index.where[number]), theirs, index)
            number += 1
    assert number == passes.n_samples_all == len(index)


def test_damage_in_records_is_named(prepared, tmp_path):
    pytest.importorskip("tensorflow", reason="the pipeline is TensorFlow's")
    folder = tmp_path / "run [1] *"  # which is no pattern
    folder.mkdir()
    copy = Path(shutil.copy(prepared("maelstrom-radiation-tf")[1][0], folder))
    there = FileLocator(data_dir=folder, cache_dir=tmp_path / "cache")
    dataset = RadiationTf()
    files = dataset.files(there)
    index = dataset.samples(files, there)
    content = bytearray(copy.read_bytes())
    content[30_000] ^= 1
    copy.write_bytes(content)
    message = r"triplecloud0\.0\.tfrecord: TensorFlow cannot read the examples: corrupted record at"
    with pytest.raises(FileFormatError, match=message + r" \d+; fetch the files again$"):
        list(dataset.upstream(files, index, batch_size=64).pipeline.items(0))
