"""The real plugin of A1, without a network, gives the arrays our reader decodes."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench_maelstrom.yr.dataset import Yr
from iobench_maelstrom.yr.schema import (
    ALL_DATES,
    BUCKET_URL,
    CITATION,
    PREDICTORS,
    STATIC_PREDICTORS,
    TERMS_OF_USE,
    file_url,
)

plugin = pytest.importorskip(
    "climetlab_maelstrom_yr.yr", reason="the real plugin climetlab-maelstrom-yr is not installed"
)

REAL = Path(__file__).parents[1] / "data" / "maelstrom-yr"

pytestmark = [
    pytest.mark.usefixtures("no_network"),
    pytest.mark.filterwarnings("ignore:No index created for dimension time:UserWarning"),
]


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def load(tmp_path):
    """Return what the real plugin makes of files in a mirror, or of ``location``."""
    import climetlab
    from climetlab.mirrors.directory_mirror import DirectoryMirror

    def load(root, size, **options):
        with (
            climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")),
            DirectoryMirror(path=str(root)),
        ):
            return climetlab.load_dataset("maelstrom-yr", size, **options).to_xarray()

    return load


def assert_decoded_equal(theirs, dataset, index):
    """Compare each of our patches with the part of the real plugin's whole arrays."""
    for where in index.where:
        ours = dataset.decode(dataset.read(where), where)
        n_y, n_x = ours["target_mean"].shape
        part = {"leadtime": where.lead, "y": slice(where.y, where.y + n_y)}
        part |= {"x": slice(where.x, where.x + n_x), "time": where.file}
        real = theirs.isel(part)
        np.testing.assert_array_equal(ours["predictors"], real.predictors.values[..., :8])
        np.testing.assert_array_equal(ours["static_predictors"], real.predictors.values[..., 8:])
        np.testing.assert_array_equal(ours["target_mean"], real.targets.values[..., 0])
        np.testing.assert_array_equal(ours["target_std"], real.targets.values[..., 1])
        seconds = real.leadtime.values
        if seconds.dtype.kind == "m":
            seconds = seconds / np.timedelta64(1, "s")
        assert dataset.leadtimes[where.lead] == seconds


def test_real_files_in_a_folder(load, tmp_path):
    theirs = load(tmp_path, "5GB", location=f"{REAL}/", probabilistic_target=True)
    assert dict(theirs.sizes) | {"time": 2, "y": 6, "x": 4, "leadtime": 5} == dict(theirs.sizes)
    dataset = Yr(size="5GB", probabilistic_target="true")
    locator = FileLocator(data_dir=REAL, cache_dir=tmp_path)
    index = dataset.samples(dataset.files(locator), locator)
    assert len(index) == 10
    assert_decoded_equal(theirs, dataset, index)


@pytest.mark.parametrize("size", ["5GB", pytest.param("5TB", marks=pytest.mark.long)])
def test_stand_in_in_a_mirror(load, request, size):
    made = request.getfixturevalue(f"yr_{size.lower()}")
    starts = [file.stem[:8] for file in made.files[:2]]
    theirs = load(made.root, size, dates=starts, probabilistic_target=True)
    dataset = Yr(size=size, dates=",".join(starts), probabilistic_target="true")
    index = dataset.samples(dataset.files(made.locator), made.locator)
    assert_decoded_equal(theirs, dataset, index)


@pytest.mark.long
def test_normalised_differences(load, yr_5gb):
    starts = [file.stem[:8] for file in yr_5gb.files[:2]]
    theirs = load(yr_5gb.root, "5GB", dates=starts, normalize=True, predict_diff=True)
    dataset = Yr(size="5GB", dates=",".join(starts), predict_diff="true")
    index = dataset.samples(dataset.files(yr_5gb.locator), yr_5gb.locator)
    for where in index.where:
        ours = make_sample(dataset, where)
        real = theirs.isel(time=where.file, leadtime=where.lead)
        np.testing.assert_array_equal(ours["predictors"][0, ..., :14], real.predictors.values)
        np.testing.assert_array_equal(ours["targets"][0], real.targets.values)


def test_one_date_is_silently_raw_in_the_real_plugin_and_right_in_ours(load, yr_5gb):
    start = yr_5gb.files[0].stem[:8]
    theirs = load(yr_5gb.root, "5GB", dates=[start], normalize=True)
    assert theirs.sizes["predictor"] == 8
    dataset = Yr(size="5GB", dates=start)
    index = dataset.samples(dataset.files(yr_5gb.locator), yr_5gb.locator)
    ours = make_sample(dataset, index.where[3])["predictors"][0]
    known = (*PREDICTORS, *STATIC_PREDICTORS)
    raw = [theirs.predictors.values[3], theirs.static_predictors.values]
    expected = np.concatenate(raw, axis=-1)
    expected -= np.array([each.mean for each in known], dtype="f4")
    expected /= np.array([each.std for each in known], dtype="f4")
    np.testing.assert_array_equal(ours[..., :14], expected)


def test_facts_are_the_real_plugins():
    real = plugin.Yr
    assert list(ALL_DATES) == real.get_all_dates()
    table = {each.name: [each.mean, each.std] for each in (*PREDICTORS, *STATIC_PREDICTORS)}
    assert table == dict(real.get_normalization())
    assert real.terms_of_use.startswith(TERMS_OF_USE)
    assert CITATION[:40] == real.citation[:40]
    names = [file_url("air_temperature", "5TB", date).removesuffix(".nc") for date in ALL_DATES]
    hour = real.get_hour_from_date
    where = f"{BUCKET_URL}/air_temperature/5TB"
    assert names == [f"{where}/{date}T{hour(None, date):02}Z" for date in ALL_DATES]
