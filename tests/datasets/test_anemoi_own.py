"""``anemoi:PATH`` against anemoi-datasets itself, which needs an environment of its own.

It pins zarr 2; ``.ci/run --all`` makes that environment.
"""

import logging

import numpy as np
import pytest

from iobench.datasets.anemoi_store import AnemoiDataset
from iobench.datasets.contract import make_sample
from iobench.datasets.user_files import user_files

anemoi = pytest.importorskip("anemoi.datasets", reason="anemoi-datasets is not installed")

from anemoi_stand_in import write_anemoi_store  # noqa: E402 - skipped without it

pytestmark = pytest.mark.filterwarnings("ignore")  # of the other libraries of that environment
NAMES = ["10u", "2t", "msl", "lsm"]
MISSING = (4, 9)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    logging.disable(logging.WARNING)  # it warns of missing dates each time
    yield write_anemoi_store(
        tmp_path_factory.mktemp("anemoi") / "an-o8.zarr", n_dates=20, missing=MISSING
    )
    logging.disable(logging.NOTSET)


class Locator:
    """Nothing is looked for: the store has a path."""

    stand_in = False
    cache_dir = None

    @staticmethod
    def progress(done, total):
        pass


def opened(path, **options):
    dataset = AnemoiDataset(path, **options)
    return dataset, dataset.samples(dataset.files(Locator()), Locator())


def assert_same(path, ours, theirs):
    """Every sample is theirs of that date, and every date of theirs is a sample or missing."""
    dataset, index = opened(path, **ours)
    their = anemoi.open_dataset(str(path), **theirs)
    there = [number for number in range(len(their)) if number not in their.missing]
    assert list(index.coordinate) == [str(their.dates[number]) for number in there]
    assert index.spec["data"].channels == tuple(their.variables)
    assert index.spec["data"].shape == their.shape[1:]
    for number, where in zip(there, index.where, strict=True):
        found = make_sample(dataset, where)["data"]
        np.testing.assert_array_equal(found, their[number], strict=True)


def test_samples_are_open_datasets(path):
    assert_same(path, {}, {})


@pytest.mark.parametrize("order", [NAMES[::-1], ["msl"], ["2t", "10u"]])
def test_select_is_open_datasets(path, order):
    assert_same(path, {"select": ",".join(order)}, {"select": order})


def test_the_store_as_any_zarr_store(path, tmp_path):
    """Missing dates apart, its path alone gives the same numbers."""
    dataset = user_files([path], sample_dim="time", variables=["data"])
    locator = Locator()
    locator.cache_dir = tmp_path
    index = dataset.samples(dataset.files(locator), locator)
    their = anemoi.open_dataset(str(path))
    for number in set(range(len(their))) - set(MISSING):
        found = make_sample(dataset, index.where[number])["data"]
        np.testing.assert_array_equal(found, their[number])
