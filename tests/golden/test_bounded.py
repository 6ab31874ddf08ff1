"""Runs that are not kept whole: what is kept and the sums of the rest are the whole run's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from tests.golden.bounded import PLACE, lanes_of, true_sums, unpacked

NAMES = sorted(path.stem for path in PLACE.glob("*.json"))
WORK = ("read", "collate", "fused", "serialise", "unpickle", "sampler")


@pytest.fixture(params=NAMES)
def truth(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return request.param, json.loads((PLACE / f"{request.param}.json").read_text())


def report(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what is said of a run, times in whole nanoseconds."""
    assert main(["report", str(run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    in_ns: dict[str, Any] = _in_ns(found)
    return in_ns


def _in_ns(value: Any) -> Any:
    """Return a document whose seconds are nanoseconds, as keys of the one or the other say."""
    if isinstance(value, list):
        return [_in_ns(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, each in value.items():
        is_time = key.endswith("_s") and not key.endswith("per_s")
        values = each if isinstance(each, dict) else {"": each}
        if is_time and all(isinstance(one, int | float) for one in values.values()):
            values = {name: round(one * 1e9) for name, one in values.items()}
            found[f"{key[:-2]}_ns"] = values if isinstance(each, dict) else values[""]
        else:
            found[key] = _in_ns(each)
    return found


def test_the_sums_are_those_of_the_whole_run(
    truth: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    name, sums = truth
    assert true_sums(lanes_of(unpacked(f"{name}-whole", tmp_path))) == sums
    assert sums["loop"]["batches"] > 1000


@pytest.mark.parametrize("kept", ["whole", "bounded"])
def test_waits_and_busy_time_by_stage_are_exact(
    truth: tuple[str, dict[str, Any]],
    kept: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, sums = truth
    run = report(unpacked(f"{name}-{kept}", tmp_path), capsys)
    summed = run["summed"] or {"batches": 0, "wait_ns": 0, "busy_ns": {}}
    assert (summed["batches"] > 300) == (kept == "bounded")
    assert run["batches"] + summed["batches"] == sums["loop"]["batches"]
    assert run["wait_ns"] + summed["wait_ns"] == sums["loop"]["wait_ns"]
    expected: Counter[str] = Counter()
    for stage, each in sums["stages"].items():
        expected[stage.partition(": ")[2]] += each["own_ns"]
    busy_ns = Counter(summed["busy_ns"])
    busy_ns.update({row["stage"]: row["busy_ns"] for row in run["stages"]})
    assert {stage: busy_ns[stage] for stage in WORK} == {stage: expected[stage] for stage in WORK}
    assert all(expected[stage] > 0 for stage in WORK)
