"""Several loaders: which trains, which evaluates, and how much of the job their loop is."""

import pytest
from scripts import LOOP, Script

from iobench.analysis.diagnosis import diagnose
from iobench.analysis.epochs import epoch_figures
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.report.sentences import verdict_sentence


def training(*, n_train=4, n_check=9, epochs=2, gradients=(None, None), spans=False, extra=False):
    """Return a profile: a training hidden behind compute, and a longer validation, waited for.

    ``gradients`` is what was noted of each loader, ``spans`` whether steps and evaluations have
    spans, ``extra`` whether each epoch begins one more pass that brings nothing, as Keras does.
    """
    script = Script()
    train, check = script.loader(stages=(1, 1, 1)), script.loader(stages=(30, 20, 10))
    for sketch, told in zip(script.sketch.loaders, gradients, strict=True):
        sketch.gradients = told
    for _ in range(epochs):
        for loader, number, kind, spent in (
            (train, n_train, Kind.STEP, 100),
            (check, n_check, Kind.EVALUATE, 1),
        ):
            loader.iter()
            for _ in range(number):
                loader.next()
                if spans:
                    script.sketch.add(LOOP, kind, script.now, script.now + spent)
                script.compute(spent)
            loader.end()
            if extra:
                loader.iter()
                loader.leave()
    return script.data()


def said(profile):
    return verdict_sentence(diagnose(Run(profile).of_rank().exposure))


@pytest.mark.parametrize("known", [{"gradients": (True, False)}, {"spans": True}])
def test_a_longer_validation_is_not_taken_for_the_training(known):
    profile = training(**known)
    measured = Run(profile).of_rank()
    assert measured.deliveries.main == 0
    assert [each.role for each in measured.exposure.loaders] == [
        "training" if "spans" in known else "", "evaluation",
    ]  # fmt: skip
    assert [each.part.n_batches for each in epoch_figures(measured)] == [13, 13]
    assert [len(each) for each in recorded_runs(Run(profile).of_rank())] == [8]
    assert "The validation waits 98 % of its time for data" in said(profile)


def test_passes_that_bring_nothing_are_no_epochs_and_no_rounds():
    measured = Run(training(spans=True, extra=True)).of_rank()
    assert [each.epoch for each in epoch_figures(measured)] == [0, 1]
    assert [each.n_rounds for each in measured.exposure.loaders] == [2, 2]
