"""Suites from the command line: run, gone on with, shared, and what is said of them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

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
from iobench.suites.suite_run import run_limited

pytestmark = pytest.mark.timeout(300)
ONCE = ("repeats = 3", "repeats = 1\ndrop = 0")


@pytest.fixture
def suite(capsys):
    """Run a suite; return what it says in JSON."""

    def run(*words, code=0):
        assert main(["suite", "--allow-code", *map(str, words), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys):
    """Run a suite that cannot be; return the line that it says."""

    def run(*words, allowed="--allow-code"):
        capsys.readouterr()
        assert main(["suite", *filter(None, [allowed]), *map(str, words)]) == 1
        told = capsys.readouterr()
        assert told.out == ""
        [line] = told.err.strip().splitlines()
        return line

    return run


def results_of(out):
    return [*map(read_result, find_results(out))]


@pytest.mark.long
def test_a_suite_is_measured_in_rounds_and_its_figures_are_those_of_reports(
    write_recipe, tmp_path, suite, refused, capsys
):
    recipe, out = write_recipe(), tmp_path / "out"
    told = suite(recipe, "--out", out)
    assert [row["status"] for row in told["cells"]] == [MEASURED] * 2
    assert told["stand_in"] is False
    by_end = sorted(find_results(out), key=lambda path: path.stat().st_mtime_ns)
    order = [(each.round, each.cell["workers"]) for each in map(read_result, by_end)]
    assert [round for round, _ in order] == [0, 0, 1, 1, 2, 2]
    assert [{cell for _, cell in order[at : at + 2]} for at in (0, 2, 4)] == [{"0", "1"}] * 3
    assert order[0][1] != order[2][1], "each cell has each place in turn"
    results = results_of(out)
    for path in list(find_results(out))[:2]:
        result = read_result(path)
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
    mine = [each for each in results if each.cell["workers"] == row["cell"]["workers"]]
    steps = sorted(each.figures["step_s"] for each in mine)
    assert row["figures"]["step_s"]["mean"]["value"] == steps[1]
    assert len({each.samples_digest for each in results} - {None}) == 1
    # All is measured: nothing is run, and the same is said.
    assert main(["suite", "--allow-code", str(recipe), "--out", str(out)]) == 0
    text = capsys.readouterr()
    assert "Each figure drops its own 1 lowest and highest of 3 runs" in text.out
    assert "round" not in text.err
    assert results_of(out) == results
    # Another recipe has no place here.
    line = refused(recipe, "--out", out, "--set", "repeats=5")
    assert "holds suite tiny of another recipe" in line
    # Whatever changed in the middle is named in its row.
    changed = next(find_results(out))
    document = json.loads(changed.read_text())
    document["machine"]["system"] = "Linux 9"
    document["versions"]["numpy"] = "9.9"
    changed.write_text(json.dumps(document))
    doubts = [row["doubts"] for row in suite(recipe, "--out", out)["cells"]]
    assert doubts == [["system", "version of numpy"], []]
    changed.write_text("{")
    assert "remove it to measure again" in refused(recipe, "--out", out)


@pytest.mark.long
def test_a_killed_suite_goes_on_where_it_was(write_recipe, tmp_path):
    recipe, out = write_recipe(), tmp_path / "out"
    moments = random.Random(int(os.environ.get("PYTEST_SEED", "5")))
    words = [sys.executable, "-m", "iobench", "suite", "--allow-code", str(recipe)]
    before = {}
    for number in (signal.SIGKILL, signal.SIGTERM, None):
        process = subprocess.Popen(
            [*words, "--out", str(out)], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            _, told = process.communicate(timeout=moments.uniform(3, 12) if number else 200)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            if number == signal.SIGTERM:
                assert process.returncode == 75
                assert "run it again: iobench suite" in told
        now = {path: path.read_bytes() for path in find_results(out)} if out.exists() else {}
        assert now.items() >= before.items(), "what was finished stays as it was"
        before = now
    assert process.returncode == 0, told
    found = [(each.round, each.cell["workers"]) for each in results_of(out)]
    assert sorted(found) == [(round, workers) for round in range(3) for workers in "01"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "status", "code", "reason"),
    [
        ("yes", "failed", 1, "no such sample today"),
        # A full disk, and a process that somebody else ends: the suite was not interrupted.
        ("full", "failed", 1, "No space left"),
        ("ended", "failed", 1, "interrupted"),
        ("extra", "not available", 0, "pip install rain"),
    ],
)
def test_cells_that_fail_are_rows_until_they_are_measured_again(
    write_recipe, tmp_path, suite, monkeypatch, broken, status, code, reason
):
    recipe, out = write_recipe(("[0, 1]", "[0]"), ONCE), tmp_path / "out"
    monkeypatch.setenv("BROKEN", broken)
    (row,) = suite(recipe, "--out", out, code=code)["cells"]
    assert (row["status"], row["figures"]) == (status, {})
    assert reason in row["reason"]
    monkeypatch.delenv("BROKEN")
    assert suite(recipe, "--out", out, code=code)["cells"][0]["status"] == status
    for path in find_results(out):
        path.unlink()
    assert suite(recipe, "--out", out)["cells"][0]["status"] == MEASURED


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
    write_recipe, tmp_path, refused, before, after, told
):
    line = refused(write_recipe((before, after)), "--out", tmp_path / "out")
    assert re.search(told, line), line
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_and_a_long_key_are_refused_and_a_dry_run_runs_nothing(
    write_recipe, tmp_path, suite, refused
):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    assert "holds something else" in refused(write_recipe(), "--out", tmp_path / "other")
    assert "out/x: " in refused(write_recipe(), "--out", "tiny.toml/out/x")
    for n in (60_000, 200_000):
        Path("long.toml").write_text(f"[fixed]\n{'a' * n} = 1\n")
        assert len(refused("long.toml", "--dry-run")) < 500
    told = suite(write_recipe(), "--dry-run", "--set", "workers=0,1,2")
    assert [each["workers"] for each in told["cells"]] == ["0", "1", "2"]
    assert told["commands"][1][:3] == ["iobench", "profile", "tiny_samples:make"]
    assert (told["n_left"], told["most_s"]) == (9, 9 * 60)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_lossy_store_shows_its_price(write_recipe, tmp_path, suite):
    """Equal samples have equal digests, wherever they are read; rounded ones not."""
    recipe = write_recipe(
        ("workers = [0, 1]", 'format = ["source", "zarr", "zarr:dtype=float16"]'), ONCE,
        ('"step_s", "samples_per_s"', '"run_s", "max_relative_error"'), ('"60s"', '"5min"'),
    )  # fmt: skip
    told = suite(recipe, "--out", tmp_path / "out")
    rows = {row["cell"]["format"]: row["figures"] for row in told["cells"]}
    digests = {each.cell["format"]: each.samples_digest for each in results_of(tmp_path / "out")}
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


@pytest.mark.long
def test_a_script_is_measured_with_its_own_figures(write_recipe, tmp_path, suite, refused, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    recipe, out = write_recipe(
        ("batches = 4\n", f"command = '{sys.executable} train.py {{format}}'\n"), ONCE,
        ("batch-size = 2\n", ""), ('compute = "none"\n', ""),
        ("workers = [0, 1]", 'format = ["source", "zarr"]'),
        ('"step_s", "samples_per_s"', '"samples_per_s", "metric:loss"'),
    ), tmp_path / "out"  # fmt: skip
    rows = suite(recipe, "--out", out)["cells"]
    figures = {row["cell"]["format"]: row["figures"] for row in rows}
    assert [each["metric:loss"]["mean"]["value"] for each in figures.values()] == [1.5, 0.5]
    assert figures["zarr"]["samples_per_s"]["mean"]["value"] > 0
    assert main(["suite", "--allow-code", str(recipe), "--out", str(out)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[:3] == ["cell", "samples/s", "loss"] for line in lines)
    line = refused(recipe, "--out", "x", "--set", "command=python 'train.py")
    assert "No closing quotation, expected a command" in line


def test_a_finished_suite_shows_other_figures_of_its_runs(write_recipe, suite, refused):
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
    told = suite(recipe, "--out", out, "--set", "metrics=wait_s")
    assert (told["metrics"], told["recipe_digest"]) == (["wait_s"], folder.recipe.digest)
    line = refused(recipe, "--out", out, "--set", "metrics=wait_s", "--set", "batches=5")
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
    tmp_path, monkeypatch, refused, dataset, option
):
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(
        f'[suite]\nrepeats = 1\ndrop = 0\n[fixed]\ndataset = "{dataset}"\nbatches = 5\n{option}'
        '[vary]\nformat = ["source"]\n'
    )
    refused("r.toml", "--out", "out", allowed="")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.toml"]


@pytest.mark.long
def test_children_import_nothing_of_the_folder(tmp_path):
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


# -- one run of it ------------------------------------------------------------------------


def test_how_a_command_ended_is_said_with_what_it_wrote_last(tmp_path):
    log, left = tmp_path / "log", tmp_path / "pid"
    code = "import sys; print('first'); sys.stdout.flush(); sys.exit('disk is full')"
    words = [sys.executable, "-S", "-c", code]
    assert run_limited(words, log, 60).how == "ended with 1: disk is full"
    assert run_limited(["sh", "-c", "kill -9 $$"], log, 60).how == "killed by SIGKILL"
    assert run_limited(["sleep", "60"], log, 0.05).how == "took longer than its limit"
    named = run_limited(["sh", "-c", "echo $NAME"], log, 60, {"NAME": "given"})
    assert (named.code, named.lines) == (0, ("given",))
    run_limited(["sh", "-c", f"sleep 60 & echo $! > {left}"], log, 60)
    assert _is_gone(int(left.read_text()))  # what it leaves behind is ended


@pytest.mark.timeout(30)
def test_an_interrupt_ends_the_whole_group(tmp_path):
    left, written = tmp_path / "pid", tmp_path / "written"
    os.mkfifo(written)

    def interrupt_when_started():
        written.read_text()
        os.kill(os.getpid(), signal.SIGINT)

    teller = threading.Thread(target=interrupt_when_started)
    teller.start()
    command = f"sleep 60 & echo $! > {left}; echo > {written}; wait"
    with pytest.raises(KeyboardInterrupt):
        run_limited(["sh", "-c", command], tmp_path / "log", 60)
    teller.join()
    assert _is_gone(int(left.read_text()))


def _is_gone(pid):
    """Return whether a process has ended; who inherits it may not have noticed yet."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        threading.Event().wait(0.005)
    return False
