"""Runs as MLPerf's logs, held to the real checker of MLPerf HPC's rules as far as they apply."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

import iobench
from iobench.analysis.run import Run
from iobench.cli import main
from iobench.suites.results import MEASURED, Result, write_result

TOLD = {
    "submission_org": "a centre", "submission_platform": "a machine",
    "submission_division": "open", "submission_status": "research",
}  # fmt: skip
EVALUATION = re.compile("'(?:eval_[a-z]+|block_start)'")
"""Names what a suite's profiles do not do: no rule of the open division fails but of these."""
RECIPE = """
[suite]
repeats = 1
drop = 0
[vary]
dataset = ["deepcam"]
[fixed]
tiny = true
epochs = 2
batch-size = 2
seed = 7
cache = "cold"
compute = "1ms"
energy = "off"
device = "none"
"""
mllog = pytest.importorskip("mlperf_logging", reason="it writes the lines, and checks them")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Return a suite of DeepCAM's stand-in."""
    pytest.importorskip("h5py", reason="DeepCAM's samples are HDF5 files")
    place = tmp_path_factory.mktemp("logged")
    (place / "logged.toml").write_text(f"{RECIPE}store-dir = '{place / 'stores'}'\n")
    assert main(["suite", str(place / "logged.toml"), "--out", str(place / "suite")]) == 0
    return place / "suite"


def log_of(suite, out, told):
    words = [word for key, value in told.items() for word in ("--tell", f"{key}={value}")]
    assert main(["suite", "mllog", str(suite), "--out", str(out), *words]) == 0
    (found,) = out.rglob("result_*.txt")
    return found


def lines_of(*log):
    lines = log_of(*log).read_text().splitlines()
    assert all(line.startswith(":::MLLOG ") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


@pytest.mark.long
def test_the_open_division_misses_evaluations_and_nothing_else(suite, tmp_path):
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "hpc"]
    command += ["--ruleset", "3.0.0", "--log_output", str(tmp_path / "said")]
    log = log_of(suite, tmp_path / "logs", TOLD)
    done = subprocess.run([*command, log], capture_output=True, text=True, timeout=60, check=False)
    said = re.compile(r"(?:WARNING -  )?(?:.*Required|.*CHECK|.*[fF]ailed)")
    missed = [line for line in done.stderr.splitlines() if said.match(line)]
    assert (done.returncode == 0) == (not missed), done.stderr
    assert [line for line in missed if not EVALUATION.search(line)] == []


def test_what_is_said_is_what_was_measured(suite, tmp_path):
    lines = lines_of(suite, tmp_path / "logs", TOLD)
    run = Run(next(suite.rglob("run.json")).parent).of_rank()
    by_key = {line["key"]: line for line in lines}
    signs = {"INTERVAL_START": -1, "INTERVAL_END": 1, "POINT_IN_TIME": 0}
    parts = [line for line in lines if line["key"].startswith("epoch_")]
    # Epochs are all of it; each end is a whole millisecond.
    took_ms = sum(signs[line["event_type"]] * line["time_ms"] for line in parts)
    assert abs(took_ms - run.exposure.whole.wall_ns / 1e6) <= len(parts)
    assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
    known = {
        "seed": 7, "global_batch_size": 2, "cache_clear": True, "submission_benchmark": "deepcam",
    }  # fmt: skip
    assert {key: by_key[key]["value"] for key in known} == known
    sources = {key: by_key[key]["metadata"]["source"] for key in ("submission_org", "seed")}
    assert sources == {"submission_org": "told", "seed": "measured"}
    assert by_key["seed"]["metadata"]["file"] == "iobench/suites/mllog.py"
    assert [line["key"] for line in parts] == ["epoch_start", "epoch_stop"] * 2
    n_steps = 2 * by_key["train_samples"]["value"] // by_key["global_batch_size"]["value"]
    assert by_key["tracked_stats"]["metadata"]["step"] == n_steps
    assert by_key["run_stop"]["metadata"]["status"] == "aborted"
    assert by_key["tracked_stats"]["value"]["step_s"] > 0


def test_what_a_script_does_not_tell_is_in_no_line(tmp_path):
    pytest.importorskip("torch", reason="a loader that records")
    loaders = pytest.importorskip("iobench.torch")
    cell = tmp_path / "suite" / "cells" / "000-mine"
    with iobench.record(cell / "round-0"):
        assert len(list(loaders.DataLoader(list(range(8)), batch_size=2))) == 4
    write_result(cell, Result("mine", "0", {"dataset": "mine"}, 0, MEASURED, "", run="round-0"))
    keys = [line["key"] for line in lines_of(tmp_path / "suite", tmp_path / "logs", {})]
    order = ["init_start", "init_stop", "run_start", "epoch_start", "epoch_stop", "run_stop"]
    assert [key for key in keys if key in order] == order
    # Of a script nobody knows the page cache before it, nor how many batches a step takes.
    assert not {"cache_clear", "global_batch_size", "seed", "eval_start"} & {*keys}


def test_a_cache_that_was_not_cleared_is_told_and_an_unknown_one_is_not(suite, tmp_path):
    folder = tmp_path / "suite"
    shutil.copytree(suite, folder)
    (facts,) = folder.rglob("run.json")
    for before, said in ((1.0, [False]), (0.0, [True]), (None, [])):
        told = json.loads(facts.read_text())
        told["cache"]["resident_fraction_before"] = before
        facts.write_text(json.dumps(told))
        lines = lines_of(folder, tmp_path / f"logs-{before}", TOLD)
        assert [line["value"] for line in lines if line["key"] == "cache_clear"] == said


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("submission_org", "expected KEY=VALUE"),
        ("seed=8", "is measured by iobench; leave it out"),
        ("a b=1", "expected KEY=VALUE"),
        ("", "it has none"),  # a folder without runs
    ],
)
def test_what_is_refused(suite, tmp_path, word, why, capsys):
    words = ["--tell", word] if word else []
    folder = suite if word else tmp_path
    assert main(["suite", "mllog", str(folder), "--out", str(tmp_path / "logs"), *words]) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
