"""What passes over loaders are for: an optimiser's step says most, then what a pass told."""

from scripts import LOOP, Script

from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag


def one_pass(script, loader, told="", *, steps=False, n_batches=3, ends=True):
    """One pass over a loader that tells what it is for, and in which an optimiser may step."""
    loader.start_ns = 5
    loader.iter()
    script.sketch.spans[-1]["detail"] = f"loader-{loader.number} {told}".rstrip()
    for _ in range(n_batches):
        loader.next()
        script.compute(10)
    if steps:
        script.sketch.add(
            LOOP, Kind.OTHER, script.now, script.now, label="trains", sample=loader.round,
            flags=Flag.DETAIL,
        )  # fmt: skip
    if ends:
        loader.end()
    else:
        loader.leave()


def measured(script):
    return Run(script.data()).of_rank()


def test_a_step_says_more_than_what_a_pass_told_and_a_loader_that_does_both_trains():
    script = Script()
    loader = script.loader()
    one_pass(script, loader, "validation", steps=True)
    one_pass(script, loader, "evaluation")
    one_pass(script, script.loader(), "test")
    run = measured(script)
    assert run.roles == {0: "training", 1: "test"}
    assert {*run.deliveries.role[run.deliveries.round == 1].tolist()} == {"evaluation"}
    assert run.exposure.validation.n_batches == 6
    assert run.exposure.whole.n_batches == 9


def test_passes_within_an_evaluation_evaluate_unless_they_train():
    script = Script()
    first, second = script.loader(), script.loader()
    began = script.now
    one_pass(script, first, steps=True)
    one_pass(script, second)
    script.sketch.add(LOOP, Kind.EVALUATE, began, script.now)
    assert measured(script).roles == {0: "training", 1: "evaluation"}


def test_a_training_is_judged_by_its_own_passes_and_epochs():
    script = Script()
    train, check = script.loader(stages=(1, 1, 1)), script.loader(stages=(900, 1, 1))
    for _ in range(3):
        one_pass(script, train, steps=True, n_batches=4)
        one_pass(script, check, "validation", n_batches=7)
    run = measured(script)
    assert run.exposure.recurring.n_batches == 2 * 4
    assert run.exposure.recurring.wait_fraction < 0.5 < run.exposure.validation.wait_fraction
    times = epoch_times(epoch_figures(run))
    assert [(each.epoch, each.complete, each.batches) for each in times] == [
        (0, True, 4), (1, True, 4), (2, True, 4),
    ]  # fmt: skip
    assert all(0 < each.wait_ns < each.wall_ns for each in times)
    whole = run.exposure.whole
    assert sum(each.wall_ns + each.validation_ns for each in times) == whole.wall_ns


def test_epochs_that_a_script_ends_itself_are_whole_where_they_are_alike():
    script = Script()
    train = script.loader()
    for n_batches in (4, 4, 3):
        one_pass(script, train, steps=True, n_batches=n_batches, ends=False)
    times = epoch_times(epoch_figures(measured(script)))
    assert [each.complete for each in times] == [True, True, False]
    script = Script()
    one_pass(script, script.loader(), steps=True, ends=False)
    (only,) = epoch_times(epoch_figures(measured(script)))
    assert not only.complete


def test_where_everything_evaluates_that_is_judged():
    script = Script()
    one_pass(script, script.loader(), "test", n_batches=6)
    exposure = measured(script).exposure
    assert exposure.validation is None
    assert exposure.steady.n_batches > 0


def test_passes_that_bring_nothing_are_no_epochs_and_no_rounds():
    script = Script()
    loader = script.loader()
    for _ in range(2):
        one_pass(script, loader, steps=True, n_batches=4)
        one_pass(script, loader, n_batches=0, ends=False)  # as Keras does
    run = measured(script)
    assert [each.epoch for each in epoch_figures(run)] == [0, 1]
    assert [each.n_rounds for each in run.exposure.loaders] == [2]
