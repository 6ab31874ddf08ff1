"""What would help a validation that waits, of hand-made scripts of which one knows it."""

from dataclasses import replace

import pytest
from scripts import Script

from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.subjects.advice.advising import advice_of
from iobench.subjects.advice.figures import Evidence
from iobench.subjects.advice.levers import Lever
from iobench.subjects.advice.measured import measured_rank
from iobench.subjects.advice.section import advice_document
from iobench.subjects.advice.validation import validation_advice

MS = 1_000_000
CONFIG = {"kind": "script", "machine": {"cpus": 2}}


def training(*, n_check=20, check_ms=60, epochs=3, anew=False, train_workers=0, computes_ms=100):
    """A training that hides its loading, and a validation that computes nothing to speak of."""
    script = Script(config=CONFIG)
    train = script.loader(workers=train_workers, stages=(MS, 0, 0), start_ns=5 * MS)
    check = None
    for _ in range(epochs):
        train.iter()
        for _ in range(8):
            train.next()
            script.compute(computes_ms * MS)
        train.end(drain_ns=10)
        if check is None or anew:
            check = script.loader(stages=(check_ms * MS, 0, 0), start_ns=10)
            script.sketch.loaders[-1].name = "Held out"
            script.sketch.loaders[-1].gradients = False
        check.iter()
        for _ in range(n_check):
            check.next()
            script.compute(MS // 10)
        check.end(drain_ns=10)
    profile = script.profile()
    return replace(profile, facts=(replace(profile.facts[0], started_ns=0),))


def advised(profile):
    rank = Run(profile).of_rank()
    return validation_advice(measured_rank(rank, recorded_runs(rank)))


@pytest.mark.parametrize("anew", [False, True])
def test_workers_for_a_serial_validation_halve_its_wait(anew):
    found = advised(training(anew=anew))
    assert found is not None
    assert found.n_batches == 3 * 20
    change = found.changes[0]
    assert change.candidate.levers[0] is Lever.WORKERS
    assert change.candidate.settings["num_workers"] == 2
    assert change.gain.evidence is Evidence.REPLAYED
    assert change.saved_ns == pytest.approx(found.wait_ns / 2, rel=0.1)
    assert change.saved_of_job_fraction == change.saved_ns / found.job_ns
    # What their start takes, no run told: the training has no workers.
    assert change.starts_ns is None
    assert change.commands[0].startswith("DataLoader(..., num_workers=2")


def test_the_start_of_workers_is_taken_off_where_the_training_tells_it():
    found = advised(training(train_workers=1))
    change = found.changes[0]
    assert change.starts_ns > 0
    assert change.saved_ns < found.wait_ns / 2


def test_hiding_a_validation_behind_the_training_saves_no_more_than_either():
    for computes_ms, most in ((100, 8 * 100 * MS), (1000, 20 * 60 * MS)):
        found = advised(training(computes_ms=computes_ms))
        (beside,) = [each for each in found.changes if Lever.BESIDE in each.candidate.levers]
        assert beside.gain.evidence is Evidence.BOUND
        assert beside.saved_ns == pytest.approx(3 * most, rel=0.05)


def test_larger_batches_of_work_that_grows_with_them_are_not_proposed():
    found = advised(training())
    assert not any(Lever.BATCH in each.candidate.levers for each in found.changes)
    assert any(Lever.BATCH in each.candidate.levers for each in found.ruled_out)


def test_where_a_validation_hardly_waits_there_is_none():
    assert advised(training(n_check=1, check_ms=1)) is None
    assert advised(training(n_check=0)) is None


def test_report_and_advice_tell_the_same():
    profile = training()
    rank = Run(profile).of_rank()
    advice = advice_of([measured_rank(rank, recorded_runs(rank))])
    render = TerminalRenderer().render
    for document in (report_document([Run(profile)]), advice_document(advice, "run")):
        text = " ".join(render(document).split())
        assert "What would help the validation" in text
        assert "DataLoader(..., num_workers=2, persistent_workers=True)" in text
    text = " ".join(render(report_document([Run(profile)])).split())
    assert "validation (DataLoader(..., num_workers=2" in text.partition("What to try next")[2]
