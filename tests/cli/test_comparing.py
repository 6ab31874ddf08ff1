"""``iobench compare``, its quarterly table and ``simulate``, on runs written span by span."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.suites.recipe import read_recipe
from iobench.suites.results import MEASURED, Result, SuiteFolder, write_result
from tests.support.sketched_runs import SketchedRun

US, MS = 1_000, 1_000_000
MACHINE = {"host": "one", "cpus": 2, "cpu_model": "x", "memory_nbytes": 10**9}


@pytest.fixture
def document(capsys):
    """Run a command; return its JSON."""

    def run(command, *arguments):
        assert main([command, *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def figures(found):
    return {each["figure"]: each for each in found["comparisons"][0]["figures"]}


def serial_run(
    path, *, n_steps=200, read_us=400, step_us=600, seed=0, n_rounds=1, offset_ns=0, weather=None,
    ended=True, **changed,
):  # fmt: skip
    """Return a serial run whose reads vary by a tenth; rounds start every second.

    Where there are several typical times of reads there is a rank for each.
    """
    config = {
        "dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1,
        "sample_nbytes": 8, "n_samples": n_steps, "machine": MACHINE,
        "compute": {"forward_ns": 0, "backward_ns": step_us * US},
    }  # fmt: skip
    run = SketchedRun(config | changed)
    run.process = {"anchors": (Anchor(offset_ns, offset_ns),), "closed": ended}
    nbytes, per_round = 8 * run.config["batch_size"], n_steps // n_rounds
    for rank, typical_us in enumerate([read_us] if isinstance(read_us, int) else read_us):
        lane, rng = ("consumer", -1, rank), np.random.default_rng(seed)
        run.processes[lane] = {"rank": rank}
        for turn in range(n_rounds):
            start = now = offset_ns + turn * 10**9
            slower = 1.0 if weather is None else weather[turn]
            for batch in range(turn * per_round, (turn + 1) * per_round):
                varied = 1 + 0.1 * rng.standard_normal()
                read_ns = max(int(typical_us * US * slower * varied), 1)
                end = run.work(lane, now, {Kind.READ: read_ns}, batch=batch, epoch=0)
                run.wait(batch, now, end, "consumer", lane=lane, nbytes=nbytes, epoch=0)
                now = end + step_us * US
            run.shutdown(now, now, lane)
            run.round(start, now, turn, lane)
    run.write(path)
    return path


def test_ratios_have_intervals_and_swap(tmp_path, document):
    a, b = (serial_run(tmp_path / f"{us}", read_us=us, seed=us) for us in (400, 480))
    found = document("compare", a, b)
    there, back = figures(found), figures(document("compare", b, a))
    assert found["comparisons"][0]["interval_of"] == "blocks"
    wait = there["wait_ns"]
    assert 1.15 < wait["low"] < wait["ratio"] < wait["high"] < 1.25
    assert wait["differs"] is True
    assert wait["values"][1] / wait["values"][0] == pytest.approx(wait["ratio"])
    for same in ("exposed:read", "busy:read"):
        assert there[same]["ratio"] == pytest.approx(wait["ratio"])
    assert there["samples_per_s"]["ratio"] == pytest.approx(1 / there["sample_ns"]["ratio"])
    assert there["compute_ns"]["ratio"] == 1
    for key, figure in there.items():
        if figure["ratio"] is not None:
            assert back[key]["ratio"] == pytest.approx(1 / figure["ratio"])
            assert back[key]["low"] == pytest.approx(1 / figure["high"])
    for figure in figures(document("compare", a, a)).values():
        assert figure["ratio"] is None or figure["differs"] is False


def test_turns_are_paired(tmp_path, document):
    both = tmp_path / "both"
    common = {"n_rounds": 8, "weather": [1, 3, 1, 5, 1, 1, 2, 1], "step_us": 100}
    other = {"read_us": 440, "seed": 3} | common
    serial_run(both / "z", position=0, **common)
    serial_run(both / "a", position=1, offset_ns=5 * 10**8, **other)
    found = document("compare", both)
    assert [Path(run["run"]).name for run in found["runs"]] == ["z", "a"]
    assert found["comparisons"][0]["interval_of"] == "rounds"
    assert found["comparisons"][0]["n_blocks"] == [8, 8]
    wait = figures(found)["wait_ns"]
    assert 1.05 < wait["low"] < wait["high"] < 1.15
    # The same times at another hour are no turns, and then the weather hides it.
    later = serial_run(tmp_path / "later", offset_ns=10**12, **other)
    apart = document("compare", both / "z", later)
    assert apart["comparisons"][0]["interval_of"] == "blocks"
    assert figures(apart)["wait_ns"]["differs"] is False


@pytest.mark.parametrize(
    ("changed", "named", "caution"),
    [
        ({"dataset": "another"}, ["dataset"], ""),
        ({"stand_in": True, "tiny": True}, ["stand_in", "tiny"], ""),
        ({"sample_nbytes": 4}, ["sample_nbytes"], ""),
        ({"batch_size": 2, "n_samples": 400}, ["batch_size", "n_samples"], ""),
        ({"step_us": 900}, ["step_ns"], ""),
        ({"ended": False}, [], "killed"),
    ],
)
def test_what_is_not_the_same_is_named(tmp_path, document, changed, named, caution):
    found = document("compare", serial_run(tmp_path / "a"), serial_run(tmp_path / "b", **changed))
    assert [*found["configuration"]] == named
    assert caution in " ".join(found["cautions"])
    halved = {"batch_size", "sample_nbytes"} & changed.keys()
    ratio = figures(found)["busy:read"]["ratio"]
    assert ratio == pytest.approx(0.5 if halved else 1, abs=0.03)


def test_that_a_script_ends_its_workers_is_no_caution(tmp_path, document):
    for name, closed in (("a", False), ("b", True)):
        run = SketchedRun({"kind": "script", "command": "python train.py"})
        run.processes[("worker", 0)] = {"closed": closed}
        for batch, now in enumerate(range(0, 100 * US, 10 * US)):
            run.add(("worker", 0), Kind.READ, now, now + 4 * US, batch=batch)
            run.wait(batch, now, now + 5 * US, "worker-0")
        run.write(tmp_path / name)
    cautions = document("compare", tmp_path / "a", tmp_path / "b")["cautions"]
    assert not [each for each in cautions if "killed" in each]


def test_ranks_are_one_run(tmp_path, document):
    one = serial_run(tmp_path / "one")
    two = serial_run(tmp_path / "two", world_size=2, read_us=(400, 600))
    found = document("compare", one, two)
    assert [run["ranks"] for run in found["runs"]] == [1, 2]
    several = figures(found)
    # Steps of 1.0 and of 1.2 ms, at once: of a step 1.1 ms, and together almost twice as fast.
    assert several["step_ns"]["values"][1] == pytest.approx(1.1e6, rel=0.02)
    assert several["wait_ns"]["values"][1] == pytest.approx(5e5, rel=0.02)
    assert several["samples_per_s"]["ratio"] == pytest.approx(2 / 1.1, rel=0.02)


# -- the quarterly table ------------------------------------------------------------------

RECIPE = """
[suite]
repeats = 3
[fixed]
dataset = "own"
[vary]
format = ["zarr", "source"]
workers = [0, 2]
"""


def suite_of(path, day, step_s, **figures):
    """Write a suite's results; of three runs the lowest and highest are dropped."""
    recipe = path.with_suffix(".toml")
    recipe.write_text(RECIPE)
    folder = SuiteFolder(path, read_recipe(recipe))
    folder.create()
    for job in folder.open_jobs():
        place = folder.place(job.cell)
        place.mkdir(parents=True, exist_ok=True)
        took_s = (step_s / 2, step_s, 9.0)[job.round]
        write_result(place, Result(
            path.name, folder.recipe.digest, job.cell.values, job.round, MEASURED,
            f"2026-11-0{day}T00:00:00+00:00", machine={"cores": 2, "cpu_model": "a CPU"},
            figures={"step_s": took_s, "wait_s": took_s / 4, **figures},
            options=job.cell.masked_options,
        ))  # fmt: skip
    return path


