"""Samples made from the real plugin's arrays are those of our own reader."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest

from iobench.datasets.baseline import PluginBaseline
from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.errors import MissingFileError
from iobench_maelstrom.ens10.ens5mini import Ens5mini

pytest.importorskip(
    "climetlab_maelstrom_ens10", reason="the real plugin climetlab-maelstrom-ens10 is not installed"
)


@pytest.fixture(scope="module")
def root(tiny_root):
    return tiny_root(Ens5mini())


@pytest.fixture
def locator(root, tmp_path):
    return FileLocator(stand_in=root, cache_dir=tmp_path)


def test_its_samples_are_ours(locator):
    dataset = Ens5mini()
    assert isinstance(dataset, PluginBaseline)
    files = dataset.files(locator)
    index = dataset.samples(files, locator)
    made = dataset.through_plugin(files, index)
    pipeline = made.pipeline
    assert (pipeline.framework, pipeline.workers, made.batch_size) == ("torch", 2, 1)
    assert pipeline.index.spec == index.spec
    content = pickle.dumps(pipeline.dataset)
    for number, where in enumerate(index.where):
        ours = make_sample(dataset, where)["inputs"]
        theirs = make_sample(pipeline.dataset, pipeline.index.where[number])
        index.spec.check(theirs, where=f"sample {number}")
        np.testing.assert_array_equal(theirs["inputs"], ours)
    assert len(pickle.dumps(pipeline.dataset)) <= len(content) + 1000
    again = pickle.loads(content)
    np.testing.assert_array_equal(make_sample(again, pipeline.index.where[-1])["inputs"], ours)


def test_a_month_in_several_files_is_refused(root, tmp_path, locator):
    import xarray

    dataset = Ens5mini()
    for file in dataset.files(locator):
        shutil.copyfile(file, tmp_path / file.name)
    with xarray.open_dataset(tmp_path / "ens5mini.01.nc", decode_times=False) as data:
        data.load()
    assert data.time.units.startswith("seconds")
    a_day_later = data.time.values + 86400
    later = data.assign_coords(time=("time", a_day_later, data.time.attrs))
    later.to_netcdf(tmp_path / "ens5mini.07.nc")
    own = FileLocator(data_dir=tmp_path, cache_dir=tmp_path / "cache")
    files = dataset.files(own)
    index = dataset.samples(files, own)
    with pytest.raises(MissingFileError, match=r"of 01 from https.*ens5mini.01.nc, here they"):
        dataset.through_plugin(files, index)
