"""What a loader calls its dataset has its samples: windows, not the items."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from number_stores import write_numbers
from ring_sources import NumberSource

import iobench
from iobench.samples import Window
from iobench.windows import place_windows

if TYPE_CHECKING:
    from iobench.loaders.ring.loader import RingLoader
    from iobench.stores.contract import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_numbers(tmp_path / "store", n_samples=20)


def check(loader: RingLoader) -> None:
    """Compare ``dataset[i]`` with the batches."""
    dataset: Any = loader.dataset
    seen = []
    for number, batch in enumerate(loader):
        samples = loader.order.samples(0, number).tolist()
        seen += samples
        for row, sample in enumerate(samples):
            one = dataset[sample]
            assert one.keys() == batch.keys()
            for name, array in batch.items():
                assert np.array_equal(one[name], array[row])
    assert sorted(seen) == list(range(len(dataset)))
    loader.close()


@pytest.mark.parametrize("fmt", ["numpy", "tfrecord"])
def test_windows_and_whole_samples(tmp_path: Path, fmt: str) -> None:
    store = write_numbers(tmp_path / "store", n_samples=20, fmt=fmt)
    window = place_windows([float(i) for i in range(20)], Window((-1, 0), (1,)))
    check(iobench.loader(store, 4, window=window, shuffle=True))
    check(iobench.loader(store, 4, shuffle=True))


def test_a_plain_loader_has_the_store_itself(store: Store) -> None:
    loader = iobench.loader(store, 4)
    assert loader.dataset is store
    loader.close()


def test_samples_of_windows_go_to_other_processes(store: Store) -> None:
    window = place_windows([float(i) for i in range(20)], Window((0,), (1,)))
    loader = iobench.loader(store, 4, window=window)
    dataset: Any = pickle.loads(pickle.dumps(loader.dataset))
    loader.close()
    assert dataset[-1]["number"].tolist() == [18]
    with pytest.raises(IndexError, match="no sample 19, there are 19"):
        dataset[19]


def test_a_source_of_the_users_can_be_asked_as_well() -> None:
    loader = iobench.loader(NumberSource(), 4)
    dataset: Any = loader.dataset
    assert len(dataset) == 50
    assert dataset[7]["number"] == 7
    loader.close()
    del dataset, loader
