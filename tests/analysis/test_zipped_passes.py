"""Passes over several loaders that are asked in turns, and what recording takes between waits."""

import pytest
from msgspec.structs import replace
from scripts import LOOP, Script

from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun


def figures(script):
    """Return those of a rank whose loaders are alike."""
    script.sketch.loaders = [replace(each, name="Samples") for each in script.sketch.loaders]
    return script.sketch.open().of_rank()


def zipped(*n_batches, n_epochs=1, cycles=(), anew=False, steps=True):
    """Return the figures of a loop that asks loaders in turns until the shortest one ends."""
    script = Script()
    loaders = [script.loader() for _ in n_batches]
    for epoch in range(n_epochs):
        if anew and epoch:
            loaders = [script.loader() for _ in n_batches]
        left = list(n_batches)
        for loader in loaders:
            loader.iter()
        going = True
        while going:
            for place, loader in enumerate(loaders):
                if not left[place]:
                    loader.end()
                    going = going and place in cycles
                    if not going:
                        break
                    loader.iter()
                    left[place] = n_batches[place]
                left[place] -= 1
                loader.next()
            else:
                if steps:
                    script.sketch.add(LOOP, Kind.BACKWARD, script.now, script.now + 30)
                    script.sketch.add(LOOP, Kind.STEP, script.now + 30, script.now + 40)
                script.now += 40
        for loader in loaders:
            loader.leave()
        script.now += 100
    return figures(script)


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("more", [{}, {"anew": True}])
@pytest.mark.parametrize("n_batches", [(5, 8), (8, 5), (6, 6), (5, 7, 9)])
def test_loaders_that_are_asked_in_turns_are_one_pass(n_batches, more, steps):
    for n_epochs in (1, 3):
        run = zipped(*n_batches, n_epochs=n_epochs, steps=steps, **more)
        assert len({*run.deliveries.of_epoch.tolist()}) == n_epochs
        n_steps = min(n_batches) * n_epochs
        assert run.deliveries.steps.n_steps == n_steps
        assert run.deliveries.steps.batches_per_step == len(n_batches)
        whole = run.exposure.whole
        assert whole.wait.median_ns == 60 * len(n_batches)
        n_asked = n_steps * len(n_batches) + n_epochs * (n_batches[0] > min(n_batches))
        assert whole.wait_ns == 60 * n_asked + 3 * n_epochs
        assert whole.wait_ns + whole.own_ns + whole.compute_ns == whole.wall_ns


@pytest.mark.parametrize(
    ("n_batches", "cycles"), [((9, 2), (1,)), ((2, 9), (0,)), ((7, 2, 3), (1, 2))]
)
def test_an_epoch_is_a_pass_over_the_loader_that_ends_it(n_batches, cycles):
    run = zipped(*n_batches, n_epochs=2, cycles=cycles)
    assert len({*run.deliveries.of_epoch.tolist()}) == 2


def test_a_loader_for_each_epoch_and_one_that_validates_are_asked_one_after_another():
    script = Script()
    for _ in range(3):
        for n_batches in (4, 1):
            loader = script.loader()
            loader.iter()
            for _ in range(n_batches):
                loader.next()
                script.now += 40
            loader.end()
    assert len({*figures(script).deliveries.of_epoch.tolist()}) == 3


def test_what_recording_takes_between_waits_is_neither_wait_nor_computing():
    sketch = SketchedRun(workers=0)
    for batch in range(4):
        at = 100 * batch
        sketch.add(CONSUMER, Kind.READ, at, at + 60, batch=batch)
        sketch.wait(batch, at, at + 60, "consumer", cpu_ns=(-1, 15, 50, 7)[batch])
    sketch.shutdown(400, 410)
    around = sketch.with_spans(sketch.spans.copy())
    around.add(CONSUMER, Kind.FORWARD, 170, 195)  # of 100 to 200: it has all but 15 of the 40
    part = around.open().of_rank().exposure.whole
    assert (part.own_ns, part.compute_rest_ns) == (15 + 15 + 7, 410 - 250 - 37 - 25)
    of_rank = sketch.open().of_rank()
    whole, (replayed,) = of_rank.exposure.whole, recorded_runs(of_rank)
    assert replayed.compute_ns.tolist() == [25, 0, 33, 40]
    assert (replayed.wall_ns, replay(replayed).wall_ns) == (410 - 62, 410 - 62)
    figures = whole.figures
    assert figures.wall_ns == figures.wait_ns + figures.own_ns + figures.compute_ns
    # No more than there is between two waits, and nothing of what an earlier version recorded.
    assert (whole.wall_ns, whole.wait_ns, whole.own_ns) == (410, 250, 15 + 40 + 7)
    assert whole.compute_ns == 160 - 62
    assert whole.wait_fraction == 250 / (410 - 62)
