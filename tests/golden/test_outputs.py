"""What commands say of runs that were recorded long ago stays what it is: README.md beside it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from tests.golden.outputs import GONE, HERE, changed, differences, outputs_of, trace_rows, unpack

STORED, RENAMED, REMOVED = HERE / "outputs", HERE / "renamed_keys.json", HERE / "removed_keys.txt"
CASES = sorted(file.name.removesuffix(".tar.xz") for file in (HERE / "runs").iterdir())
# Small ones first.
CASES.sort(key=lambda name: name not in ("power-serial", "suite-formats"))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recorded")
    assert unpack(HERE / "runs", place) == sorted(CASES)
    return place


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", CASES)
def test_commands_say_of_recorded_runs_what_is_stored(name: str, cases: Path) -> None:
    assert [*(STORED / name).glob("*.json")]
    assert changed(STORED / name, outputs_of(cases / name), RENAMED, REMOVED) == []


@pytest.mark.parametrize("name", ["power-serial", "script-keras", "script-validation-workers"])
def test_a_whole_report_of_one_run_takes_at_most_150_lines(
    name: str, cases: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", str(cases / name / "run"), "--full"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 150


def _event(ts: str, dur: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "read", "ts": ts, "dur": dur, "pid": 1, "tid": 2, **more}


@pytest.mark.parametrize(
    "moved",
    [
        [_event("1.001", "2"), _event("5", "3")],
        [_event("1", "2.001"), _event("5", "2.999")],
        [_event("1", "3"), _event("5", "2")],
        [_event("1", "2", tid=3), _event("5", "3")],
        [_event("1", "2", name="decode"), _event("5", "3")],
        [_event("1", "2")],
    ],
)
def test_a_row_of_a_trace_that_moves_is_a_difference(moved: list[dict[str, Any]]) -> None:
    before = trace_rows([_event("1", "2"), _event("5", "3")])
    assert list(differences(before, copy.deepcopy(before), "trace", {})) == []
    assert list(differences(before, trace_rows(moved), "trace", {}))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda run: run.update(wait_ns=run["wait_ns"] + 1), "report.runs[0].wait_ns"),
        (lambda run: run.update(dataset="x"), "report.runs[0].dataset"),
        (lambda run: run["stages"].pop(), "report.runs[0].stages"),
        (lambda run: run.pop("epochs"), "report.runs[0].epochs"),
    ],
)
def test_a_figure_that_changes_is_a_difference(
    change: Callable[[dict[str, Any]], object], place: str, tmp_path: Path
) -> None:
    stored = STORED / "power-serial"
    said = {"report": json.loads((stored / "report.json").read_text())}
    before = copy.deepcopy(said["report"])
    said["report"]["runs"][0]["stages"].reverse()
    said["report"]["runs"][0]["in_no_earlier_version"] = 1
    assert list(differences(before, said["report"], "report", {})) == []
    change(said["report"]["runs"][0])
    ((at, _, _),) = differences(before, said["report"], "report", {})
    assert at == place


def test_keys_that_have_another_name_unit_or_are_gone(tmp_path: Path) -> None:
    old, new = {"a_ns": 2_000, "b": 1, "c": 1}, {"a_s": 2e-6, "bb": 1}
    assert list(differences(old, new, "report", {"b": "bb"})) == [("report.c", 1, GONE)]
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "report.json").write_text(json.dumps(old))
    (tmp_path / "map").write_text('{"b": "bb"}')
    for gone, n_changed in (("", 1), ("c", 0), ("report.c", 0), ("advise.c", 1)):
        (tmp_path / "gone").write_text(gone)
        found = changed(tmp_path / "case", {"report": new}, tmp_path / "map", tmp_path / "gone")
        assert len(found) == n_changed
