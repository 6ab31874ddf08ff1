"""What a report says to try next: always the command that was run, varied."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from schedules import pool

from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.figures import AdviceOutcome, Circumstances, Evidence
from iobench.findings.advice.measured import MeasuredRank, measured_rank
from iobench.findings.advice.next_steps import FINDING, NextSteps

if TYPE_CHECKING:
    from iobench.findings.advice.next_steps import NextStep
    from iobench.report.run_report import RunReport
    from iobench.runs.contents import RunData

MS = 1_000_000
Make = Callable[..., "RunReport"]


def steps_of(*reports: RunReport) -> tuple[NextStep, ...]:
    """Return what to try after runs whose batches nobody looked at."""
    found = [
        MeasuredRank(Path("run"), 0, each.exposure, Circumstances(facts=each.facts), way=None)
        for each in reports
    ]
    return NextSteps(tuple(found)).steps


def steps_after(profile: RunData) -> tuple[NextStep, ...]:
    figures = FINDING.figures(Run(profile).of_rank())
    assert figures is not None
    return figures.steps


def commands(*reports: RunReport) -> list[str | None]:
    return [step.command for step in steps_of(*reports)]


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
    return sketch.profile()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recommended_is_what_advise_proposes_and_never_what_it_rules_out(kind: str) -> None:
    profile = run_of(**KINDS[kind])
    run = Run(profile).of_rank()
    advice = advice_of([measured_rank(run, recorded_runs(run))])
    assert advice is not None
    titles = [each.candidate.title for each in (*advice.changes, *advice.to_measure)]
    ruled_out = {each.candidate.title for each in advice.ruled_out} - {*titles}
    steps = steps_after(profile)
    promised = [step for step in steps if "saves" in step.reason]
    for step, title in zip(promised, titles, strict=False):
        assert step.reason.startswith(title)
    for step in steps:
        assert not any(step.reason.startswith(f"{title}:") for title in ruled_out)
    if advice.changes or (titles and "hidden" not in kind):
        assert promised
    if any("nothing to gain" in step.reason for step in steps):
        assert advice.outcome is AdviceOutcome.NOTHING_TO_GAIN


def test_the_command_of_a_step_tries_it() -> None:
    first, second = steps_after(run_of(workers=1))
    assert first.reason.startswith("4 workers: saves 75 % of the time by replay")
    assert first.command == "iobench profile a.nc --format source --workers 4"
    assert second.reason.endswith("% of the time at most, to be measured")
    assert second.command == "iobench profile a.nc --format numpy"
    script = steps_after(run_of(workers=1, kind="script", command="python train.py"))
    assert script[0].reason.startswith(
        "4 workers (DataLoader(..., num_workers=4)): saves 71 % of the training loop's time by "
        "replay"
    )
    assert [step.command is None for step in script] == [True, True, False]
    assert script[2].command is not None
    assert script[2].command.startswith("iobench advise ")


@pytest.mark.parametrize("kind", KINDS)
def test_no_bound_that_is_printed_exceeds_what_the_loop_waits(kind: str) -> None:
    run = Run(run_of(**KINDS[kind])).of_rank()
    advice = advice_of([measured_rank(run, recorded_runs(run))])
    assert advice is not None
    wait = advice.baseline.wait_fraction
    for change in (*advice.changes, *advice.to_measure):
        if change.gain.evidence is Evidence.BOUND and wait is not None:
            assert change.gain.expected <= wait


def test_without_compute_a_step_time_is_proposed(make: Make) -> None:
    nothing = {"forward_ns": 0, "backward_ns": 0, "source": "none"}
    report = make(stand_in=False, compute=nothing, command="iobench profile a.grib --compute none")
    assert commands(report) == ["iobench profile a.grib --compute 25ms"]


def test_a_short_run_is_to_be_longer(make: Make) -> None:
    report = make(stand_in=False, command="iobench profile x --epochs=1 --format numpy")
    exposure = replace(report.exposure, steady=None)
    report = replace(report, exposure=exposure)
    assert commands(report)[-1] == "iobench profile x --format numpy --batches 200"
    rounds = replace(report, exposure=replace(exposure, n_rounds=9))
    assert "iobench profile x --format numpy --batches 200" not in commands(rounds)


def test_own_files_are_not_tiny(make: Make, hidden: RunReport) -> None:
    command = "iobench profile x --tiny --seed 3 --epochs 2"
    tiny = replace(hidden, facts=replace(hidden.facts, command=command))
    assert commands(tiny) == [None, "iobench profile x --epochs 2 --data-dir DIR"]


def test_of_several_runs_the_best_is_gone_on_from(bound: RunReport, hidden: RunReport) -> None:
    steps = steps_of(bound, hidden)
    assert steps[0].reason == "nothing to gain from faster loading of tfrecord at this step time"
    assert len(steps) == 2


@pytest.mark.parametrize("command", [None, "", "iobench run -- python train.py"])
def test_another_command_is_not_varied(make: Make, command: str | None) -> None:
    assert commands(make(command=command)) == []


def test_no_batch_no_step(unknown: RunReport) -> None:
    whole = replace(unknown.exposure.whole, n_batches=0)
    assert commands(replace(unknown, exposure=replace(unknown.exposure, whole=whole))) == []


@pytest.mark.timeout(60)
def test_rich_is_loaded_only_to_print() -> None:
    code = "import iobench.report, sys; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_script_whose_starts_are_waited_for_is_told_so(hidden: RunReport) -> None:
    facts = replace(hidden.facts, is_script=True, command="python train.py", stand_in=False)
    script = replace(hidden, facts=facts)
    (step,) = steps_of(script)
    assert step.reason.endswith("in steady state; longer rounds make start-up count for less")
    calm = replace(hidden.exposure, whole=hidden.exposure.steady)
    (step,) = steps_of(replace(script, exposure=calm))
    assert step.reason == "nothing to gain from faster loading at this step time"
