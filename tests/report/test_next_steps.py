"""What a report says to try next: always the command that was run, varied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from schedules import pool

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.next_steps import FINDING
from iobench.findings.advice.proposals import AdviceOutcome, Evidence
from iobench.report.sentences import verdict_sentence

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

MS = 1_000_000


SLOW = [(60 * MS, 30 * MS, 10 * MS)] * 60
TURNS = [(100 * MS, 0, 0), (0, 100 * MS, 0)] * 40
STORE = {"path": "a", "probe": True, "nbytes": 10**9, "n_samples": 240, "n_samples_all": 240}
KINDS: dict[str, dict[str, Any]] = {
    "bound": {},
    "no more CPUs": {"cpus": 2},
    "serial": {"workers": 0},
    "one worker": {"workers": 1},
    "more workers than CPUs": {"workers": 8, "cpus": 2, "step_ms": 2},
    "hidden": {"step_ms": 80},
    "hardly hidden": {"step_ms": 49},
    "stages in turns": {"durations": TURNS, "step_ms": 5},
    "few batches": {"durations": SLOW[:3]},
    "own order": {"own_order": True},
    "a store": {"format": "numpy", "store": STORE},
    "a script": {"kind": "script", "command": "python train.py"},
    "a hidden script": {"kind": "script", "command": "python train.py", "step_ms": 80},
    "tensorflow": {"framework": "tensorflow"},
    "native": {"framework": "native"},
    "nobody saw its workers": {"unseen": True},
}


def run_of(
    *,
    durations: Any = SLOW,
    workers: int = 2,
    step_ms: int = 15,
    cpus: int = 4,
    unseen: bool = False,
    **config: Any,
) -> RunData:
    """Return a run of a pool, as a report reads it."""
    sketch = pool(durations, workers=workers, step_ns=step_ms * MS)
    if unseen:
        for worker in range(workers):
            sketch = sketch.without(("worker", worker))
    sketch.config |= {
        "dataset": "own",
        "format": "source",
        "framework": "torch",
        "n_samples_all": 1000,
        "sample_nbytes": 10**6,
        "machine": {"cpus": cpus, "memory_nbytes": 16 * 10**9},
        "command": "iobench profile a.nc --format source --out runs/1",
        **config,
    }
    return sketch.data()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recommended_is_what_advise_proposes_and_never_what_it_rules_out(kind: str) -> None:
    run = Run(run_of(**KINDS[kind])).of_rank()
    advice = advice_of([loading_of(run, recorded_runs(run))])
    assert advice is not None
    proposed = (*advice.changes, *advice.to_measure)
    titles = [each.title for each in proposed]
    ruled_out = {each.title for each in advice.ruled_out} - {*titles}
    steps = FINDING.figures(run)
    assert steps is not None
    promised = [step for step in steps if "saves" in step.reason]
    for step, title in zip(promised, titles, strict=False):
        assert step.reason.startswith(title)
    for step in steps:
        assert not any(step.reason.startswith(f"{title}:") for title in ruled_out)
    assert bool(promised) is bool(titles)
    nothing = any("nothing to gain" in step.reason for step in steps)
    assert nothing is (advice.outcome is AdviceOutcome.NOTHING_TO_GAIN)
    wait = advice.baseline.wait_fraction
    for change in proposed:  # no bound that is said exceeds what the loop waits
        assert change.evidence is not Evidence.BOUND or change.expected <= wait


@pytest.mark.parametrize(
    ("kind", "stage"), [("stages in turns", None), ("bound", "read")], ids=["none", "one"]
)
def test_a_verdict_names_a_stage_only_where_it_alone_helps(kind: str, stage: str | None) -> None:
    diagnosis = diagnosis_of(Run(run_of(**KINDS[kind])).of_rank())
    assert diagnosis.top_alone_gains is (stage is not None)
    assert ("most of all" in verdict_sentence(diagnosis)) is (stage is not None)
    assert stage in (None, diagnosis.top_stage)
