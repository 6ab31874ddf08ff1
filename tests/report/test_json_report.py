"""JSON: every key of the contract, sums that hold, unknown as null, and all that is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from iobench.errors import ProfileError
from iobench.report.json_report import reports_to_json
from iobench.report.run_report import RunReport

Make = Callable[..., RunReport]

OF_PARTS: dict[str, type] = {
    "batches": int,
    "samples": int,
    "wall_s": float,
    "wait_ns": int,
    "wait_fraction": float,
    "samples_per_s": float,
    "exposed_ns": dict,
    "stages": list,
}
OF_RUN: dict[str, type] = {
    "dataset": str,
    "format": str,
    "framework": str,
    "stand_in": bool,
    "workers": int,
    "batch_size": int,
    "overhead_fraction": float,
    "lost_spans": int,
    "missing_workers": list,
    "verdict": str,
}


def run_of(report: RunReport) -> dict[str, Any]:
    text = json.dumps(reports_to_json([report]), allow_nan=False)
    (run,) = json.loads(text)["runs"]
    assert isinstance(run, dict)
    return run


def test_contract(bound: RunReport) -> None:
    run = run_of(bound)
    assert {key: type(run[key]) for key in OF_PARTS | OF_RUN} == OF_PARTS | OF_RUN
    assert {key: type(run["steady"][key]) for key in OF_PARTS} == OF_PARTS


def test_stage_rows(bound: RunReport) -> None:
    for row in run_of(bound)["stages"]:
        assert set(row) >= {"stage", "busy_s", "hidden_s", "exposed_s", "nbytes", "n_spans"}
        assert row["hidden_s"] + row["exposed_s"] == pytest.approx(row["busy_s"])


@pytest.mark.parametrize("part", ["whole", "steady"])
def test_exposed_is_the_wait_exactly(bound: RunReport, part: str) -> None:
    run = run_of(bound)
    window = run if part == "whole" else run["steady"]
    assert sum(window["exposed_ns"].values()) == window["wait_ns"]
    assert [row["stage"] for row in window["stages"]] == list(window["exposed_ns"])
    for row in window["stages"]:
        assert row["exposed_s"] == window["exposed_ns"][row["stage"]] / 10**9


def test_steady_is_read_like_the_run(bound: RunReport) -> None:
    run = run_of(bound)
    assert set(run["steady"]) <= set(run)
    assert run["steady"]["batches"] == 200


def test_unknown_is_null(unknown: RunReport) -> None:
    run = run_of(unknown)
    for key in ("dataset", "format", "framework", "stand_in", "batch_size", "steady", "published"):
        assert run[key] is None
    for key in ("samples_per_s", "overhead_fraction", "cold_fraction", "store"):
        assert run[key] is None
    assert run["lost_spans"] == 7
    assert run["missing_workers"] == ["worker-1"]


def test_no_batch_is_strict_json_too(make: Make, unknown: RunReport) -> None:
    from msgspec.structs import replace

    whole = replace(unknown.exposure.whole, wall_ns=0, wait_ns=0, compute_ns=0, n_batches=0)
    whole = replace(whole, stages=(), waits_ns=(), wait=None)
    run = run_of(replace(unknown, exposure=replace(unknown.exposure, whole=whole)))
    assert run["wait_per_step"] is None
    assert run["wait_fraction"] is None


def test_published_row(bound: RunReport) -> None:
    assert run_of(bound)["published"]["exposed_io_s"] == {
        "min": 0.02158,
        "mean": 0.10881,
        "median": 0.10577,
        "max": 6.02123,
        "stdev": 0.22815,
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"dataset": 3}, r"Expected `str.*`, got `int` - at `\$\.dataset`"),
        ({"stand_in": "yes"}, r"Expected `bool.*`, got `str` - at `\$\.stand_in`"),
        ({"workers": -1}, r"Expected `int` >= 0 - at `\$\.workers`"),
        ({"published": 7}, r"Expected `object`, got `int` - at `\$\.published`"),
        ({"setup": {"convert": "long"}}, r"got `str` - at `\$\.setup\[\.\.\.\]`"),
        ({"store": {"nbytes": []}}, r"got `array` - at `\$\.store\.nbytes`"),
    ],
)
def test_run_json_of_other_types_is_refused_in_one_line(
    make: Make, said: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ProfileError, match=f"run.json: .*{expected}; put it right") as raised:
        make(**said)
    assert "\n" not in str(raised.value)


def test_run_json_without_a_value_has_the_default(make: Make) -> None:
    run = run_of(make(dataset=None, published=None, setup=None))
    assert (run["dataset"], run["published"], run["setup_s"]) == (None, None, {})
