"""What a loader calls its dataset has its samples: windows, not the items."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from number_stores import write_numbers
from ring_sources import NumberSource

import iobench
from iobench.samples import Window
from iobench.windows import place_windows


def test_samples_by_number_are_those_of_batches(tmp_path):
    store = write_numbers(tmp_path / "store", n_samples=20)
    window = place_windows([float(i) for i in range(20)], Window((-1, 0), (1,)))
    loader = iobench.loader(store, 4, window=window, shuffle=True)
    dataset: Any = pickle.loads(pickle.dumps(loader.dataset))
    for number, batch in enumerate(loader):
        for row, sample in enumerate(loader.order.samples(0, number).tolist()):
            one = dataset[sample]
            assert one.keys() == batch.keys()
            assert all(np.array_equal(one[name], batch[name][row]) for name in one)
    assert len(dataset) == 18
    with pytest.raises(IndexError, match="no sample 18, there are 18"):
        dataset[18]
    loader.close()
    assert iobench.loader(store, 4).dataset is store
    of_source: Any = iobench.loader(NumberSource(), 4).dataset
    assert (len(of_source), of_source[-1]["number"]) == (50, 49)
