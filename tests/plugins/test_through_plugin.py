"""``--pipeline climetlab``: samples out of what the real plugins' ``to_xarray`` gives."""

from __future__ import annotations

import importlib.util
import json
import pickle
import shutil

import numpy as np
import pytest

from iobench.datasets.baseline import MapStyle, PluginBaseline
from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.plain_loop import XarrayLoop
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError, OptionError
from iobench_maelstrom.yr.dataset import Yr

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning"),
]
YR = "climetlab_maelstrom_yr"
RADIATION = "climetlab_maelstrom_radiation"
ENS10 = "climetlab_maelstrom_ens10"
DOWNSCALING = "climetlab_maelstrom_downscaling"
POWER = "climetlab_maelstrom_power_production"
SAMPLES = [
    ("maelstrom-radiation", {"patch": "0,2,10"}, RADIATION),
    ("maelstrom-radiation", {"patch": "4", "raw_inputs": "true"}, RADIATION),
    ("maelstrom-ens10", {"target": "none"}, ENS10),
    ("maelstrom-ens10", {"dtype": "pl", "target": "t850"}, ENS10),
    ("maelstrom-ens5mini", {}, ENS10),
    ("maelstrom-downscaling-tier1", {}, DOWNSCALING),
    ("maelstrom-downscaling-tier2", {"months": "2017-01"}, DOWNSCALING),
    ("maelstrom-power", {}, POWER),
    ("maelstrom-weather-pressure-level", {"levels": "surface"}, POWER),
    ("maelstrom-weather-pressure-level", {"sample": "clustering"}, POWER),
]


@pytest.fixture
def needs():
    """Skip where a plugin is not installed."""

    def skip(package):
        pytest.importorskip("climetlab", reason="climetlab is not installed")
        name = package.replace("_", "-")
        pytest.importorskip(package, reason=f"the real plugin {name} is not installed")

    return skip


def loop_of(dataset, files, index):
    """Return what makes the samples, as in a worker, and its index."""
    assert isinstance(dataset, PluginBaseline)
    baseline = dataset.through_plugin(files, index)
    assert isinstance(baseline.pipeline, MapStyle)
    assert baseline.pipeline.framework == "torch"
    assert "to_xarray()" in baseline.source
    loop = pickle.loads(pickle.dumps(baseline.pipeline.dataset))
    assert isinstance(loop, XarrayLoop)
    return loop, baseline.pipeline.index


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(("name", "options", "package"), SAMPLES)
def test_arrays_are_those_of_our_reader(needs, prepared, name, options, package):
    needs(package)
    dataset, files, index = prepared(name, **options)
    loop, theirs = loop_of(dataset, files, index)
    assert len(theirs) == len(index)
    for number in np.linspace(0, len(index) - 1, 6).astype(int).tolist():
        where = index.where[number]
        ours = dataset.decode(dataset.read(where), where)
        found = make_sample(loop, theirs.where[number])
        theirs.spec.check(found, where=f"sample {number}")
        assert set(found) == {*ours} - {"target"}  # the plugin has none
        for each, array in found.items():
            if each == "production" and name == "maelstrom-power":  # of an hour the first value
                assert array == ours[each].ravel()[0]
                continue
            np.testing.assert_array_equal(array, ours[each].reshape(array.shape), err_msg=each)
    loop.close()


