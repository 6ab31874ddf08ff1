"""JSON: unknown is null, and what a run says of itself in other types is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from iobench.errors import ProfileError
from iobench.report.json_report import reports_to_json
from iobench.report.run_report import RunReport

Make = Callable[..., RunReport]


def run_of(report: RunReport) -> dict[str, Any]:
    text = json.dumps(reports_to_json([report]), allow_nan=False)
    (run,) = json.loads(text)["runs"]
    assert isinstance(run, dict)
    return run


def test_unknown_is_null(unknown: RunReport) -> None:
    run = run_of(unknown)
    for key in ("dataset", "format", "framework", "stand_in", "batch_size", "steady"):
        assert run[key] is None
    for key in ("samples_per_s", "overhead_fraction", "cold_fraction", "store_path"):
        assert run[key] is None
    assert run["lost_spans"] == 7
    assert run["missing_workers"] == ["worker-1"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"dataset": 3}, r"Expected `str.*`, got `int` - at `\$\.dataset`"),
        ({"stand_in": "yes"}, r"Expected `bool.*`, got `str` - at `\$\.stand_in`"),
        ({"cache": {"asked": 3}}, r"got `int` - at `\$\.cache\.asked`"),
    ],
)
def test_run_json_of_other_types_is_refused_in_one_line(
    make: Make, said: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ProfileError, match=f"run.json: .*{expected}; put it right") as raised:
        make(**said)
    assert "\n" not in str(raised.value)
