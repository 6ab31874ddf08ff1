"""What a report says to try next: always the command that was run, varied."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iobench.report.next_steps import next_steps

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

Make = Callable[..., "RunReport"]


def commands(*reports: RunReport) -> list[str | None]:
    return [step.command for step in next_steps(reports)]


def test_torch_reads_numpy(make: Make) -> None:
    report = make(
        framework="torch", stand_in=False, command="iobench profile a.grib --framework torch --json"
    )
    assert commands(report) == ["iobench profile a.grib --framework torch --format numpy"]


def test_a_loader_that_is_run_as_it_is_can_neither_be_converted_nor_get_workers(make: Make) -> None:
    report = make(framework="torch", stand_in=False, machine={"cpus": 8})
    assert commands(replace(report, config={"own_order": True})) == []


def test_stores_that_are_waited_for_get_workers_as_far_as_there_are_cpus(make: Make) -> None:
    report = make(format="numpy", stand_in=False, machine={"cpus": 8})
    assert commands(report) == ["iobench profile maelstrom-ens10 --workers 8"]
    assert commands(make(format="numpy", stand_in=False)) == []


def test_without_compute_a_step_time_is_proposed(make: Make) -> None:
    nothing = {"forward_ns": 0, "backward_ns": 0, "source": "none"}
    report = make(stand_in=False, compute=nothing, command="iobench profile a.grib --compute none")
    assert commands(report) == ["iobench profile a.grib --compute 25ms"]


def test_a_short_run_is_to_be_longer(make: Make) -> None:
    report = make(stand_in=False, command="iobench profile x --epochs=1 --format numpy")
    exposure = replace(report.exposure, steady=None)
    diagnosis = replace(report.diagnosis, steady=False)
    report = replace(report, exposure=exposure, diagnosis=diagnosis)
    assert commands(report)[-1] == "iobench profile x --format numpy --batches 200"
    rounds = replace(report, exposure=replace(exposure, n_rounds=9))
    assert "iobench profile x --format numpy --batches 200" not in commands(rounds)


def test_own_files_are_not_tiny(make: Make, hidden: RunReport) -> None:
    tiny = replace(hidden, facts=replace(hidden.facts, command="iobench profile x --tiny --seed 3"))
    assert commands(tiny) == [None, "iobench profile x --seed 3 --data-dir DIR"]


def test_of_several_runs_the_best_is_gone_on_from(bound: RunReport, hidden: RunReport) -> None:
    steps = next_steps([bound, hidden])
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
    script = replace(hidden, facts=facts, diagnosis=replace(hidden.diagnosis, start_fraction=0.6))
    (step,) = next_steps([script])
    assert step.reason.endswith("once it is steady; longer rounds make its starts weigh less")
    calm = replace(script, diagnosis=replace(hidden.diagnosis, start_fraction=0.01))
    (step,) = next_steps([calm])
    assert step.reason == "nothing to gain from faster loading at this step time"
