"""Windows of a ring are slices of the stacked items, each read once a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_sources import NumberReader, NumberSource
from tiny_pipeline import SPEC, tiny_pipeline

from iobench.errors import OptionError
from iobench.loaders.pipeline import windowed_spec
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.sample_source import SampleSource
from iobench.samples import SampleSpec, Variable, Window
from iobench.windows import place_windows

WINDOW = Window((-1, 0), (1,))
OFFSETS = st.lists(st.integers(-3, 3), min_size=1, max_size=3, unique=True).map(tuple)
ROLES = SampleSpec(
    (
        Variable("x", (2, 3), "<f4", ("y", "channel"), channels=("a", "b", "c")),
        Variable("score", (2,), "<f8", ("kind",), "K", "target", channels=("low", "high")),
        Variable("hour", (), "<i2", ()),
    )
)


def test_without_roles_a_variable_is_input_and_target_with_them_each_keeps_its_own():
    assert [(v.name, v.shape, v.dims, v.role) for v in windowed_spec(SPEC, WINDOW)] == [
        ("field", (2, 3, 4), ("step_in", "lat", "lon"), "input"),
        ("level", (2,), ("step_in",), "input"),
        ("field_target", (1, 3, 4), ("step_out", "lat", "lon"), "target"),
        ("level_target", (1,), ("step_out",), "target"),
    ]
    spec = windowed_spec(ROLES, Window((0,), (1, 2)))
    assert [(v.name, v.shape, v.dims, v.role) for v in spec] == [
        ("x", (1, 2, 3), ("step_in", "y", "channel"), "input"),
        ("score", (2, 2), ("step_out", "channel"), "target"),  # or its names would fit no axis
        ("hour", (1,), ("step_in",), "input"),
    ]
    assert (spec["score"].units, spec["score"].channels) == ("K", ("low", "high"))


def test_a_spec_that_cannot_be_stacked_is_refused():
    only = SampleSpec((Variable("y", (), "f4", (), role="target"),))
    with pytest.raises(OptionError, match="none of y is an input"):
        windowed_spec(only, WINDOW)
    twice = SampleSpec((Variable("y", (), "f4", ()), Variable("y_target", (), "f4", ())))
    with pytest.raises(OptionError, match="called y_target, as the targets of another"):
        windowed_spec(twice, WINDOW)
    assert windowed_spec(twice, Window((0, 1))).names == ("y", "y_target")


@given(inputs=OFFSETS, targets=OFFSETS, batch_size=st.integers(1, 9), shuffle=st.booleans())
def test_windows_are_slices_of_the_stacked_items(inputs, targets, batch_size, shuffle):
    window, items = Window(inputs, targets), tiny_pipeline(20)
    samples = [items.make(number) for number in range(20)]
    whole = {name: np.stack([each[name] for each in samples]) for name in SPEC.names}
    placed = place_windows([float(i) for i in range(20)], window)
    assert len(placed) == 20 - (max(0, *window.offsets) - min(0, *window.offsets))
    source = SampleSource(PipelineSource(items), placed.items, window=window)
    order = BatchOrder(len(source), batch_size, shuffle=shuffle)
    loader = RingLoader(source, order, threads=2)
    for number, batch in enumerate(loader):
        for row, sample in enumerate(order.samples(0, number).tolist()):
            centre = placed.centres[sample]
            for name in SPEC.names:
                for offsets, array in ((inputs, name), (targets, f"{name}_target")):
                    expected = whole[name][np.add(centre, offsets)]
                    np.testing.assert_array_equal(batch[array][row], expected, strict=True)


def test_each_item_of_a_batch_is_read_once():
    read: list[list[int]] = []

    class Listening(NumberReader):
        def fill(self, samples, rows, log):
            read.append(samples.tolist())
            super().fill(samples, rows, log)

    class Listened(NumberSource):
        def filler(self):
            return Listening(self)

    table = place_windows([float(i) for i in range(50)], WINDOW).items
    source = SampleSource(Listened(), table, window=WINDOW)
    for batch in RingLoader(source, BatchOrder(48, 6), threads=1):
        assert batch["field"].shape == (6, 2, 3, 5)
        assert (batch["number"][:, 0] == batch["field"][:, 1, 0, 0] + 1).all()
    assert read == [list(range(first, first + 8)) for first in range(0, 48, 6)]
