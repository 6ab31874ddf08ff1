"""What every epoch does again counts: verdict, replay and bounds are over whole epochs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import epochs_of

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import OptionError
from iobench.findings import check
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.levers import GainPredictor, predicted_changes
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.proposals import AdvisedChange, Evidence, Lever
from iobench.report.renderers.terminal import TerminalRenderer


def way(profile):
    """Return how a script's torch loader loads from memory, on a machine of two CPUs."""
    rank = Run(profile).of_rank()
    loading = loading_of(rank, recorded_runs(rank))
    facts = replace(loading.facts, kind="script")
    known = {"framework": "torch", "is_cached": True}
    return replace(loading, cpus=2, machine=None, facts=facts, **known)


def found(advice, lever):
    changes = (*advice.changes, *advice.to_measure)
    return next((each for each in changes if lever in each.levers), None)


def bounds(one):
    """Return what changes gain at the most, or within what they are predicted to, by lever."""
    return {
        lever: each
        for each in predicted_changes(GainPredictor([one]))
        if isinstance(each, AdvisedChange)
        for lever in each.levers
    }


def saved(before, after):
    first, second = (exposure(each).recurring for each in (before, after))
    return 1 - (second.wall_ns / second.n_batches) / (first.wall_ns / first.n_batches)


def test_whole_epochs_after_the_first_are_judged():
    figures = exposure(epochs_of(epochs=4, batches=10, start_ns=500, end_ns=30))
    assert figures.window == "recurring"
    # Of each epoch: 500 until workers begin, 60 for the first batch, 30 at the end.
    assert figures.recurring.wall_ns == 3 * (500 + 60 + 10 * 40 + 30)
    assert figures.recurring.wait_ns == 3 * (500 + 60 + 30)
    assert figures.recurring_start_ns == figures.recurring.wait_ns
    verdict = diagnose(figures)
    assert (verdict.verdict, verdict.window) == (Verdict.IO_BOUND, "recurring")
    assert verdict.again_fraction == pytest.approx(590 / 990)
    assert figures.steady is not None
    assert figures.steady.wait_ns == 0


@pytest.mark.parametrize("last", [0, 4])
def test_an_epoch_cut_off_early_is_none_to_judge_by(last):
    figures = exposure(epochs_of(epochs=2, last=last))
    assert (figures.recurring, figures.window) == (None, "steady")
    assert exposure(epochs_of(epochs=3, last=last)).recurring.n_batches == 10


def gated(monkeypatch, profile, stored=None):
    """Return what ``iobench check RUN --max-exposed 20%`` says, or ``--against`` a stored run."""
    profiles = {"run": profile, "stored": stored}
    monkeypatch.setattr(check, "run_paths", lambda path: (path,))
    monkeypatch.setattr(check, "Run", lambda path: Run(profiles[path.name]))
    gates = check.gate_shares(Path("run"), 0.2)
    if stored is not None:
        gates = check.gate_growth(Path("run"), Path("stored"), 0.05, any_machine=True)
    text = TerminalRenderer().render(check.check_document(check.check_result(gates)))
    return gates[0].outcome, " ".join(text.split())


def test_a_gate_sees_workers_that_restart(monkeypatch):
    shape = {"epochs": 6, "batches": 20, "start_ns": 500}
    kept, lost = epochs_of(**shape, kept=True), epochs_of(**shape)
    assert gated(monkeypatch, kept)[0] == "passed"
    outcome, lines = gated(monkeypatch, lost)
    assert outcome == "regression"
    # Of each epoch 500 until workers begin and 60 for the first batch.
    assert "exposed: 41 % (41 % to 41 %) of 100 steps, epochs after the first" in lines
    assert gated(monkeypatch, lost, kept)[0] == "regression"
    assert gated(monkeypatch, lost, lost)[0] == "passed"
    with pytest.raises(OptionError, match="as many epochs"):
        gated(monkeypatch, lost, epochs_of(epochs=1, batches=100))
    outcome, lines = gated(monkeypatch, epochs_of(epochs=2, batches=20))
    assert outcome == "inconclusive"
    assert "four epochs after the first" in lines


SHAPES = {
    "workers": st.integers(1, 3),
    "prefetch": st.integers(1, 2),
    "batches": st.integers(9, 14),
    "stages": st.tuples(*[st.integers(1, 60)] * 3),
    "step_ns": st.integers(0, 80),
    "start_ns": st.sampled_from([0, 50, 1000]),
    "open_ns": st.sampled_from([0, 200, 1000]),
    "end_ns": st.sampled_from([0, 100]),
}