def test_the_newest_of_each_cell_stands_beside_what_was_published(tmp_path, document, capsys):
    old = suite_of(tmp_path / "old", 1, 0.5)
    new = suite_of(tmp_path / "new", 2, 0.25, published_step_s=2.0, published_wait_s=0.5,
                   **{"metric:loss": 3.0, "energy_j": 7.0})  # fmt: skip
    for file in (new / "cells").glob("*zarr-2/*"):
        file.unlink()
    rows = document("compare", new, old, "--quarterly")["rows"]
    # The original files first; what the newer suite has not is of the older.
    assert [(row["format"], row["others"], row["suite"]) for row in rows] == [
        ("source", "workers 0", str(new)), ("source", "workers 2", str(new)),
        ("zarr", "workers 0", str(new)), ("zarr", "workers 2", str(old)), ("", "", None),
    ]  # fmt: skip
    assert [row["means_s"]["batch"] for row in rows] == [0.25, 0.25, 0.25, 0.5, 2.0]
    assert [row["exposed_fraction"] for row in rows] == [0.25] * 5
    assert rows[0]["figures"] == {"loss": 3.0, "energy_j": 7.0}
    assert (rows[0]["n_runs"], rows[4]["means_s"]) == (3, {"batch": 2.0, "I/O": 0.5})
    assert main(["compare", str(new), str(old), "--quarterly"]) == 0
    text = capsys.readouterr().out
    assert "loss" in text
    assert text.index("native source workers 2") < text.index("as published")
    (tmp_path / "recipe.json").write_text("{")
    assert main(["compare", str(tmp_path), "--quarterly"]) == 1
    assert "is damaged" in capsys.readouterr().err


