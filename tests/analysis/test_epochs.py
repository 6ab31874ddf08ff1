"""Figures by epoch: exact sums of the whole run, and the statistics of D2.3 within each."""

import statistics
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import epochs, pool
from scripts import LOOP, Script

from iobench.analysis.epochs import epoch_figures
from iobench.analysis.exposure import step_statistics
from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

few = settings(max_examples=max(settings().max_examples // 3, 12), deadline=None)
times = st.integers(0, 200)
rounds = st.lists(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=4), min_size=1, max_size=3
)


def several_epochs(made, workers, step_ns, told):
    """Return a run of a round per epoch; the loader numbers them from 3, or says nothing."""
    sketch = epochs(
        [pool(each, workers=workers, step_ns=step_ns, drain_ns=7) for each in made], pause_ns=1
    )
    starts = [s["start_ns"] for s in sketch.spans if s["kind"] == Kind.OTHER]
    spans = []
    for span in sketch.spans:
        place = int(np.searchsorted(starts, span["start_ns"], side="right")) - 1
        if span["kind"] == Kind.WAIT:
            at_end = span.get("label") == "shutdown"
            spans.append({**span, "epoch": place + 3 if told else -1})
            end = span["end_ns"]
            if not at_end and step_ns > 20:
                spans.append({**span, "kind": Kind.FORWARD, "start_ns": end, "end_ns": end + 11})
                end += 11
                spans.append({**span, "kind": Kind.BACKWARD, "start_ns": end, "end_ns": end + 9})
        else:
            spans.append(span)
    for span in spans:
        if span["kind"] in (Kind.FORWARD, Kind.BACKWARD):
            span.pop("detail", None)
    return sketch.with_spans(spans)


def add_up(figures, whole):
    parts = [each.part for each in figures]
    for name in ("n_batches", "wall_ns", "wait_ns", "compute_ns"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    for rows, name in (
        ("stages", "busy_ns"),
        ("stages", "exposed_ns"),
        ("compute_stages", "busy_ns"),
    ):
        found: Counter[str] = Counter()
        for part in parts:
            for row in getattr(part, rows):
                found[row.stage] += getattr(row, name)
        assert found == {row.stage: getattr(row, name) for row in getattr(whole, rows)}
    for part in parts:
        assert sum(part.exposed_ns.values()) == part.wait_ns


@few
@given(rounds, st.integers(0, 3), st.integers(0, 60), st.booleans())
def test_epochs_add_up_to_the_run(made, workers, step_ns, told):
    profile = several_epochs(made, workers, step_ns, told).data()
    figures = epoch_figures(Run(profile).of_rank())
    add_up(figures, exposure(profile).whole)
    first = 3 if told else 0
    assert [each.epoch for each in figures] == [first + place for place in range(len(made))]
    assert [each.part.n_batches for each in figures] == [len(each) for each in made]
    assert all(each.complete for each in figures)
    for each in figures:
        assert each.batch is not None
        n = each.part.n_batches
        assert each.batch.n_steps == n
        assert each.batch.mean_ns * n <= each.part.wall_ns + n
        assert [*each.busy] == [*each.exposed] == [row.stage for row in each.part.stages]
        for row in each.part.stages:
            assert each.busy[row.stage].n_steps == n
            assert each.exposed[row.stage].mean_ns * n <= row.exposed_ns + n


actions = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("compute"), st.just(0), times),
        st.tuples(st.sampled_from(("iter", "end", "leave")), st.integers(0, 2), st.just(0)),
    ),
    max_size=40,
)


@few
@given(st.lists(st.tuples(st.integers(0, 2), times), min_size=1, max_size=3), actions)
def test_epochs_of_scripts_with_any_loaders_add_up_to_the_run(loaders, program):
    script = Script()
    made = [script.loader(workers, 2, (30, 20, 10), start) for workers, start in loaders]
    for action, which, value in program:
        if action == "compute":
            script.compute(value)
        else:
            getattr(made[which % len(made)], action)()
    profile = script.data()
    add_up(epoch_figures(Run(profile).of_rank()), exposure(profile).whole)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=30))