@given(st.fixed_dictionaries(SHAPES))
@settings(max_examples=20, deadline=None)
def test_kept_workers_take_what_they_are_replayed_to_take(shape):
    (run,) = recorded_runs(Run(epochs_of(**shape)).of_rank())
    assert run.restarts
    assert replay(run).wall_ns == run.wall_ns
    kept = exposure(epochs_of(**shape, kept=True)).recurring
    replayed = replay(run, Change(keep_workers=True)).judged_ns
    assert replayed.sum() == kept.wall_ns


@pytest.mark.long
@given(st.fixed_dictionaries(SHAPES), st.tuples(*[st.integers(0, 100)] * 2))
@settings(max_examples=15, deadline=None)
def test_no_bound_is_exceeded_where_workers_restart(shape, left):
    before = epochs_of(**shape)
    gains = bounds(way(before))
    # Finished samples: nothing to open, nothing to decode, little to read, the same to collate.
    fast = {
        **shape,
        "open_ns": 0,
        "stages": (*(share // 100 for share in left), shape["stages"][2]),
    }
    ways = {
        Lever.FORMAT: (epochs_of(**fast), epochs_of(**fast, kept=True)),
        Lever.LOADER: (
            epochs_of(**fast, kept=True),
            epochs_of(**{**shape, "workers": 4}, kept=True),
        ),
        Lever.KEEP_WORKERS: (epochs_of(**shape, kept=True),),
    }
    for lever, afters in ways.items():
        for after in afters:
            assert saved(before, after) <= gains[lever].high_fraction + 1e-9, lever


@given(st.fixed_dictionaries(SHAPES), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_other_workers_start_as_often(shape, workers):
    """Starting workers takes its time once for each epoch, and in proportion to how many start."""
    shape |= {"start_ns": 0, "end_ns": 0}
    (run,) = recorded_runs(Run(epochs_of(**shape)).of_rank())
    after = exposure(epochs_of(**{**shape, "workers": workers})).recurring
    replayed = replay(run, Change(workers=workers)).judged_ns
    assert replayed.sum() == after.wall_ns


@pytest.mark.parametrize(
    "shape",
    [
        {"epochs": 6, "batches": 20, "start_ns": 900},
        {"epochs": 5, "batches": 8, "start_ns": 900},  # few batches, but epochs enough
        {"epochs": 4, "batches": 400, "start_ns": 9000},  # of each, a part is replayed
    ],
)
def test_kept_workers_are_advised_with_what_they_gain(shape):
    shape |= {"end_ns": 100}
    advice = advice_of([way(epochs_of(**shape))])
    gain = found(advice, Lever.KEEP_WORKERS)
    assert gain.evidence is Evidence.REPLAYED
    obtained = saved(epochs_of(**shape), epochs_of(**shape, kept=True))
    assert gain.low_fraction <= obtained <= gain.high_fraction
    assert gain.saved_fraction == pytest.approx(obtained, abs=0.02)
    # Epochs are alike, but that the last one has the end of the workers in both.
    assert gain.high_fraction - gain.low_fraction < 0.2
    assert gain.is_proven


@pytest.mark.parametrize("anew", [False, True])
def test_a_loader_is_advised_to_keep_its_workers_or_to_be_made_once(anew):
    advice = advice_of([way(epochs_of(epochs=6, batches=20, start_ns=900, anew=anew))])
    change = advice.changes[0]
    assert change.levers == (Lever.KEEP_WORKERS,)
    (line,) = change.commands
    assert line.startswith("DataLoader(..., persistent_workers=True)  # made once")


@pytest.mark.parametrize("anew", [False, True])
def test_workers_where_there_are_none_are_to_be_kept(anew):
    shape = {"epochs": 6, "batches": 20, "start_ns": 0}
    change = advice_of([way(epochs_of(**shape, workers=0, anew=anew))]).changes[0]
    assert change.levers == (Lever.WORKERS, Lever.KEEP_WORKERS)
    (line,) = change.commands
    assert line.startswith("DataLoader(..., num_workers=2, persistent_workers=True)")
    # Starts, however dear, are in the first epoch alone.
    after = epochs_of(**{**shape, "start_ns": 5000}, workers=2, kept=True)
    obtained = saved(epochs_of(**shape, workers=0), after)
    assert change.low_fraction <= obtained <= change.high_fraction