# -- simulated ranks ----------------------------------------------------------------------


def loading_run(path, ranks=1):
    """Write a run whose training loop loads every batch itself: 15 ms before a step of 25 ms."""
    config = {"dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 2}
    run = SketchedRun({**config, "framework": "workers", "n_samples": 1000})
    for rank in range(ranks):
        lane, now = ("consumer", -1, rank), 0
        run.processes[lane] = {"rank": rank}
        for batch in range(40):
            of = {"nbytes": 4_000_000, "epoch": 0}
            stages = {Kind.READ: 10 * MS, Kind.DECODE: 5 * MS}
            held = run.work(lane, now, stages, batch=batch, sample=0, **of)
            run.wait(batch, now, held, "consumer", lane=lane, **of)
            now = held + 25 * MS
        # Reads of nothing that was trained on: a module, and what a killed run had asked for.
        for batch in (-1, 40):
            run.add(lane, Kind.READ, now, now, batch=batch, epoch=0 if batch >= 0 else -1)
        run.shutdown(now, now, lane)
        run.round(0, now, lane=lane)
    run.write(path)
    return path


def test_a_run_is_simulated_on_more_ranks(tmp_path, document, monkeypatch):
    monkeypatch.setattr("iobench.findings.scaling.MOST_STEPS", 40)  # all batches are the same
    run = loading_run(tmp_path / "run")
    found = document("simulate", run, "--ranks", "2,20", "--storage-iops", "0.5k/s")
    assert found["schema_version"] == 2
    assert found["saturation"] == {"ranks": 10, "by": "reads"}
    assert (found["measured"]["rule"], found["measured"]["ahead"]) == ("serial", 0)
    two, many = found["points"]
    assert two["step_ns"] == 40 * MS
    assert two["exposed_fraction"] == pytest.approx(15 / 40)
    assert two["samples_per_s"] == pytest.approx(4 / 0.04)
    assert many["step_ns"] == (80 + 5 + 25) * MS
    found = document("simulate", run, "--ranks", "9", "--storage-bandwidth", "100MB/s")
    assert found["points"][0]["efficiency"] == pytest.approx(70 / 390)
    job = loading_run(tmp_path / "job", ranks=3)
    assert document("simulate", job, "--ranks", "24")["measured"]["ranks"] == 3