def test_statistics_are_those_of_the_standard_library(values):
    found = step_statistics(np.array(values, dtype=np.int64))
    assert found.n_steps == len(values)
    assert (found.min_ns, found.max_ns) == (min(values), max(values))
    assert found.mean_ns == pytest.approx(statistics.mean(values), abs=1)
    assert found.median_ns == pytest.approx(statistics.median(values), abs=1)
    if len(values) > 1:
        assert found.stdev_ns == pytest.approx(statistics.stdev(values), abs=1)
    else:
        assert found.stdev_ns is None


def training(script, loader, n_batches, *, end=True):
    for _ in range(n_batches):
        loader.next()
        script.compute(10)
    if end:
        loader.end()


def test_a_validation_is_of_the_epoch_before_it():
    script = Script()
    train, validation = script.loader(workers=1), script.loader()
    for epoch in range(3):
        training(script, train, 4)
        if epoch != 1:
            training(script, validation, 2)
    assert [each.part.n_batches for each in epoch_figures(Run(script.data()).of_rank())] == [
        6,
        4,
        6,
    ]


def test_a_loader_made_anew_for_each_epoch_counts_epochs():
    script = Script()
    names = []
    for epoch in range(3):
        loader = script.loader()
        training(script, loader, 4, end=epoch < 2)
        names.append(loader.number)
    script.sketch.loaders = [
        msgspec.structs.replace(each, name="Samples") for each in script.sketch.loaders
    ]
    figures = epoch_figures(Run(script.data()).of_rank())
    assert [(each.epoch, each.part.n_batches, each.complete) for each in figures] == [
        (0, 4, True), (1, 4, True), (2, 4, False),
    ]  # fmt: skip


def test_an_epoch_that_was_cut_off_is_not_complete_and_its_last_batch_has_no_end():
    sketch = SketchedRun({"workers": 0})
    for batch, start in enumerate((0, 50, 100)):
        sketch.wait(batch, start, start + 10, "consumer", epoch=0)
        sketch.add(CONSUMER, Kind.FORWARD, start + 10, start + 40, batch=batch)
    (figures,) = epoch_figures(Run(sketch.data()).of_rank())
    assert not figures.complete
    assert figures.part.n_batches == 3
    assert figures.batch == step_statistics(np.array([50, 50]))
    assert figures.forward.n_steps == 3


@pytest.mark.parametrize(
    ("n_samples", "batches", "complete"),
    [
        (5, (3, 3), [True, True]),
        (5, (3, 2), [True, False]),  # a short last batch is missing
        (5, (2, 2), [True, True]),  # the loader leaves short batches out
        (5, (2,), [False]),  # that cannot be known yet
        (4, (2, 2), [True, True]),
        (1, (1, 1), [False, False]),  # a batch is of two epochs
    ],
)
def test_an_epoch_may_end_in_a_short_batch(n_samples, batches, complete):
    sketch = several_epochs([[(1, 1, 1)] * number for number in batches], 0, 5, True)
    sketch.config.update(n_samples=n_samples, batch_size=2)
    assert [each.complete for each in epoch_figures(Run(sketch.data()).of_rank())] == complete


def test_an_epoch_whose_first_batches_were_not_recorded_is_not_complete():
    script = Script()
    loader = script.loader()
    training(script, loader, 3)
    for span in script.sketch.spans:
        if span["lane"] == LOOP and span["kind"] == Kind.OTHER:
            span["nbytes"] = 100  # delivered before the recording began
    (figures,) = epoch_figures(Run(script.data()).of_rank())
    assert not figures.complete


@pytest.mark.parametrize(
    ("last_nbytes", "n_samples"),
    [(400, 12), (300, 11), (100, 9), (250, 12), (399, 12), (500, 12), (0, 12), (-1, 12)],
)
def test_a_last_batch_is_short_by_whole_samples_or_as_large_as_asked_for(last_nbytes, n_samples):
    sketch = SketchedRun({"workers": 0, "batch_size": 4})
    for batch, nbytes in enumerate((400, 400, last_nbytes)):
        start = 50 * batch
        sketch.wait(batch, start, start + 10, "consumer", epoch=0, nbytes=nbytes)
    sketch.shutdown(150, 151)
    sketch.round(0, 151)
    (figures,) = epoch_figures(Run(sketch.data()).of_rank())
    assert figures.part.n_samples == n_samples
