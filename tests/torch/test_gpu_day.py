"""The day there is a GPU: its rows over the stand-in, and what the table says when things go wrong.

No figure is looked at but those that are known of the stand-in: rows check themselves.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="devices are torch's")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


pytestmark = pytest.mark.timeout(120)


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows():
    """The module of rows, which looks for others beside it."""
    path = list(sys.path)
    yield loaded("gpu_day_rows")
    sys.path[:] = path


@pytest.mark.quick_cases(0, thorough=2)
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        *((name, "") for name in ("device", "exposure", "copies", "memory")),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("events", ""), ("pinning", ""), ("loader", ""), ("profile", "native"))
        ),
    ],
)
def test_a_row_holds_over_the_stand_in_and_is_marked_so(rows, tmp_path, name, argument):
    if name == "profile":
        pytest.importorskip("eccodes", reason="the stand-in of ENS-10 is GRIB")
    asked = rows.Asked(tmp_path, 60.0, fake=True)
    try:
        for _turn in range(3):  # a thread that is held up between two readings is no device
            found = rows.answer(name, argument, asked)
            if found["state"] != "failed":
                break
    finally:
        asked.device.close()
    assert found["state"] == "stand-in", found
    assert found["on"] == "a stand-in"
    assert found["figures"]
