"""Scripts: whose waits count, passes over several loaders, epochs, and what a loop does itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import check_rank
from msgspec.structs import replace
from schedules import Script, epochs, exposed, phases, pool

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.exposure import step_statistics
from iobench.analysis.exposure_figures import BEFORE_FORWARD, ENDING
from iobench.analysis.processes import other_loops
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.recording.facts import LoaderFacts, ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.report.sentences import job_sentence, verdict_sentence
from iobench.runs.contents import Process
from tests.support.sketched_runs import CONSUMER, SketchedRun


def rank_of(script, **facts):
    """Return the training process of a script that began at 0, and ends now."""
    script.process |= {"anchors": (Anchor(0, 0), Anchor(script.now, script.now))}
    script.facts |= {"started_ns": 0, **facts}
    rank = script.open().of_rank()
    check_rank(rank)
    return rank


# Waits, and the phases of passes.


def test_fill_is_counted_by_each_round_of_its_own_loader():
    script = Script()
    train, validation = script.loader(2, 2), script.loader(1, 1)
    for _ in range(2):
        script.train(train, 5, end=False)
        script.train(validation, 3, 0)
        script.train(train, 5)
    # Training: 1 of start-up, 3 of fill, 6 steady; validation: 1, 0, 2; twice.
    assert phases(rank_of(script)) == [4, 6, 0, 16, 4]


@pytest.mark.parametrize(
    ("before", "expected"), [(0, [1, 1, 0, 3, 0]), (1, [0, 1, 0, 4, 0]), (40, [0, 0, 0, 5, 0])]
)
def test_a_round_that_began_before_the_window_has_no_start_up(before, expected):
    script = Script()
    script.train(script.loader(1, 2), 5, 0, end=False)
    script.close()
    script.spans[-1]["nbytes"] = before
    rank = rank_of(script)
    assert phases(rank) == expected
    assert not {*rank.deliveries.complete_epochs}


def test_the_wait_for_iter_is_start_up_but_for_the_loops_own_work():
    script = Script()
    loader = script.loader(1, 1, (30, 0, 0), start_ns=100)
    loader.iter()
    script.add(CONSUMER, Kind.SAMPLER, 20, 45)
    loader.next()
    assert exposed(script.data()) == {"startup": 75, "sampler": 25, "read": 30}
    rank = rank_of(script)
    assert (phases(rank)[0], rank.exposure.startup_ns) == (2, 130)
    assert rank.exposure.whole.n_batches == 1


def test_a_wait_that_failed_is_counted_and_its_cause_unknown():
    script = Script()
    loader = script.loader(0, 0, (30, 0, 0))
    loader.next()
    script.add(CONSUMER, Kind.READ, script.now, script.now + 8, batch=99)
    loader.stop("failed", 12)
    figures = rank_of(script).exposure
    assert exposed(script.data()) == {"read": 38, "unknown": 4}
    assert (figures.n_failed_waits, figures.whole.n_batches) == (1, 1)


def test_what_a_loader_does_not_tell_is_opaque():
    script = Script()
    loader = script.loader(0, 2)
    loader.iter()
    script.compute(50)
    script.waited(loader, 0, 0, "")
    (row,) = rank_of(script).exposure.whole.stages
    assert (row.stage, row.exposed_ns, row.hidden_ns, row.n_spans) == ("opaque", 50, 0, 0)


def test_the_training_loop_is_the_thread_that_waits_most_often():
    script = Script()
    script.train(script.loader(0, 0), 3, 0, end=False)
    for batch in (50, 51):
        script.add(CONSUMER, Kind.WAIT, 0, 10, batch=batch, sample=9, thread=2, detail="consumer")
    assert rank_of(script).exposure.whole.n_batches == 3


def test_each_of_two_training_processes_has_its_own_workers():
    script = Script()
    script.train(script.loader(1, 1), 3, 0, end=False)
    data = script.data()
    of = {"rank": 0, "host": "here", "boot_id": "boot-here", "anchors": (), "lost": 0,
          "closed": True, "damaged": 0, "threads": ("MainThread",)}  # fmt: skip
    helper = Process(role="consumer", worker=-1, pid=7, **of)
    theirs = Process(role="worker", worker=0, pid=8, ppid=7, **of)
    spans = data.spans.copy()[:1]
    spans["process"], spans["kind"], spans["batch"] = 3, Kind.READ, 0
    spans["start_ns"], spans["end_ns"] = 0, 10**6
    both = replace(
        data,
        processes=(*data.processes, helper, theirs),
        spans=np.concatenate((data.spans, spans)),
    )
    assert exposure(both, rank=0).whole == exposure(data).whole
    assert other_loops(Run(both).of_rank(0)) == ()
    spans["kind"] = Kind.WAIT
    spans["process"] = 2
    facts = ProcessFacts(7, 0, "here", "consumer", command=["/usr/bin/python", "b.py"])
    both = replace(both, spans=np.concatenate((data.spans, spans)), facts=(*data.facts, facts))
    assert other_loops(Run(both).of_rank(0)) == ("process 7 (python b.py)",)


def test_workers_that_left_nothing_are_missing():
    script = Script()
    script.train(script.loader(1, 1), 1)
    script.loaders[0].worker_pids.append(4711)
    assert script.data().missing_workers == ("loader-0 process 4711",)


def test_what_an_inner_loader_does_is_the_outer_ones_wait_alone():
    """Only the outermost loader waits; work on batches that never reach the loop is in no sum."""
    script = Script()
    outer, inner = script.loader(0, 0, (0, 0, 0)), script.loader(2, 1, (30, 0, 0))
    for own, around in ((5, 3), (0, 9), (7, 70)):
        lane = ("worker", 0, inner.number)
        script.add(lane, Kind.READ, script.now, script.now + around, batch=next(script.batches))
        outer.stages = (own, 0, 0)
        outer.next()
    figures = rank_of(script).exposure
    assert exposed(script.data()) == {"read": 12}
    assert [(each.n_batches, each.n_rounds) for each in figures.loaders] == [(3, 1), (0, 0)]


# Epochs.


def n_batches(rank):
    return [each.part.n_batches for each in epoch_figures(rank)]


@given(
    st.lists(st.lists(st.tuples(*[st.integers(0, 200)] * 3), min_size=1, max_size=4),
             min_size=1, max_size=3),
    st.integers(0, 3), st.integers(21, 60), st.booleans(),
)  # fmt: skip
def test_statistics_of_epochs_are_of_their_batches(made, workers, step_ns, is_told):
    sketch = epochs(
        [pool(each, workers=workers, step_ns=step_ns, drain_ns=7) for each in made], pause_ns=1
    )
    starts = [span["start_ns"] for span in sketch.spans if span["kind"] == Kind.OTHER]
    for span in [span for span in sketch.spans if span["kind"] == Kind.WAIT]:
        place = int(np.searchsorted(starts, span["start_ns"], side="right")) - 1
        span["epoch"] = place + 3 if is_told else -1
        if span.get("label") != "shutdown":
            stages = {Kind.FORWARD: 11, Kind.BACKWARD: 9}
            sketch.work(CONSUMER, span["end_ns"], stages, batch=span["batch"])
    rank = sketch.open().of_rank()
    check_rank(rank)
    figures = epoch_figures(rank)
    assert [each.epoch - 3 * is_told for each in figures] == [*range(len(made))]
    assert n_batches(rank) == [len(each) for each in made]
    for each in figures:
        n = each.part.n_batches
        assert each.complete
        assert each.batch.n_steps == each.forward.n_steps == each.backward.n_steps == n
        assert each.batch.mean_ns * n <= each.part.wall_ns + n
        assert [*each.busy] == [*each.exposed] == [row.stage for row in each.part.stages]
        for row in each.part.stages:
            assert each.exposed[row.stage].mean_ns * n <= row.exposed_ns + n


def test_a_validation_is_of_the_epoch_before_it():
    script = Script()
    train, validation = script.loader(workers=1), script.loader()
    for epoch in range(3):
        script.train(train, 4)
        if epoch != 1:
            script.train(validation, 2)
    assert n_batches(rank_of(script)) == [6, 4, 6]


def test_a_loader_made_anew_for_each_epoch_counts_epochs():
    script = Script()
    for epoch in range(3):
        script.train(script.loader(name="Samples"), 4, end=epoch < 2)
    figures = epoch_figures(rank_of(script))
    assert [(each.epoch, each.part.n_batches, each.complete) for each in figures] == [
        (0, 4, True), (1, 4, True), (2, 4, False),
    ]  # fmt: skip


def test_an_epoch_that_was_cut_off_is_not_complete_and_its_last_batch_has_no_end():
    sketch = SketchedRun(workers=0)
    for batch, start in enumerate((0, 50, 100)):
        sketch.wait(batch, start, start + 10, "consumer", epoch=0)
        sketch.add(CONSUMER, Kind.FORWARD, start + 10, start + 40, batch=batch)
    (figures,) = epoch_figures(sketch.open().of_rank())
    assert (figures.complete, figures.part.n_batches, figures.forward.n_steps) == (False, 3, 3)
    assert figures.batch == step_statistics(np.array([50, 50]))


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
    sketch = epochs([pool([(1, 1, 1)] * number, workers=0, step_ns=5) for number in batches])
    sketch.config |= {"n_samples": n_samples, "batch_size": 2}
    assert [each.complete for each in epoch_figures(sketch.open().of_rank())] == complete


@pytest.mark.parametrize(
    ("last_nbytes", "n_samples"),
    [(400, 12), (300, 11), (100, 9), (250, 12), (399, 12), (500, 12), (0, 12), (-1, 12)],
)
def test_a_last_batch_is_short_by_whole_samples_or_as_large_as_asked_for(last_nbytes, n_samples):
    sketch = SketchedRun(workers=0, batch_size=4)
    for batch, nbytes in enumerate((400, 400, last_nbytes)):
        sketch.wait(batch, 50 * batch, 50 * batch + 10, "consumer", epoch=0, nbytes=nbytes)
    sketch.shutdown(150, 151)
    sketch.round(0, 151)
    assert sketch.open().of_rank().exposure.whole.n_samples == n_samples


# What passes are for: an optimiser's step says most, then what a pass told.


def one_pass(script, loader, told="", *, steps=False, n_batches=3, ends=True):
    """One pass over a loader that tells what it is for, and in which an optimiser may step."""
    loader.start_ns = 5
    loader.iter()
    script.spans[-1]["detail"] = f"loader-{loader.number} {told}".rstrip()
    script.train(loader, n_batches, end=False)
    if steps:
        of = {"label": "trains", "sample": loader.round, "flags": Flag.DETAIL}
        script.spend(Kind.OTHER, 0, **of)
    if ends:
        loader.end()
    else:
        loader.leave()


def test_a_step_says_more_than_what_a_pass_told_and_a_loader_that_does_both_trains():
    script = Script()
    loader = script.loader()
    one_pass(script, loader, "validation", steps=True)
    one_pass(script, loader, "evaluation")
    one_pass(script, script.loader(), "test")
    run = rank_of(script)
    assert run.roles == {0: "training", 1: "test"}
    assert {*run.deliveries.role[run.deliveries.round == 1].tolist()} == {"evaluation"}
    assert (run.exposure.validation.n_batches, run.exposure.whole.n_batches) == (6, 9)


def test_passes_within_an_evaluation_evaluate_unless_they_train():
    script = Script()
    one_pass(script, script.loader(), steps=True)
    one_pass(script, script.loader())
    script.add(CONSUMER, Kind.EVALUATE, 0, script.now)
    assert rank_of(script).roles == {0: "training", 1: "evaluation"}


def test_a_training_is_judged_by_its_own_passes_and_epochs():
    script = Script()
    train, validation = script.loader(stages=(1, 1, 1)), script.loader(stages=(900, 1, 1))
    for _ in range(3):
        one_pass(script, train, steps=True, n_batches=4)
        one_pass(script, validation, "validation", n_batches=7)
    run = rank_of(script)
    recurring, whole = run.exposure.recurring, run.exposure.whole
    assert recurring.n_batches == 2 * 4
    assert recurring.wait_fraction < 0.5 < run.exposure.validation.wait_fraction
    times = epoch_times(epoch_figures(run))
    assert [(each.complete, each.batches) for each in times] == [(True, 4)] * 3
    assert sum(each.wall_ns + each.validation_ns for each in times) == whole.wall_ns


def test_epochs_that_a_script_ends_itself_are_whole_where_they_are_alike():
    for batches, complete in (((4, 4, 3), [True, True, False]), ((4,), [False])):
        script = Script()
        train = script.loader()
        for number in batches:
            one_pass(script, train, steps=True, n_batches=number, ends=False)
        assert [each.complete for each in epoch_times(epoch_figures(rank_of(script)))] == complete


def test_where_everything_evaluates_that_is_judged():
    script = Script()
    one_pass(script, script.loader(), "test", n_batches=6)
    figures = rank_of(script).exposure
    assert figures.validation is None
    assert figures.steady.n_batches > 0


def test_passes_that_bring_nothing_are_no_epochs_and_no_rounds():
    script = Script()
    loader = script.loader()
    for _ in range(2):
        one_pass(script, loader, steps=True, n_batches=4)
        one_pass(script, loader, n_batches=0, ends=False)  # as Keras does
    run = rank_of(script)
    assert [each.epoch for each in epoch_figures(run)] == [0, 1]
    assert [each.n_rounds for each in run.exposure.loaders] == [2]


# Loaders that are asked in turns.


def zipped(*n_batches, n_epochs=1, cycles=(), anew=False, steps=True):
    """Return a loop that asks loaders in turns until the shortest one ends."""
    script = Script()
    loaders = [script.loader(name="Samples") for _ in n_batches]
    for epoch in range(n_epochs):
        if anew and epoch:
            loaders = [script.loader(name="Samples") for _ in n_batches]
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
                stages = {Kind.BACKWARD: 30, Kind.STEP: 10} if steps else {}
                script.work(CONSUMER, script.now, stages)
                script.compute(40)
        for loader in loaders:
            loader.leave()
        script.compute(100)
    return rank_of(script)


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize("n_batches", [(5, 8), (8, 5), (6, 6), (5, 7, 9)])
def test_loaders_that_are_asked_in_turns_are_one_pass(n_batches, anew, steps):
    for n_epochs in (1, 3):
        run = zipped(*n_batches, n_epochs=n_epochs, steps=steps, anew=anew)
        assert len({*run.deliveries.of_epoch.tolist()}) == n_epochs
        n_steps = min(n_batches) * n_epochs
        known = run.deliveries.steps
        assert (known.n_steps, known.batches_per_step) == (n_steps, len(n_batches))
        whole = run.exposure.whole
        assert whole.wait.median_ns == 60 * len(n_batches)
        n_asked = n_steps * len(n_batches) + n_epochs * (n_batches[0] > min(n_batches))
        assert whole.wait_ns == 60 * n_asked + 3 * n_epochs


@pytest.mark.parametrize(
    ("n_batches", "cycles"), [((9, 2), (1,)), ((2, 9), (0,)), ((7, 2, 3), (1, 2))]
)
def test_an_epoch_is_a_pass_over_the_loader_that_ends_it(n_batches, cycles):
    run = zipped(*n_batches, n_epochs=2, cycles=cycles)
    assert len({*run.deliveries.of_epoch.tolist()}) == 2


def test_a_loader_for_each_epoch_and_one_that_validates_are_asked_one_after_another():
    script = Script()
    for _ in range(3):
        script.train(script.loader(name="Samples"), 4, 40)
        script.train(script.loader(name="Samples"), 1, 40)
    assert len({*rank_of(script).deliveries.of_epoch.tolist()}) == 3


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
    rank = sketch.open().of_rank()
    whole, (replayed,) = rank.exposure.whole, recorded_runs(rank)
    assert replayed.compute_ns.tolist() == [25, 0, 33, 40]
    assert (replayed.wall_ns, replay(replayed).wall_ns) == (410 - 62, 410 - 62)
    # No more than there is between two waits, and nothing of what an earlier version recorded.
    assert (whole.wall_ns, whole.wait_ns, whole.own_ns) == (410, 250, 15 + 40 + 7)
    assert whole.wait_fraction == 250 / (410 - 62)


# What a loop reads by itself, keeps in memory, or does between loader and model.


def step(script, *, forward_ns=3):
    if forward_ns:
        script.spend(Kind.FORWARD, forward_ns)
    script.spend(Kind.BACKWARD, 5)
    script.spend(Kind.STEP, 2)


def passed(script, n_batches, then=lambda: None, *, loader=None, generator=None, wait_ns=10):
    """A pass over a loader whose batches the loop makes itself; then what is done with each."""
    loader = loader or script.loader(stages=(0, wait_ns, 0), start_ns=1)
    loader.iter()
    for place in range(n_batches):
        loader.next()
        if generator is not None and not place:
            of = {"sample": loader.round, "label": "between", "detail": generator}
            script.spend(Kind.OTHER, 0, flags=Flag.DETAIL, **of)
        then()
    loader.end(2)


def part_ns(rank):
    return {each.part: each.ns for each in rank.exposure.job.parts if each.ns}


def test_what_a_loop_reads_between_its_steps_is_its_wait():
    script = Script()
    script.spend(Kind.READ, 100)  # before the first step
    step(script)
    for _ in range(3):
        script.compute(1)
        script.spend(Kind.READ, 20)
        script.compute(4)
        script.spend(Kind.DECODE, 30)
        script.compute(6)
        step(script)
    rank = rank_of(script)
    whole = rank.exposure.whole
    assert whole.exposed_ns == {"read": 60, "decode": 90}
    assert whole.between_ns == {BEFORE_FORWARD: 3 * (4 + 6)}
    assert whole.wall_ns == 10 + 3 * (1 + 20 + 4 + 30 + 6 + 10)
    assert (whole.n_batches, rank.exposure.steps.n_steps) == (4, 4)
    assert [each.name for each in rank.exposure.loaders] == ["the loop itself"]
    parts = part_ns(rank)
    assert (parts["initial_load"], parts["train_wait"]) == (100, 150)


def test_without_forward_passes_nothing_is_known_to_lie_before_them():
    script = Script()
    for _ in range(4):
        script.spend(Kind.FUSED, 20, label="read+decode")
        script.compute(7)
        step(script, forward_ns=0)
    whole = rank_of(script).exposure.whole
    assert whole.exposed_ns["fused:read+decode"] == whole.wait_ns == 60
    assert (whole.between_ns, whole.compute_ns) == ({}, 4 * 7 + 3 * 7)


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT, Kind.STAGE_IN])
def test_what_other_work_of_a_loop_reads_is_no_wait(kind):
    script = Script()
    for _ in range(4):
        step(script)
        script.add(CONSUMER, Kind.READ, script.now + 2, script.now + 9)
        script.spend(kind, 11)
        script.spend(Kind.READ, 5)
    assert rank_of(script).exposure.whole.exposed_ns == {"read": 15}


def test_a_loop_that_few_reads_serve_is_not_said_to_wait_for_nothing_else():
    script = Script()
    for number in range(10):
        if number in (3, 6):
            script.spend(Kind.READ, 50)
        script.compute(30)
        step(script)
    figures = rank_of(script).exposure
    assert (figures.has_consumer, figures.unjoined_ns) == (False, 9 * 30 + 2 * 50)


def test_reads_of_other_threads_are_not_known_to_be_waited_for():
    script = Script()
    for _ in range(4):
        step(script)
        script.spend(Kind.READ, 500_000_000, thread=1)
    rank = rank_of(script)
    assert rank.exposure.unjoined_ns == 1_500_000_000
    assert "initial_load" not in part_ns(rank)
    assert rank.exposure.job.load_ns == 0


def test_reads_of_a_script_without_steps_are_no_initial_load():
    script = Script()
    script.facts["initial_nbytes"] = 10**9
    for _ in range(4):
        script.spend(Kind.READ, 10)
        script.compute(100)
    job = rank_of(script).exposure.job
    assert "40 ns of it is reading data" in job_sentence(job)
    assert not any("first batch" in text for text in job.unknown)
    assert (job.load_ns, job.reload_ns, job.part("initial_load").ns) == (40, 40, 0)
    assert any("once or in a loop" in text for text in job.unknown)


def test_steps_on_batches_that_are_kept_are_said():
    script = Script()
    passed(script, 2, lambda: step(script))
    assert rank_of(script).exposure.job.unfed_fraction == 0
    for _ in range(6):
        step(script)
    rank = rank_of(script)
    assert rank.exposure.job.unfed_fraction == 0.75
    assert "75 % of the optimiser's steps" in verdict_sentence(diagnosis_of(rank))


def test_what_is_read_within_a_pass_of_a_loader_is_waited_for_too():
    script = Script()

    def then():
        script.compute(4)
        script.spend(Kind.READ, 8)
        script.compute(5)
        step(script)

    passed(script, 3, then, generator="")
    script.spend(Kind.READ, 1_000)  # after it
    whole = rank_of(script).exposure.whole
    assert whole.exposed_ns["read"] == 3 * 8
    assert whole.wait_ns == 1 + 3 * 10 + 2 + 3 * 8
    assert (whole.between_ns, whole.n_batches) == ({BEFORE_FORWARD: 3 * 9}, 3)


def test_batches_taken_before_the_first_step_are_an_initial_load():
    script = Script()
    passed(script, 4, wait_ns=100)
    for _ in range(3 * 4):
        script.compute(1)
        step(script)
    rank = rank_of(script)
    figures, parts = rank.exposure, part_ns(rank)
    assert (figures.n_initial, figures.initial_ns) == (4, 1 + 4 * 100 + 2)
    assert (figures.whole.n_batches, figures.whole.wait_ns) == (12, 0)
    assert figures.whole.wall_ns == 12 * 11 - 1
    assert parts["initial_load"] == 403
    assert "train_wait" not in parts


@pytest.mark.parametrize("change", ["worked on", "for each epoch", "one batch", "evaluation"])
def test_other_passes_before_the_first_step_are_none(change):
    script = Script()
    passed(
        script, 1 if change == "one batch" else 4,
        (lambda: script.compute(9)) if change == "worked on" else (lambda: None),
    )  # fmt: skip
    if change == "evaluation":
        script.spans[0]["detail"] = "loader-0 validation"
    for _ in range(4):
        step(script)
    if change == "for each epoch":
        passed(script, 4)
        for _ in range(4):
            step(script)
    assert rank_of(script).exposure.n_initial == 0


def test_an_iterator_that_is_left_for_each_step_ends_its_workers_between_loader_and_model():
    script = Script()
    loader = script.loader()
    for _ in range(4):
        passed(script, 0, loader=loader)
        loader.next()
        of = {"sample": loader.round, "label": "between", "flags": Flag.DETAIL}
        script.spend(Kind.OTHER, 0, **of)
        script.compute(2)
        script.spend(Kind.SHUTDOWN, 40)
        script.compute(1)
        step(script)
    whole = rank_of(script).exposure.whole
    assert whole.between_ns == {BEFORE_FORWARD: 4 * 3, ENDING: 4 * 40}


@pytest.mark.parametrize("generator", ["", "regridded", None])
def test_what_lies_between_loader_and_model_is_a_part_of_its_own(generator):
    script = Script()

    def then():
        script.compute(30)
        script.spend(Kind.H2D, 4)  # named: of what is computed
        script.compute(1)
        step(script)

    passed(script, 5, then, generator=generator)
    whole = rank_of(script).exposure.whole
    known = {} if generator is None else {generator or BEFORE_FORWARD: 5 * 31}
    assert whole.between_ns == known
    assert whole.compute_ns == 5 * (4 + 10) + (0 if known else 5 * 31)


def test_a_forward_pass_on_several_batches_follows_all_of_them():
    script, count = Script(), iter(range(100))

    def then():
        script.compute(7)
        if next(count) % 2:
            step(script)

    passed(script, 4, then, generator="pairs")
    assert rank_of(script).exposure.whole.between_ns == {"pairs": 4 * 7}


def test_a_generator_before_no_recorded_forward_pass_is_said_without_its_time():
    script = Script()
    passed(script, 4, lambda: step(script, forward_ns=0), generator="regridded")
    assert rank_of(script).exposure.whole.between_ns == {"regridded": None}


# Threads that hand batches on: the waits of the one that trains count.

PRODUCER = 1
READ_NS, COLLATE_NS = 8, 2


def threaded(*loaders):
    run = SketchedRun(kind="script")
    run.processes[CONSUMER] = {"threads": ("MainThread", "producer", "logger")}
    run.loaders += [LoaderFacts(n, "torch", "", "Samples", workers=0) for n in loaders]
    return run


def received(run, batch, start_ns, end_ns, *, thread=0, maker="threads"):
    of = {"sample": 0, "thread": thread, "label": "received", "flags": Flag.DETAIL, "epoch": 0}
    run.wait(batch, start_ns, end_ns, maker, **of)


def prefetched(n_batches=3, *, held_back=()):
    """A thread draws batches of 10 ns from the second ns on; another one may take them."""
    run, at, ready = threaded(0), 2, []
    asks = {"thread": PRODUCER, "sample": 0, "epoch": 0}
    run.add(CONSUMER, Kind.WAIT, 0, 2, label="startup", detail="loader-0 training", **asks)
    for batch in range(n_batches):
        if batch in held_back:
            at = held_back[batch]
            run.add(CONSUMER, Kind.SUBMIT_QUEUE, at, at, thread=PRODUCER, detail="consumer")
        stages = {Kind.READ: READ_NS, Kind.COLLATE: COLLATE_NS}
        end = run.work(CONSUMER, at, stages, thread=PRODUCER, batch=batch)
        run.wait(batch, at, end, "consumer", **asks)
        ready.append(at := end)
    run.add(CONSUMER, Kind.WAIT, at, at, label="shutdown", **asks)
    of = {"detail": "loader-0", "thread": PRODUCER, "sample": 0}
    run.add(CONSUMER, Kind.OTHER, 0, at, label="round", **of)
    return run, ready


def trained(run, ready, step_ns, kind=Kind.STEP):
    """The main thread takes what is ready, a ns later if it waited, and trains on it."""
    now = 0
    for batch, ready_ns in enumerate(ready):
        got = max(now, ready_ns) + 1
        received(run, batch, now, got)
        run.add(CONSUMER, kind, got, got + step_ns)
        now = got + step_ns
    received(run, -1, now, now + 2, maker="")
    rank = run.open().of_rank()
    check_rank(rank)
    return rank.exposure, now + 2


@pytest.mark.parametrize("kind", [Kind.STEP, Kind.BACKWARD])
def test_work_that_a_thread_did_ahead_is_hidden(kind):
    figures, end = trained(*prefetched(), 27, kind)
    whole = figures.whole
    assert (whole.wall_ns, whole.wait_ns, whole.n_batches) == (end, 17, 3)
    assert whole.exposed_ns == {
        "startup": 2, "read": READ_NS, "collate": COLLATE_NS, "handover": 3, "shutdown": 2,
    }  # fmt: skip
    hidden = {row.stage: row.hidden_ns for row in whole.stages if row.hidden_ns}
    assert hidden == {"read": 2 * READ_NS, "collate": 2 * COLLATE_NS}
    assert figures.loaders[0].role == "training"


def test_what_the_thread_that_trains_waits_for_another_one_is_that_ones_work():
    whole = trained(*prefetched(), 3)[0].whole
    # Batches are ready at 12, 22, 32; the loop has them at 13, 23, 33 and asks at 0, 16, 26.
    assert whole.wait_ns == 13 + 7 + 7 + 2
    assert whole.exposed_ns["handover"] == 3
    assert whole.exposed_ns["read"] + whole.exposed_ns["collate"] == 10 + 6 + 6
    assert "worker_gap" not in whole.exposed_ns


def test_a_full_queue_is_slack_of_the_thread_that_fills_it():
    run, ready = prefetched(2, held_back={1: 100})
    received(run, 0, 0, 13)
    run.add(CONSUMER, Kind.STEP, 13, 105)
    received(run, 1, 105, 111)
    run.add(CONSUMER, Kind.STEP, 111, 120)
    whole = run.open().of_rank().exposure.whole
    assert (ready, whole.wait_ns) == ([12, 110], 13 + 6)
    assert "worker_gap" not in whole.exposed_ns
    assert whole.exposed_ns["handover"] == 2


def test_a_thread_that_does_not_train_waits_for_nothing_by_what_it_received():
    run = threaded(0)
    run.add(CONSUMER, Kind.READ, 0, 4, batch=0)
    run.wait(0, 0, 5, "consumer", sample=0, epoch=0)
    run.add(CONSUMER, Kind.STEP, 5, 10)
    run.round(0, 12)
    before = run.open().of_rank().exposure
    received(run, 0, 0, 11, thread=2)
    assert run.open().of_rank().exposure == before
    assert before.whole.wait_ns == 5


def test_of_two_threads_that_ask_loaders_the_one_that_trains_is_the_loop():
    run = threaded(0, 1)
    for batch in range(5):
        run.wait(batch, 10 * batch, 10 * batch + 9, "consumer", sample=1, thread=1)
    run.wait(5, 0, 3, "consumer", sample=0)
    run.add(CONSUMER, Kind.STEP, 3, 20)
    assert run.open().of_rank().exposure.whole.wait_ns == 3


@pytest.mark.parametrize("asks", [True, False], ids=["another thread asks", "nobody asks"])
def test_what_a_thread_waits_for_that_trains_on_unrecorded_batches_is_not_known(asks):
    run, ready = prefetched() if asks else (SketchedRun(kind="script"), (12, 22, 32))
    for at in ready:
        run.work(CONSUMER, at + 2, {Kind.BACKWARD: 2, Kind.STEP: 1})
    rank = run.open().of_rank()
    figures = rank.exposure
    # Steps are from 14 to 17, 24 to 27 and 34 to 37.
    assert (figures.unjoined_ns, figures.is_handed) == (14, asks)
    assert (figures.has_consumer, figures.loaders, figures.whole.wait_ns) == (False, (), 0)
    said = verdict_sentence(diagnosis_of(rank))
    assert ("was handed its batches in a way that is not recorded" in said) is asks
    assert "What its steps waited for is not known; 14 ns between them are in question." in said


@pytest.mark.parametrize("producer", ["child", "consumer", "thread"])
@pytest.mark.parametrize(
    ("producers", "step_ns"), [(1, 300), (1, 700), (3, 200), (5, 150), (8, 20), (2, 900)]
)
def test_what_producers_do_while_a_loop_blocks_is_what_it_waits_for(producers, step_ns, producer):
    script, waited, put, n_steps = Script(), [], 0, 60
    free = [70 * each for each in range(producers)]
    left: list[int] = []  # when each batch was taken: a full queue of 4 holds producers back
    for number in range(n_steps):
        each = free.index(min(free))
        start = max(free[each], left[number - 4] if number >= 4 else 0)
        lane, thread = ((producer, each), 0) if producer != "thread" else (CONSUMER, each + 1)
        of = {"batch": number, "thread": thread}
        put = max(put, script.work(lane, start, {Kind.READ: 600, Kind.DECODE: 250}, **of))
        if producer == "consumer":  # which has a loader of its own
            script.wait(number, start, put, "consumer", lane=lane, sample=each, epoch=0)
        free[each] = put + 150  # of which nobody knows
        if free[each] > script.now:
            waited.append(free[each] - script.now)
            script.spend(Kind.BLOCKED, waited[-1])
        left.append(script.now)
        step(script, forward_ns=step_ns)
    script.process = {"ppid": 1000, "threads": ["MainThread", *map(str, range(producers))]}
    rank = script.open().of_rank()
    check_rank(rank)
    exposure = rank.exposure
    if 2 * len(waited) <= n_steps:
        assert (exposure.has_consumer, exposure.blocked_ns) == (False, sum(waited))
        return
    assert (exposure.whole.wait_ns, exposure.whole.n_batches) == (sum(waited[1:]), n_steps)
    named = exposure.whole.exposed_ns
    assert {*named} <= {"read", "decode", "opaque"}
    assert max(named, key=named.get) == "read"
    busy_ns = {row.stage: row.busy_ns for row in exposure.whole.stages}
    assert 600 * (n_steps - producers - 4) < busy_ns["read"] <= 600 * n_steps
    assert exposure.loaders[0].name == "threads or processes of the script"


def test_waits_in_stages_and_for_batches_are_no_waits_for_something_else():
    run, ready = prefetched()
    before, _ = trained(run, ready, 27)
    # Batches are waited for until 13, steps are from 13 to 40 and from 41 to 68.
    for start_ns, end_ns in ((1, 9), (2, 13), (15, 20), (41, 45)):
        run.add(CONSUMER, Kind.BLOCKED, start_ns, end_ns, flags=Flag.DETAIL)
    run.add(CONSUMER, Kind.BLOCKED, 2, 9, thread=PRODUCER, flags=Flag.DETAIL)
    assert run.open().of_rank().exposure.whole == before.whole


def test_what_else_a_thread_that_trains_waits_for_is_a_part_of_its_own():
    run = threaded(0)
    for batch, at in enumerate((0, 100)):
        run.wait(batch, at, at + 10, "consumer", sample=0, epoch=0)
        run.add(CONSUMER, Kind.STEP, at + 10, at + 30)
        run.add(CONSUMER, Kind.BLOCKED, at + 40, at + 90, flags=Flag.DETAIL)
    run.round(0, 200)
    rank = run.open().of_rank()
    stages = {row.stage: row.busy_ns for row in rank.exposure.whole.compute_stages}
    assert stages == {"step": 40, "blocked": 100}
    said = verdict_sentence(diagnosis_of(rank))
    assert "It waits another 50 % (50 ns) of it for something that was not recorded." in said


@pytest.mark.parametrize(
    ("kind", "label", "where"),
    [
        (Kind.OPAQUE, "tf.data", "Where it was traced"),
        (Kind.FUSED, "whole batch", "In batches recorded in full"),
    ],
)
def test_the_batches_that_are_known_in_detail_say_what_is_waited_for(kind, label, where):
    run = threaded(0)
    for batch, at in enumerate(range(0, 400, 100)):
        stage = (kind, label) if batch % 2 else (Kind.DECODE, "")
        run.add(CONSUMER, stage[0], at, at + 49 + batch, label=stage[1], batch=batch)
        run.wait(batch, at, at + 50 + batch, "consumer", sample=0, epoch=0)
        run.add(CONSUMER, Kind.STEP, at + 60, at + 80)
    run.round(0, 400)
    said = verdict_sentence(diagnosis_of(run.open().of_rank()))
    assert f"{where}, it waits most of all for decode." in said
