"""Pipelines over windows: the same stages, each item once, stacked as xarray would."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_pipeline import SPEC, STEPS, preprocess, tiny_pipeline

from iobench.errors import OptionError, SampleError
from iobench.loaders.pipeline import Pipeline, Step, windowed_pipeline, windowed_spec
from iobench.recording.kinds import Kind
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


def make(pipeline, number):
    value = pipeline.make(number)
    pipeline.spec.check(value, where=str(number))
    return value


def windowed(pipeline, window=WINDOW):
    return windowed_pipeline(pipeline, place_windows(range(len(pipeline)), window).items, window)


def test_without_roles_a_variable_is_input_and_target():
    spec = windowed_spec(SPEC, WINDOW)
    assert [(v.name, v.shape, v.dims, v.role) for v in spec] == [
        ("field", (2, 3, 4), ("step_in", "lat", "lon"), "input"),
        ("level", (2,), ("step_in",), "input"),
        ("field_target", (1, 3, 4), ("step_out", "lat", "lon"), "target"),
        ("level_target", (1,), ("step_out",), "target"),
    ]


def test_with_roles_each_variable_keeps_its_own():
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


@pytest.mark.parametrize("text", ["-1,0:1", "0:1", "0:1,2", "0:1,2,3", "0:1,2,3,4", "1,-2:0,-2"])
def test_windows_are_slices_of_the_stacked_items(text):
    window = Window.parse(text)
    pipeline = tiny_pipeline(12)
    items = [make(pipeline, number) for number in range(12)]
    placed = place_windows(range(12), window)
    made = windowed_pipeline(pipeline, placed.items, window)
    assert len(made) == len(placed) == 12 - (max(0, *window.offsets) - min(0, *window.offsets))
    for number, centre in enumerate(placed.centres.tolist()):
        sample = make(made, number)
        for name in SPEC.names:
            whole = np.stack([item[name] for item in items])
            np.testing.assert_array_equal(sample[name], whole[np.add(centre, window.inputs)])
            targets = whole[np.add(centre, window.targets)]
            np.testing.assert_array_equal(sample[f"{name}_target"], targets, strict=True)


def of_other_shape(arrays, where):
    made = preprocess(arrays, where)
    return {**made, "field": made["field"][:2]} if made["level"] == 6 else made


def test_an_item_that_is_not_as_the_spec_says_is_named():
    steps = (*STEPS[:2], Step(Kind.PREPROCESS, "", of_other_shape))
    made = windowed(Pipeline(SPEC, range(12), steps))
    make(made, 0)
    with pytest.raises(SampleError, match="the item at offset 1 of a window: array 'field'"):
        make(made, 3)
