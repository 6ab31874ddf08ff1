"""Samples made from the real plugin's arrays are those of our own reader."""

from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest

from iobench.datasets.baseline import PluginBaseline
from iobench.datasets.contract import make_sample
from iobench.datasets.grib_index import index_grib
from iobench.datasets.locate import FileLocator
from iobench.datasets.patterns import FilePattern
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError
from iobench_maelstrom import plugin_samples
from iobench_maelstrom.ens10.dataset import Ens10

pytest.importorskip(
    "climetlab_maelstrom_ens10", reason="the real plugin climetlab-maelstrom-ens10 is not installed"
)


def baselined(root, cache_dir, **options):
    dataset = Ens10(**options)
    locator = FileLocator(stand_in=root, cache_dir=cache_dir)
    files = dataset.files(locator)
    index = dataset.samples(files, locator)
    return dataset, index, dataset.through_plugin(files, index)


def assert_equal_samples(dataset, index, pipeline, numbers):
    assert pipeline.index.spec == index.spec
    for number in numbers:
        ours = make_sample(dataset, index.where[number])
        theirs = make_sample(pipeline.dataset, pipeline.index.where[number])
        index.spec.check(theirs, where=f"sample {number}")
        assert list(theirs) == list(ours)
        for name, array in ours.items():
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)


@pytest.mark.parametrize("target", ["era5", "none"])
def test_its_samples_are_ours(tiny, tmp_path, target):
    before = sorted(tiny.bucket.rglob("*"))
    dataset, index, made = baselined(tiny.root, tmp_path / "cache", target=target)
    assert isinstance(dataset, PluginBaseline)
    assert (made.pipeline.framework, made.pipeline.workers, made.batch_size) == ("torch", 2, 1)
    assert_equal_samples(dataset, index, made.pipeline, range(4) if target == "era5" else [1])
    left = [path for path in tiny.bucket.rglob("*") if path not in before]
    assert [path for path in left if ".iobench" not in path.parts] == []


@pytest.mark.long
def test_its_samples_are_ours_at_a_pressure_level(pressure_root, tmp_path):
    dataset, index, made = baselined(
        pressure_root, tmp_path, date="0104", dtype="pl", target="t850"
    )
    assert_equal_samples(dataset, index, made.pipeline, range(2))


def test_a_file_is_opened_once(tiny, tmp_path, monkeypatch):
    _, _, made = baselined(tiny.root, tmp_path / "cache", date="0101")
    opened = []
    real = plugin_samples.open_through_plugin
    monkeypatch.setattr(
        plugin_samples, "open_through_plugin", lambda asked: (opened.append(asked), real(asked))[1]
    )
    dataset, where = made.pipeline.dataset, made.pipeline.index.where
    content = pickle.dumps(dataset)
    assert len(content) < 5000
    samples = [make_sample(dataset, each)["inputs"] for each in (where[0], where[1], where[0])]
    assert [asked.arguments for asked in opened] == [{"date": "0101", "dtype": "sfc"}]
    other = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(make_sample(other, where[1])["inputs"], samples[1])
    assert len(opened) == 2


def test_a_date_in_several_files_is_refused(tiny, tmp_path):
    folder = tmp_path / "split"
    folder.mkdir()
    [source] = [file for file in tiny.files if file.name == "output.sfc.20180101"]
    index = index_grib([source], cache_dir=tmp_path)
    data = source.read_bytes()
    for year in (2015, 2016):
        rows = index.rows(dataDate=int(f"{year}0101")).tolist()
        parts = [data[offset : offset + length] for _, offset, length in index.extents(rows)]
        (folder / f"{year}0101.grib").write_bytes(b"".join(parts))
    dataset = Ens10(target="none")
    pattern = FilePattern(f"{folder}/{{year}}{{month}}{{day}}.grib")
    locator = FileLocator(cache_dir=tmp_path / "cache", data_dir=folder, pattern=pattern)
    files = dataset.files(locator)
    with pytest.raises(MissingFileError, match=r"all years of 0101 from https.*0101, here they"):
        dataset.through_plugin(files, dataset.samples(files, locator))


def test_other_members_than_the_indexs_are_an_error(tiny, tmp_path, monkeypatch):
    _, _, made = baselined(tiny.root, tmp_path / "cache", date="0101")
    real = plugin_samples.open_through_plugin
    monkeypatch.setattr(
        plugin_samples,
        "open_through_plugin",
        lambda asked: real(asked).assign_coords(number=[1, 2, 4]),
    )
    with pytest.raises(FileFormatError, match=r"members \(1, 2, 4\), expected .*\(1, 2, 3\)"):
        made.pipeline.dataset.read(made.pipeline.index.where[0])


def test_a_file_that_went_away_is_named_by_its_url(tiny, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(tiny.root, root)
    _, _, made = baselined(root, tmp_path / "cache", date="0101")
    for path in root.rglob("output.sfc.20180101"):
        path.unlink()
    with pytest.raises(MissingFileError, match=r"https://.*output\.sfc\.20180101"):
        made.pipeline.dataset.read(made.pipeline.index.where[0])


def test_without_the_plugin_says_what_installs_it(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(plugin_samples.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"needs climetlab and climetlab_maelstrom_ens10: pip install"
    ):
        baselined(tiny.root, tmp_path / "cache")
