"""Windows in the ring are those of the pipeline, and read each item of a batch once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ring_sources import NumberReader, NumberSource
from tiny_pipeline import tiny_pipeline

from iobench.loaders.pipeline import windowed_pipeline
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.sample_source import SampleSource
from iobench.samples import Window
from iobench.windows import place_windows

OFFSETS = st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True).map(tuple)


@given(inputs=OFFSETS, targets=OFFSETS, batch_size=st.integers(1, 9), shuffle=st.booleans())
def test_windows_are_those_of_the_pipeline(inputs, targets, batch_size, shuffle):
    window = Window(inputs, targets)
    items = tiny_pipeline(20)
    placed = place_windows([float(i) for i in range(20)], window)
    expected = windowed_pipeline(items, placed.items, window)
    source = SampleSource(PipelineSource(items), placed.items, window=window)
    assert source.spec == expected.spec
    order = BatchOrder(len(source), batch_size, shuffle=shuffle)
    loader = RingLoader(source, order, threads=2)
    for number, batch in enumerate(loader):
        for row, sample in enumerate(order.samples(0, number).tolist()):
            for name, array in expected.make(sample).items():
                assert np.array_equal(batch[name][row], array)


def test_each_item_of_a_batch_is_read_once():
    read: list[list[int]] = []

    class Listening(NumberReader):
        def fill(self, samples, rows, log):
            read.append(samples.tolist())
            super().fill(samples, rows, log)

    class Listened(NumberSource):
        def filler(self):
            return Listening(self)

    window = Window((-1, 0), (1,))
    table = place_windows([float(i) for i in range(50)], window).items
    loader = RingLoader(
        SampleSource(Listened(), table, window=window), BatchOrder(48, 6), threads=1
    )
    for batch in loader:
        assert batch["field"].shape == (6, 2, 3, 5)
        assert (batch["number"][:, 0] == batch["field"][:, 1, 0, 0] + 1).all()
    assert read == [list(range(first, first + 8)) for first in range(0, 48, 6)]
