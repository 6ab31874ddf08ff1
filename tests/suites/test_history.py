"""``iobench history``: figures of suites over time, from files of results."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from suite_files import OPTIONS, suite

from iobench.cli import main
from iobench.registry import find_renderer
from iobench.report.document import (
    ChartPoint,
    Document,
    Duration,
    Section,
    SmallChart,
    SmallCharts,
)
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.subjects.history.figures import make_history
from iobench.subjects.history.section import history_document
from iobench.subjects.history.suite_facts import SuiteResults
from iobench.suites.history_folder import append_to_history, read_history, write_table
from iobench.suites.results import Result


def suites(
    root: Path, n: int = 8, *, at: int = 8, ratio: float = 1.3, after: dict[str, Any] | None = None
) -> Path:
    """Write suites of a year and a half, of which ``step_s`` is another one from one on."""
    for number in range(n):
        is_after = number >= at
        more = (after or {}) if is_after else {}
        suite(
            root / f"s{number}", day=number * 60, step_s=0.05 * (ratio if is_after else 1), **more
        )
    return root


def document(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> dict[str, Any]:
    assert main(["history", str(folder), "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text_of(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> str:
    assert main(["history", str(folder), *more]) == 0
    return " ".join(capsys.readouterr().out.split())


def changes(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (figure["name"], change["what"], change["suite"])
        for figure in found["figures"]
        for change in figure["changes"]
    ]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["history", *map(str, arguments)]) == 1
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    return found.err


def test_a_change_is_named_with_what_changed_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = {"versions": {"commit": "b" * 40, "torch": "2.4"}, "machine": {"kernel": "6.8"}}
    root = suites(tmp_path / "h", at=5, after=after)
    found = document(capsys, root)
    assert changes(found) == [("source", "change", "s5"), ("zarr", "change", "s5")]
    change = found["figures"][0]["changes"][0]
    assert change["judged"] == "worse"
    assert change["low"] < 1.3 < change["high"]
    assert not change["other_machine"]
    beside = {(each["what"], each["before"], each["after"]) for each in change["beside"]}
    assert beside == {
        ("commit", "a" * 12, "b" * 12), ("kernel", "6.1", "6.8"), ("torch", "2.3", "2.4"),
    }  # fmt: skip
    text = text_of(capsys, root)
    assert "From s5 on (2025-11-01): 2 worse." in text
    assert f"Also changed: commit {'a' * 12} to {'b' * 12}, kernel 6.1 to 6.8, torch 2.3 to" in text
    assert "machine changed as well" not in text


def test_where_nothing_changed_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = suites(tmp_path / "h")
    found = document(capsys, root)
    assert changes(found) == []
    figure = found["figures"][0]
    assert 0.005 < figure["suite_spread"] < 0.06
    assert [point["period"] for point in figure["points"]] == [
        "2025-Q1", "2025-Q2", "2025-Q3", "2025-Q4", "2026-Q1",
    ]  # fmt: skip
    point = figure["points"][-1]
    assert point["low"] < point["value"] < point["high"]
    assert point["spread_low"] < point["spread"] < point["spread_high"]
    assert point["to_previous"]["low"] < point["to_previous"]["ratio"]
    assert figure["points"][0]["to_first"]["ratio"] is None
    text = text_of(capsys, root)
    assert "In none of these figures can a change be distinguished from chance" in text
    assert "change. With 8 suites, a change in a single figure is reported from about" in text


def test_another_machine_is_no_regression_of_the_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = {"versions": {"commit": "b" * 40}, "machine": {"cpu_model": "Xeon", "host": "n2"}}
    root = suites(tmp_path / "h", at=4, after=after)
    found = document(capsys, root)
    assert changes(found) == [("source", "change", "s4"), ("zarr", "change", "s4")]
    assert all(each["changes"][0]["other_machine"] for each in found["figures"])
    assert "cannot be separated" in text_of(capsys, root)


def test_a_host_alone_is_another_machine_unless_hosts_vary_anyway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suites(tmp_path / "one", at=4, after={"machine": {"host": "n2"}})
    found = document(capsys, tmp_path / "one")
    assert all(each["changes"][0]["other_machine"] for each in found["figures"])
    for number in range(8):
        step_s = 0.05 * (1.3 if number >= 4 else 1)
        host = {"host": f"node{number}"}
        suite(tmp_path / "many" / f"s{number}", day=number * 60, step_s=step_s, machine=host)
    found = document(capsys, tmp_path / "many")
    assert not any(each["changes"][0]["other_machine"] for each in found["figures"])
    assert "host" in {each["what"] for each in found["figures"][0]["changes"][0]["beside"]}


def test_machines_that_take_turns_have_figures_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        other = {"cpu_model": "Xeon", "host": "x1"} if number % 2 else {}
        step_s = 0.2 if number % 2 else 0.05
        suite(tmp_path / f"s{number}", day=number * 30, step_s=step_s, machine=other)
    found = document(capsys, tmp_path)
    assert changes(found) == []
    machines = {each["machine"] for each in found["figures"]}
    assert machines == {"EPYC, 4, 15 GiB", "Xeon, 4, 15 GiB"}
    assert {each["n_suites"] for each in found["figures"]} == {5}


def test_one_suite_alone_is_an_outlier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(9):
        suite(tmp_path / f"s{number}", day=number * 60, step_s=0.09 if number == 4 else 0.05)
    found = document(capsys, tmp_path)
    assert changes(found) == [("source", "outlier", "s4"), ("zarr", "outlier", "s4")]
    text = text_of(capsys, tmp_path)
    assert "s4 alone (2025-09-02): 2 worse." in text
    assert "this suite alone (worse)" in text
    assert "From s4 on" not in text


def test_the_newest_suite_alone_may_be_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = suites(tmp_path / "h", 9, at=8, ratio=2)
    assert changes(document(capsys, root)) == [("source", "newest", "s8"), ("zarr", "newest", "s8")]
    text = text_of(capsys, root)
    assert "s8, the newest (2026-04-30): 2 worse." in text
    assert "a change or an outlier, which the next suite will show" in text


def test_what_comes_bit_by_bit_is_a_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        suite(tmp_path / f"s{number}", day=number * 60, step_s=0.05 * 1.1**number)
    found = document(capsys, tmp_path)
    assert changes(found) == [("source", "drift", "s9"), ("zarr", "drift", "s9")]
    change = found["figures"][0]["changes"][0]
    assert (change["before"], change["judged"]) == ("s0", "worse")
    assert change["low"] < 1.1**9 < change["high"]
    assert "Gradually up to s9" in text_of(capsys, tmp_path)


def test_how_far_repeats_spread_is_a_figure_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        folder = suite(tmp_path / f"s{number}", day=number * 30, repeats=20)
        if number >= 6:
            for file in folder.rglob("*.result.json"):
                told = json.loads(file.read_text())
                sign = 1 if told["round"] % 2 else -1
                told["figures"]["step_s"] *= 1 + 0.3 * sign
                file.write_text(json.dumps(told))
    found = document(capsys, tmp_path)
    for figure in found["figures"]:
        (change,) = (each for each in figure["changes"] if each["of_spread"])
        assert (change["suite"], change["judged"]) == ("s6", "worse")
        assert change["ratio"] > 5
    assert "spread of step_s, source" in text_of(capsys, tmp_path)


def test_what_a_figure_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite(tmp_path / "a", day=0)
    suite(tmp_path / "b", day=100, suite="other", recipe_digest="ffff")
    suite(tmp_path / "c", day=200, options=OPTIONS | {"format": "source", "batch-size": "8"})
    found = document(capsys, tmp_path, "--by", "suite")
    # Another recipe with the same options goes on with the figure; other fixed options do not.
    assert [(each["name"], each["n_suites"]) for each in found["figures"]] == [
        ("batch-size 4 source", 2), ("batch-size 4 zarr", 2), ("batch-size 8 source", 1),
    ]  # fmt: skip
    assert found["common"] == {"dataset": "ens10", "workers": "2"}
    assert [each["recipe"] for each in found["suites"]] == ["formats", "other", "formats"]
    suite(tmp_path / "d", day=300, recipe_digest="eeee")
    told = "From d on, recipe formats is a different one (formats 0123456789ab to formats eeee)"
    assert told in text_of(capsys, tmp_path)


def test_metrics_and_periods_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = suites(tmp_path / "h", 3)
    suite(root / "s3", day=180, figures={"energy_j": 5.0, "stage_read_s": 0.1})
    found = document(capsys, root, "--metric", "stage_*", "--metric", "energy_j")
    assert [each["metric"] for each in found["figures"]] == ["stage_read_s"] * 2 + ["energy_j"] * 2
    assert found["other_metrics"] == ["samples_per_s", "step_s"]
    found = document(capsys, root, "--by", "month")
    assert found["figures"][0]["points"][0]["period"] == "2025-01"
    found = document(capsys, root, "--by", "suite")
    assert found["figures"][0]["points"][0]["period"] == "2025-01-05 00:00"
    assert "no such figure; expected one of" in refused(capsys, root, "--metric", "speed")
    text = text_of(capsys, root, "--markdown")
    assert "| source |" in text


def test_few_suites_tell_ratios_and_no_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite(tmp_path / "a", repeats=1)
    text = text_of(capsys, tmp_path)
    assert "1 suite" in text
    assert "No change can be judged from 1 suite" in text
    found = document(capsys, tmp_path)
    (point,) = found["figures"][0]["points"]
    assert (point["low"], point["high"], point["spread"]) == (None, None, None)
    suite(tmp_path / "b", day=100, step_s=0.1)
    found = document(capsys, tmp_path)
    assert 1.8 < found["figures"][0]["points"][1]["to_previous"]["ratio"] < 2.2
    assert changes(found) == []


def test_what_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "no result of a suite in it" in refused(capsys, tmp_path / "empty")
    assert "is no folder" in refused(capsys, tmp_path / "nowhere")
    root = suites(tmp_path / "h", 5)
    torn, newer, undated = (
        next((root / name).rglob("*.result.json")) for name in ("s0", "s1", "s2")
    )
    torn.write_text(torn.read_text()[:80])
    newer.write_text(newer.read_text().replace('"version": 1', '"version": 9'))
    undated.write_text(undated.read_text().replace('"started": "2025', '"started": "x'))
    found = document(capsys, root)
    why = {each["file"]: each["why"] for each in found["skipped"]}
    assert "is damaged" in why[torn.relative_to(root).as_posix()]
    assert "is of version 9" in why[newer.relative_to(root).as_posix()]
    assert why["s2"] == "1 of its results have no readable date"
    assert found["figures"][0]["n_suites"] == 5
    assert "Left out, 3:" in text_of(capsys, root)
    for file in root.rglob("*.result.json"):
        file.write_text("{")
    assert "none of 50 file(s) can be used" in refused(capsys, root)


def test_what_is_missing_or_no_number_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = suites(tmp_path / "h", 4)
    suite(
        root / "s4", day=240, formats=("zarr",), status="failed", reason="zarr is not there",
        figures={},
    )  # fmt: skip
    for file in (root / "s4").rglob("*.result.json"):
        told = json.loads(file.read_text())
        told["figures"] = {}
        file.write_text(json.dumps(told))
    one = next((root / "s3" / "000-source").glob("*.json"))
    one.write_text(one.read_text().replace('"step_s": 0.', '"step_s": NaN, "x": 0.'))
    found = document(capsys, root)
    source, zarr = found["figures"]
    assert zarr["missing"] == {"s4": "zarr is not there"}
    assert zarr["n_suites"] == 4
    assert source["points"][-1]["n_repeats"] == 4
    assert "s4 has no figure of zarr: zarr is not there." in text_of(capsys, root)


def test_figures_that_nothing_can_be_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = suites(tmp_path / "h", 6)
    for number, value in enumerate(("1e308", "5e-324", "-1e300", "1e999", "NaN")):
        file = root / f"s{number}" / "000-source" / f"round-{number}.result.json"
        told = json.loads(file.read_text())
        told["figures"]["step_s"] = "VALUE"
        file.write_text(json.dumps(told).replace('"VALUE"', value))
    (source, _) = document(capsys, root, "--by", "suite")["figures"]
    assert [each["n_repeats"] for each in source["points"]] == [4] * 5 + [5]
    assert all(0.04 < each["value"] < 0.06 for each in source["points"])


@pytest.mark.parametrize("seed", range(12))
def test_whatever_figures_are_a_history_can_be_shown(seed: int) -> None:
    chosen = random.Random(seed)
    values = (0.0, -1.0, 9e99, -9e99, 2e-100, 1.0, 1.0, 2.0, 1e50, 1e-50, math.nan, math.inf)
    dates = ("2025-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00", "2025-06-01", "yesterday")
    pool = [1.0, *chosen.sample(values, 3)]
    found = []
    for number in range(6):
        of = tuple(
            Result(
                suite="\x1b[2J",
                recipe_digest="",
                cell={},
                round=repeat,
                status="measured",
                started=chosen.choice((*dates, f"2025-0{number + 1}-01T00:00:00Z")),
                figures={name: chosen.choice(pool) for name in ("step_s", "a_share", "x")},
                machine={"memory_bytes": chosen.choice((1e9, None, "x", -5)), "host": 3},
                options={"": str(cell)},
            )
            for cell in range(2)
            for repeat in range(4)
        )
        found.append(SuiteResults(f"s{number}", of, drop=chosen.choice((0, 1, 3))))
    shown = history_document(make_history(found, metrics=["*"]))
    for renderer in ("json", "markdown"):
        assert find_renderer(renderer).render(shown)


def test_figures_of_0_have_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        wait = {"wait_s": 0.0 if number < 4 else 0.01}
        suite(tmp_path / f"s{number}", day=number * 60, figures=wait)
    found = document(capsys, tmp_path, "--metric", "wait_s")
    assert changes(found) == [("source", "change", "s4"), ("zarr", "change", "s4")]
    change = found["figures"][0]["changes"][0]
    assert change["ratio"] is None
    assert change["difference"] == pytest.approx(0.01)
    assert found["figures"][0]["points"][-1]["to_first"]["ratio"] is None
    assert "10.0 ms more" in text_of(capsys, tmp_path, "--metric", "wait_s")


def test_clocks_and_suites_that_meet_are_in_doubt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite(tmp_path / "a", day=0)
    suite(tmp_path / "b", day=0, seed=5)
    back = suite(tmp_path / "c", day=50, formats=("source",))
    for file in back.rglob("round-4*"):
        file.write_text(file.read_text().replace("2025-02-24T00:40", "2025-02-23T00:40"))
    moved = suite(tmp_path / "d", day=90, formats=("source",))
    for file in moved.rglob("round-4*"):
        file.write_text(file.read_text().replace('"n1"', '"n2"'))
    found = document(capsys, tmp_path, "--by", "suite")
    doubts = {each["name"]: " ".join(each["doubts"]) for each in found["suites"]}
    assert doubts["a"] == ""
    assert "ran while a did, on the same host" in doubts["b"]
    assert "the clock was set back" in doubts["c"]
    assert "2 values of host (n1, n2)" in doubts["d"]
    assert [each["period"] for each in found["figures"][0]["points"]][:2] == [
        "2025-01-05 00:00 a", "2025-01-05 00:00 b",
    ]  # fmt: skip


def test_a_finished_suite_is_appended_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history"
    run = suite(tmp_path / "run", repeats=3)
    (run / "000-source" / "round-0").mkdir()
    (run / "000-source" / "round-0" / "run.json").write_text("{}")
    kept = append_to_history(run, history)
    assert kept.name.startswith("20250105-000000-formats-")
    suite(run, repeats=5)  # it went on
    assert append_to_history(run, history) == kept
    assert append_to_history(suite(tmp_path / "later", day=100), history) != kept
    assert not list(history.rglob("run.json"))
    assert not [each for each in history.iterdir() if each.name.startswith(".")]
    found = document(capsys, history)
    assert [each["n_runs"] for each in found["suites"]] == [10, 10]
    assert len(found["figures"][0]["points"]) == 2
    shutil.copytree(kept, history / "again")
    found = document(capsys, history)
    assert len(found["suites"]) == 2
    assert [each["why"] for each in found["skipped"]] == [f"all its runs are those of {kept.name}"]
    with pytest.raises(Exception, match="no result of a suite in it"):
        append_to_history(tmp_path / "none", history)


def test_what_a_recipe_drops_is_in_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = {
        "suite": {"name": "formats", "repeats": 5, "drop": 1, "metrics": ["samples_per_s"]},
        "fixed": {"batch-size": ["4"], "workers": ["2"]},
        "vary": {"dataset": [["ens10"]], "format": [["source"], ["zarr"]]},
    }
    run = suite(tmp_path / "run" / "cells").parent
    (run / "recipe.json").write_text(json.dumps(recipe))
    kept = append_to_history(run, tmp_path / "history")
    assert (kept / "recipe.json").exists()
    found = document(capsys, tmp_path / "history")
    assert found["skipped"] == []
    assert [each["name"] for each in found["suites"]] == [kept.name]
    rates = sorted(
        json.loads(file.read_text())["figures"]["samples_per_s"]
        for file in run.rglob("000-source/*.json")
    )
    figure = found["figures"][0]
    assert figure["metric"] == "samples_per_s"
    assert figure["points"][0]["value"] == pytest.approx(sum(rates[1:4]) / 3)
    assert figure["points"][0]["n_repeats"] == 5
    (kept / "recipe.json").write_text("{")
    found = document(capsys, tmp_path / "history", "--metric", "samples_per_s")
    assert [each["file"] for each in found["skipped"]] == [f"{kept.name}/recipe.json"]
    assert found["figures"][0]["points"][0]["value"] == pytest.approx(sum(rates) / 5)


def test_a_suite_that_is_half_appended_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite(tmp_path / "whole")
    suite(tmp_path / ".part", day=50)
    assert [each["name"] for each in document(capsys, tmp_path)["suites"]] == ["whole"]


def test_the_table_beside_follows_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="history.parquet needs pyarrow")
    history = tmp_path / "history"
    append_to_history(suite(tmp_path / "run"), history)
    table = history / "history.parquet"
    rows = parquet.read_table(table).to_pylist()
    assert len(rows) == 2 * 5 * 2
    assert {row["metric"] for row in rows} == {"step_s", "samples_per_s"}
    assert dict(rows[0]["options"])["batch-size"] == "4"
    assert not write_table(read_history(history))
    before = table.stat().st_mtime_ns
    document(capsys, history)
    assert table.stat().st_mtime_ns == before
    next(history.rglob("*.result.json")).unlink()
    document(capsys, history)
    assert len(parquet.read_table(table)) == 18
    table.write_bytes(b"torn")
    document(capsys, history)
    assert len(parquet.read_table(table)) == 18


def test_without_pyarrow_there_is_no_table_and_it_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    history = tmp_path / "history"
    append_to_history(suite(tmp_path / "run"), history)
    assert not (history / "history.parquet").exists()
    assert main(["history", str(history)]) == 0
    told = capsys.readouterr()
    assert "step_s" in told.out
    assert told.err.count("pyarrow, which is not installed") == 1
    assert "history.parquet is not of these results" in " ".join(told.err.split())
    assert main(["history", str(tmp_path / "run")]) == 0  # no history, so that none belongs there
    assert "pyarrow" not in capsys.readouterr().err


@pytest.mark.long
def test_ten_thousand_results_take_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    formats = tuple(f"zarr:level={each}" for each in range(100))
    for number in range(20):
        suite(tmp_path / f"s{number:02d}", day=number * 30, formats=formats)
    found = document(capsys, tmp_path, "--metric", "*")
    assert len(found["figures"]) == 200
    assert sum(each["n_runs"] for each in found["suites"]) == 10_000


def test_what_hardly_differs_is_not_drawn_as_if_it_did() -> None:
    pytest.importorskip("jinja2", reason="pages are its templates")
    drawn = {}
    for name, ms in (("level", (838, 839)), ("steep", (838, 1676))):
        points = tuple(ChartPoint(str(each), Duration(each * 1e6)) for each in ms)
        charts = SmallCharts("", (SmallChart(name, points),))
        page = HtmlRenderer().render(Document("x", (Section("y", "y", (charts,)),), figures=dict))
        heights = [float(each) for each in re.findall(r'<circle[^>]* cy="([\d.]+)"', page)]
        drawn[name] = heights[0] - heights[-1]
    assert drawn["level"] < 0.05 * drawn["steep"]
