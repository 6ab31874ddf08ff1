"""What can only be iterated over: batches in its order, each one stage of the loop's own thread."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from iobench.datasets.contract import SamplePasses
from iobench.errors import SampleError, WorkerError
from iobench.loaders.planned_loaders import IterableLoader
from iobench.loaders.ring.order import plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile
from iobench.samples import SampleSpec, Variable

SPEC = SampleSpec((Variable("x", (2,), "<f4", ("x",)),))


def sample(number):
    return {"x": np.full(2, number, dtype=np.float32)}


def batch(*numbers):
    return {"x": np.stack([sample(number)["x"] for number in numbers])}


def loaded(tmp_path, n_batches, items, *how, **more):
    """Return the first numbers of the samples of each batch of two."""
    directory = RunDirectory.create(tmp_path / "run", {})
    passes = SamplePasses(SPEC, items, *how, **more)
    with (
        directory.recorder(role="consumer") as recorder,
        IterableLoader(passes, 2, recorder=recorder) as loader,
    ):
        plan = itertools.islice(plan_batches(5, 2), n_batches)
        return [each.arrays["x"][:, 0].tolist() for each in loader.batches(plan)]


def test_samples_are_stacked_across_passes(tmp_path):
    def items(epoch):
        return (sample(10 * epoch + number) for number in range(3))

    assert loaded(tmp_path, 4, items, 3) == [[0, 1], [2, 10], [11, 12], [20, 21]]
    profile = open_profile(tmp_path / "run")
    spans = profile.spans[profile.spans["kind"] == Kind.FUSED]
    assert spans["batch"].tolist() == [0, 1, 2, 3]
    assert spans["epoch"].tolist() == [0, 1, 1, 2]
    assert spans["nbytes"].tolist() == [16] * 4
    assert {profile.strings[each] for each in spans["label"]} == {"read+decode+preprocess+collate"}


def test_batches_are_handed_on_as_they_are(tmp_path):
    def items(epoch):
        return [batch(0, 1), batch(epoch)]

    made = loaded(tmp_path, 5, items, 3, batched=True)
    assert made == [[0, 1], [0], [0, 1], [1], [0, 1]]
    assert (open_profile(tmp_path / "run").spans["kind"] == Kind.FUSED).sum() == 5


def _raises(epoch):
    yield sample(0)
    raise KeyError("no such field\nand more")


def _has_ended(epoch):
    raise SampleError("its own words")


@pytest.mark.parametrize(
    ("items", "how", "error", "message"),
    [
        (_raises, (3,), WorkerError, r"batch 0, pass 0: KeyError: 'no such field"),
        (_has_ended, (3,), SampleError, "^its own words$"),
        (lambda _: [sample(0)], (3,), WorkerError, r"pass 0 has 1 samples, expected 3"),
        (lambda _: [], (0,), WorkerError, r"pass 0 has 0 samples, expected more"),
        (lambda _: [{"x": np.zeros(3)}] * 3, (3,), SampleError, r"batch 0: .*'x'"),
        (lambda _: [batch(1, 2, 3)], (3, True), SampleError, "expected arrays of 1 to 2 samples"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, items, how, error, message):
    with pytest.raises(error, match=message):
        loaded(tmp_path, 2, items, *how)


def test_a_pass_that_is_left_is_closed(tmp_path):
    closed = []

    def items(epoch):
        try:
            while True:
                yield sample(epoch)
        finally:
            closed.append(epoch)

    assert loaded(tmp_path, 2, items) == [[0, 0], [0, 0]]
    assert closed == [0]
