"""The day there is a GPU: its rows over the stand-in, and what the table says when things go wrong.

No figure is looked at but those that are known of the stand-in: rows check themselves.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="devices are torch's")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu_day.py"
pytestmark = pytest.mark.timeout(120)


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def day():
    return loaded("gpu_day")


@pytest.fixture
def rows():
    """The module of rows, which looks for others beside it."""
    path = list(sys.path)
    yield loaded("gpu_day_rows")
    sys.path[:] = path


def shown(document):
    """Return the cells of a table by row."""
    cells = [line.strip("| ").split(" | ") for line in document.splitlines() if line[:2] == "| "]
    return {each[0]: each for each in cells}


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


ROWS_OF_A_TEST = """
import json, os, sys, time
name, argument, given = sys.argv[1:]
asked = json.loads(given)
if name == "dies":
    os.kill(os.getpid(), 9)
if name == "hangs":
    time.sleep(600)
if name == "raises":
    raise SystemExit("no such luck")
again = os.path.join(os.path.dirname(asked["answer"]), name + ".times")
open(again, "a").write("x")
figures = {"n": 3, "rates": [1.23456, {"a": 2}]}
found = {"state": "measured", "why": "", "figures": figures, "on": "it"}
open(asked["answer"], "w").write(json.dumps(found))
"""


@pytest.fixture
def run(day, tmp_path, monkeypatch, capsys):
    """Run rows of a test's own; return the exit code and the table."""
    script = tmp_path / "rows.py"
    script.write_text(ROWS_OF_A_TEST)
    monkeypatch.setattr(day, "SCRIPT", script)
    what = {"torch": "2", "device": None, "host": "here"}
    monkeypatch.setattr(day, "identity", lambda fake: what | {"commit": day.commit(), "fake": fake})

    def run(*names, **seconds):
        rows = tuple(day.Row(name, "", seconds.get(name, 60)) for name in names)
        monkeypatch.setattr(day, "ROWS", rows)
        code = day.main(["--folder", str(tmp_path / "day"), "--minutes", "2"])
        return code, shown(capsys.readouterr().out)

    return run


@pytest.mark.long
def test_what_goes_wrong_in_a_row_is_a_line_and_the_others_run(run, tmp_path):
    code, table = run("dies", "raises", "hangs", "fine", hangs=1.5)
    assert code == 1
    assert table["dies"][2:5] == ["failed", "", "killed by SIGKILL"]
    assert table["raises"][4] == "ended with 1: no such luck"
    assert table["hangs"][4] == "took longer than its limit of 2 s"
    assert table["fine"][2:5] == ["measured", "it", "n 3, rates 1.235/{a 2}"]
    kept = (tmp_path / "day" / "table.md").read_text()
    assert shown(kept) == table
    assert kept.splitlines()[-1] == "3 failed, 1 measured."


def test_rows_that_were_measured_stay_and_the_others_are_tried_again(
    run, day, tmp_path, monkeypatch
):
    assert run("fine", "raises")[0] == 1
    code, table = run("fine", "other", "large", large=3600)
    assert code == 0
    assert [table[name][-1] for name in ("fine", "other")] == ["kept", "0"]
    assert table["large"][2] == "not available"
    assert table["large"][4].startswith("no time left: 3600 s are needed")
    monkeypatch.setattr(day, "commit", lambda: "another")
    assert run("fine")[1]["fine"][-1] != "kept"
    assert (tmp_path / "day" / "fine.times").read_text() == "xx"


@pytest.mark.long
def test_interrupted_it_ends_what_runs_and_goes_on_later(tmp_path):
    """The command as it is, in the middle of its first row."""
    command = [
        sys.executable,
        str(SCRIPT),
        "--fake",
        "--only",
        "exposure",
        "--folder",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "exposure ...\n"
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    assert process.returncode == 75
    assert "the same command goes on" in error
    assert shown(out).keys() == {"row", "---"}
    assert not list(tmp_path.glob("*.json"))
