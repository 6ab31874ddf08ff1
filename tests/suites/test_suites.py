"""Suites from the command line: run, gone on with, shared, and what is said of them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.analysis.run import Run
from iobench.cli import main
from iobench.suites.recipe import read_recipe
from iobench.suites.results import (
    MEASURED,
    Result,
    SuiteFolder,
    find_results,
    read_result,
    write_result,
)

pytestmark = pytest.mark.timeout(300)


def shown(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    assert main(["suite", "--allow-code", *map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["suite", "--allow-code", *map(str, words)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def started(recipe: Path, out: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "iobench", "suite", "--allow-code", str(recipe),
            "--out", str(out), *words,
        ],
        cwd=recipe.parent, env=os.environ | environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def results_of(out: Path) -> tuple[Result, ...]:
    return tuple(map(read_result, find_results(out)))


def order_of(out: Path) -> list[tuple[int, str]]:
    """Return the rounds and cells in the order of their runs' ends."""
    paths = sorted(find_results(out), key=lambda path: path.stat().st_mtime_ns)
    results = [read_result(path) for path in paths]
    return [(each.round, each.cell["workers"]) for each in results]


def test_a_suite_is_measured_in_rounds_and_its_figures_are_those_of_reports(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = write_recipe(), tmp_path / "out"
    told = shown(capsys, recipe, "--out", out)
    assert [row["status"] for row in told["cells"]] == [MEASURED] * 2
    assert told["stand_in"] is False
    order = order_of(out)
    assert [round for round, _ in order] == [0, 0, 1, 1, 2, 2]
    assert [{cell for _, cell in order[at : at + 2]} for at in (0, 2, 4)] == [{"0", "1"}] * 3
    assert order[0][1] != order[2][1], "each cell has each place in turn"
    results = results_of(out)
    for path in list(find_results(out))[:2]:
        result = read_result(path)
        assert result.run is not None
        capsys.readouterr()
        assert main(["report", str(path.parent / result.run), "--json"]) == 0
        run = json.loads(capsys.readouterr().out)["runs"][0]
        part = run["recurring"] or run["steady"] or run
        judged = Run(path.parent / result.run).of_rank().exposure.judged
        assert 1e9 * result.figures["step_s"] == pytest.approx(judged.step.mean_ns)
        assert 1e9 * result.figures["wait_s"] == pytest.approx(judged.wait.mean_ns)
        assert result.figures["samples_per_s"] == part["samples_per_s"]
        assert result.figures["exposed_share"] == part["wait_fraction"]
        assert 1e9 * result.figures["run_s"] == pytest.approx(run["wall_ns"])
        assert result.machine["cpus"] == run["machine"]["cpus"]
        assert result.versions["numpy"] == run["versions"]["numpy"]
    row = told["cells"][0]
    steps = sorted(
        each.figures["step_s"] for each in results if each.cell["workers"] == row["cell"]["workers"]
    )
    assert row["figures"]["step_s"]["mean"]["value"] == steps[1]
    assert len({each.samples_digest for each in results}) == 1
    assert results[0].samples_digest is not None
    # All is measured: nothing is run, and the same is said.
    assert main(["suite", "--allow-code", str(recipe), "--out", str(out)]) == 0
    text = capsys.readouterr()
    assert "Each figure drops its own 1 lowest and highest of 3 runs" in text.out
    assert "round" not in text.err
    assert results_of(out) == results
    # Another recipe has no place here.
    line = refused(capsys, recipe, "--out", out, "--set", "repeats=5")
    assert "holds suite tiny of another recipe" in line
    # Whatever changed in the middle is named in its row.
    changed = next(find_results(out))
    document = json.loads(changed.read_text())
    document["machine"]["system"] = "Linux 9"
    document["versions"]["numpy"] = "9.9"
    changed.write_text(json.dumps(document))
    told = shown(capsys, recipe, "--out", out)
    assert told["cells"][0]["doubts"] == ["system", "version of numpy"]
    assert told["cells"][1]["doubts"] == []
    changed.write_text("{")
    line = refused(capsys, recipe, "--out", out)
    assert "is damaged" in line
    assert "remove it to measure again" in line


@pytest.mark.long
def test_a_killed_suite_goes_on_where_it_was(write_recipe: Any, tmp_path: Path) -> None:
    recipe, out = write_recipe(), tmp_path / "out"
    moments = random.Random(int(os.environ.get("PYTEST_SEED", "5")))
    before: dict[Path, bytes] = {}
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = started(recipe, out)
        try:
            process.communicate(timeout=moments.uniform(3, 12))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            if number == signal.SIGTERM:
                assert process.returncode == 75
                assert "run it again: iobench suite" in told
        now = {path: path.read_bytes() for path in find_results(out)} if out.exists() else {}
        assert now.items() >= before.items(), "what was finished stays as it was"
        before = now
    process = started(recipe, out)
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told
    results = results_of(out)
    assert {(each.round, each.cell["workers"]) for each in results} == {
        (round, workers) for round in range(3) for workers in "01"
    }
    assert len(results) == 6
    assert {path: path.read_bytes() for path in find_results(out)}.items() >= before.items()


@pytest.mark.parametrize(
    ("broken", "status", "code", "reason"),
    [
        ("yes", "failed", 1, "no such sample today"),
        # A full disk, and a process that somebody else ends: the suite was not interrupted.
        pytest.param("full", "failed", 1, "No space left", marks=pytest.mark.long),
        pytest.param("ended", "failed", 1, "interrupted", marks=pytest.mark.long),
        pytest.param("extra", "not available", 0, "pip install rain", marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_cells_that_fail_are_rows_until_they_are_measured_again(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, broken: str, status: str, code: int, reason: str,
) -> None:  # fmt: skip
    recipe = write_recipe(("[0, 1]", "[0]"), ("repeats = 3", "repeats = 1\ndrop = 0"))
    out = tmp_path / "out"
    monkeypatch.setenv("BROKEN", broken)
    (row,) = shown(capsys, recipe, "--out", out, code=code)["cells"]
    assert (row["status"], row["figures"]) == (status, {})
    assert reason in row["reason"]
    monkeypatch.delenv("BROKEN")
    assert shown(capsys, recipe, "--out", out, code=code)["cells"][0]["status"] == status
    assert shown(capsys, recipe, "--out", out, "--again")["cells"][0]["status"] == MEASURED


@pytest.mark.long
def test_a_run_that_takes_too_long_is_ended(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(
        ("[0, 1]", "[0]"), ('"60s"', '"1s"'), ("batches = 4", "duration = 60"),
        ('compute = "none"', 'compute = "100ms"'),
    )  # fmt: skip
    told = shown(capsys, recipe, "--out", tmp_path / "out", code=1)
    assert told["cells"][0]["reason"] == "took longer than its limit of 1s"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("batches = 4", "batches = 0", "cell .*: --batches 0: expected more than 0"),
        ('energy = "off"', 'energy = "on"', "cell .*: IOBENCH_ENERGY on: expected auto or off"),
        ("batches = 4", 'batches = "few"', "cell .*Invalid value for '--batches'"),
        ("workers = [0, 1]", 'format = ["zar"]', "did you mean zarr"),
        ('"tiny_samples:make"', '"maelstrom-ens1"', "did you mean maelstrom-ens10"),
        ('"tiny_samples:make"', '"there/is.nc"', "there is no such file"),
    ],
)
def test_cells_are_checked_before_anything_runs(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    before: str, after: str, told: str,
) -> None:  # fmt: skip
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    line = refused(capsys, write_recipe((before, after)), "--out", tmp_path / "out")
    assert re.search(told, line), line
    assert not (tmp_path / "out").exists()
    line = refused(capsys, write_recipe(), "--out", tmp_path / "other")
    assert "holds something else; name a new folder" in line
    assert "out/x: " in refused(capsys, write_recipe(), "--out", "tiny.toml/out/x")


def test_a_dry_run_says_what_would_be_run(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys, write_recipe(), "--dry-run", "--set", "workers=0,1,2")
    assert [each["workers"] for each in told["cells"]] == ["0", "1", "2"]
    assert told["commands"][1][:3] == ["iobench", "profile", "tiny_samples:make"]
    assert (told["n_left"], told["most_s"]) == (9, 9 * 60)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_lossy_store_shows_its_price(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal samples have equal digests, wherever they are read; rounded ones not."""
    recipe = write_recipe(
        ("workers = [0, 1]", 'format = ["source", "zarr", "zarr:dtype=float16"]'),
        ('"step_s", "samples_per_s"', '"run_s", "max_relative_error"'),
        ("repeats = 3", "repeats = 1\ndrop = 0"),
        ('"60s"', '"5min"'),
    )  # fmt: skip
    told = shown(capsys, recipe, "--out", tmp_path / "out")
    rows = {row["cell"]["format"]: row["figures"] for row in told["cells"]}
    runs = results_of(tmp_path / "out")
    digests = {each.cell["format"]: each.samples_digest for each in runs}
    assert digests["source"] == digests["zarr"] != digests["zarr:dtype=float16"]
    assert 0 < rows["zarr:dtype=float16"]["max_relative_error"]["mean"]["value"] < 1
    assert all(each["run_s"]["mean"]["value"] > 0 for each in rows.values())


SCRIPT = """
import sys

import numpy as np

import iobench

dataset = iobench.open_dataset("tiny_samples:make")
for epoch, batch in enumerate(dataset.loader(4)):
    iobench.metric("loss", float(sys.argv[1] == "source") + epoch)
"""


def test_a_script_is_measured_with_its_own_figures(
    write_recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f"command = '{sys.executable} train.py {{format}}'\n"
    recipe = write_recipe(
        ("batches = 4\n", command), ("batch-size = 2\n", ""), ('compute = "none"\n', ""),
        ("workers = [0, 1]", 'format = ["source", "zarr"]'),
        ("repeats = 3", "repeats = 1\ndrop = 0"),
        ('"step_s", "samples_per_s"', '"samples_per_s", "metric:loss"'),
    )  # fmt: skip
    told = shown(capsys, recipe, "--out", tmp_path / "out")
    figures = {row["cell"]["format"]: row["figures"] for row in told["cells"]}
    assert figures["source"]["metric:loss"]["mean"]["value"] == 1.5
    assert figures["zarr"]["metric:loss"]["mean"]["value"] == 0.5
    assert figures["zarr"]["samples_per_s"]["mean"]["value"] > 0
    assert main(["suite", "--allow-code", str(recipe), "--out", str(tmp_path / "out")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[:3] == ["cell", "samples/s", "loss"] for line in lines)
    line = refused(capsys, recipe, "--out", "x", "--set", "command=python 'train.py")
    assert "No closing quotation, expected a command" in line


def test_a_finished_suite_shows_other_figures_of_its_runs(
    write_recipe: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = write_recipe(), Path("out")
    folder = SuiteFolder(out, read_recipe(recipe))
    folder.create()
    for job in folder.open_jobs():
        folder.place(job.cell).mkdir(parents=True, exist_ok=True)
        result = Result(
            "tiny", folder.recipe.digest, job.cell.values, job.round, MEASURED,
            "2026-11-01T00:00:00+00:00", figures={"step_s": 0.5, "wait_s": 0.25},
        )  # fmt: skip
        write_result(folder.place(job.cell), result)
    told = shown(capsys, recipe, "--out", out, "--set", "metrics=wait_s")
    assert told["metrics"] == ["wait_s"]
    assert told["recipe_digest"] == folder.recipe.digest
    line = refused(capsys, recipe, "--out", out, "--set", "metrics=wait_s", "--set", "batches=5")
    assert "holds suite tiny of another recipe" in line


@pytest.mark.parametrize(
    ("dataset", "option"),
    [
        ("tiny_samples:make", ""),
        ("os:system", 'option = "command=touch EXECUTED"\n'),
        ("maelstrom-yr", "command = 'touch EXECUTED'\n"),
        ("maelstrom-yr", 'darshan = "/tmp/library.so"\n'),
        ("maelstrom-yr", 'option = "--allow-code"\n'),
        ("--help", ""),
        ("", ""),
    ],
)
def test_what_a_recipe_would_run_or_pass_as_an_option_is_refused_unasked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dataset: str,
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(
        f'[suite]\nrepeats = 1\ndrop = 0\n[fixed]\ndataset = "{dataset}"\nbatches = 5\n{option}'
        '[vary]\nformat = ["source"]\n'
    )
    assert main(["suite", "r.toml", "--out", "out"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.toml"]


def test_a_long_key_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.toml"
    for n in (60_000, 200_000):
        recipe.write_text(f"[fixed]\n{'a' * n} = 1\n")
        assert main(["suite", str(recipe), "--dry-run"]) == 1
        assert len(capsys.readouterr().err) < 500


@pytest.mark.timeout(100)
def test_children_import_nothing_of_the_folder(tmp_path: Path) -> None:
    for name in ("iobench.py", "numpy.py", "json.py", "h5netcdf.py", "click/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(tmp_path / 'EXECUTED')!r}, 'w')\n")
    (tmp_path / "r.toml").write_text(
        '[suite]\nrepeats = 1\ndrop = 0\n[fixed]\ndataset = "maelstrom-yr"\ntiny = true\n'
        'batches = 1\ncompute = "none"\n[vary]\nformat = ["source"]\n'
    )
    words = [sys.executable, "-P", "-m", "iobench", "suite", "r.toml", "--out", "out"]
    environ = {**os.environ, "IOBENCH_STORE_DIR": str(tmp_path / "kept")}
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "EXECUTED").exists()