@pytest.mark.parametrize("n_files", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_patches_are_taken_out_of_the_plugins_arrays(needs, prepared, n_files):
    needs(YR)
    _, files, _ = prepared("maelstrom-yr", size="5GB")
    dates = ",".join(file.stem[:8] for file in files[-n_files:])
    crop = {"patch": "50", "x_range": "3,110", "y_range": "7,120"}
    dataset, files, index = prepared(
        "maelstrom-yr", size="5GB", normalize="false", dates=dates, **crop
    )
    loop, theirs = loop_of(dataset, files, index)
    assert dataset.through_plugin(files, index).pipeline.workers == 1
    for number in (0, len(index) // 2, len(index) - 1):
        ours, found = (make_sample(dataset, index.where[number]), loop.read(theirs.where[number]))
        if n_files == 1:  # then the plugin gives the file's own variables
            np.testing.assert_array_equal(found["target_mean"], ours["targets"][0, ..., 0])
            np.testing.assert_array_equal(found["predictors"], ours["predictors"][0, ..., :8])
        else:
            np.testing.assert_array_equal(found["targets"], ours["targets"][0])
            np.testing.assert_array_equal(found["predictors"], ours["predictors"][0, ..., :14])


# ---- through the command line


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "package", "stages"),
    [
        ("maelstrom-ens10", ENS10, {"read", "decode"}),
        ("maelstrom-yr", YR, {"open"}),  # which reads all at once
        ("maelstrom-radiation", RADIATION, {"read"}),
    ],
)
def test_a_profile_tells_reading_from_decoding_in_its_workers(
    needs, profiled, name, package, stages
):
    needs(package)
    pytest.importorskip("torch", reason="the workers are of torch's DataLoader")
    run, own = profiled(
        name, "--tiny", "--pipeline", "climetlab,own", "--batches", "4", "--batch-size", "2",
        "--compute", "none", "--workers", "1",
    )  # fmt: skip
    assert (run["pipeline"], own["pipeline"]) == ("climetlab", "own")
    assert (run["framework"], run["workers"], run["batches"]) == ("torch", 1, 4)
    found = {row["stage"]: row["busy_ns"] for row in run["stages"]}
    for stage in stages:
        assert sum(busy for each, busy in found.items() if each.partition(":")[0] == stage) > 0
    assert sum(run["exposed_ns"].values()) == run["wait_ns"]


@pytest.fixture
def profiled(iobench_here, store_dir):
    def run(*arguments):
        done = iobench_here("profile", *arguments, "--store-dir", store_dir, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["runs"]

    return run


# ---- what cannot be


def gone(path):
    path.unlink()


def damaged(path):
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(1000))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (gone, MissingFileError, "files that are gone: .*T09Z.nc"),
        (damaged, FileFormatError, r"and 1 more: the plugin of maelstrom-yr cannot"),
    ],
)
def test_files_that_the_plugin_cannot_open_are_named(
    needs, prepared, tmp_path, change, error, message
):
    needs(YR)
    _, files, _ = prepared("maelstrom-yr", size="5GB")
    for file in files[:2]:
        shutil.copy(file, tmp_path)
    locator = FileLocator(data_dir=tmp_path, cache_dir=tmp_path)
    dataset = Yr(size="5GB")
    copies = dataset.files(locator)
    index = dataset.samples(copies, locator)
    change(copies[1])
    with pytest.raises(error, match=message):
        dataset.through_plugin(copies, index)


def test_files_under_names_of_ones_own_are_refused(prepared):
    dataset, files, index = prepared("maelstrom-ens10", target="none")
    dataset.keys_at_hand = ()
    with pytest.raises(OptionError, match="the plugin knows files by the names they are published"):
        dataset.through_plugin(files, index)


@pytest.mark.parametrize(
    ("name", "absent", "install"),
    [
        ("maelstrom-downscaling-tier1", "climetlab", r"iobench\[climetlab\]"),
        ("maelstrom-downscaling-tier1", DOWNSCALING, r"iobench\[climetlab\]"),
        ("maelstrom-radiation", RADIATION, "--no-deps climetlab-maelstrom-radiation"),
        (
            "maelstrom-weather-pressure-level",
            POWER,
            "--no-deps climetlab-maelstrom-power-production",
        ),
    ],
)
def test_what_is_not_installed_is_named(prepared, monkeypatch, name, absent, install):
    dataset, files, index = prepared(name)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda each, *more: None if each == absent else found(each, *more) or object(),
    )
    with pytest.raises(MissingExtraError, match=rf"needs {absent}: .*{install}"):
        dataset.through_plugin(files, index)
