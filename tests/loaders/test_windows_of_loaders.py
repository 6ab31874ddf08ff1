"""Windows of a ring are slices of the stacked items, each read once a batch."""

from __future__ import annotations

import pytest
from ring_sources import NumberReader, NumberSource
from tiny_pipeline import SPEC

from iobench.errors import OptionError
from iobench.loaders.pipeline import windowed_spec
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.sample_source import SampleSource
from iobench.samples import SampleSpec, Variable, Window
from iobench.windows import place_windows

WINDOW = Window((-1, 0), (1,))
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
