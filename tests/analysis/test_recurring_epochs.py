"""What every epoch does again counts: verdict, gate and replay are over whole epochs."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_runs import shapes_of_epochs
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import epochs_of

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.loader_run import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import OptionError
from iobench.findings import check
from iobench.report.renderers.terminal import TerminalRenderer


def test_whole_epochs_after_the_first_are_judged():
    figures = exposure(epochs_of(epochs=4, batches=10, start_ns=500, end_ns=30))
    assert figures.window == "recurring"
    # Of each epoch: 500 until workers begin, 60 for the first batch, 30 at the end.
    assert figures.recurring.wall_ns == 3 * (500 + 60 + 10 * 40 + 30)
    assert figures.recurring.wait_ns == figures.recurring_start_ns == 3 * (500 + 60 + 30)
    assert figures.steady.wait_ns == 0
    verdict = diagnose(figures)
    assert (verdict.verdict, verdict.window) == (Verdict.IO_BOUND, "recurring")
    assert verdict.again_fraction == pytest.approx(590 / 990)


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


@pytest.mark.long
@given(shapes_of_epochs, st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_kept_workers_and_others_take_what_they_are_replayed_to_take(shape, workers):
    (run,) = recorded_runs(Run(epochs_of(**shape)).of_rank())
    assert run.restarts
    assert replay(run).wall_ns == run.wall_ns
    kept = exposure(epochs_of(**shape, kept=True)).recurring
    assert replay(run, Change(keep_workers=True)).judged_ns.sum() == kept.wall_ns
    # Starting workers takes its time once for each epoch, and in proportion to how many start.
    shape |= {"start_ns": 0, "end_ns": 0}
    (run,) = recorded_runs(Run(epochs_of(**shape)).of_rank())
    after = exposure(epochs_of(**{**shape, "workers": workers})).recurring
    assert replay(run, Change(workers=workers)).judged_ns.sum() == after.wall_ns
