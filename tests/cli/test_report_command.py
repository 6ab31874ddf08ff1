"""``iobench report`` of folders of runs and with logs of Darshan; ``advise``, and its trials."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main
from iobench.cli.profile_command import profile_config
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.recording.this_process import host_name
from iobench.runs.reading import holds_several
from tests.support.made_logs import SEGMENT, MadeLog
from tests.support.sketched_runs import CONSUMER, SketchedRun

US, MS, DAY_NS = 1_000, 1_000_000, 86_400 * 10**9
WALL_NS = 1_795_000_000 * 10**9
NBYTES = 500_000
COMMAND = "iobench profile own.nc --format source --workers 0 --compute=5ms --json --out runs/1"
CONFIG = {
    "dataset": "own", "format": "source", "framework": "native", "workers": 0, "prefetch": 0,
    "batch_size": 1, "n_samples_all": 1000, "sample_nbytes": NBYTES,
    "machine": {"cpus": 2, "memory_nbytes": 8 << 30}, "command": COMMAND,
    "cache": {"asked": "as-is", "resident_fraction_before": 1.0},
}  # fmt: skip


def recorded(path, step_ms=7, n_batches=60, process=None, **more):
    """Keep a run of samples, a file each, that the training loop reads and decodes by itself."""
    run, clock = SketchedRun(CONFIG, **more), 0
    run.process = process or {}
    for batch in range(n_batches):
        of = {"nbytes": NBYTES, "batch": batch, "epoch": 0, "detail": f"/data/{batch}.bin"}
        decoded = run.work(CONSUMER, clock, {Kind.READ: 4 * MS, Kind.DECODE: 2 * MS}, **of)
        run.wait(batch, clock, decoded, "consumer", nbytes=NBYTES)
        clock = decoded + step_ms * MS
    run.shutdown(clock, clock + 1)
    run.round(0, clock + 1)
    run.write(path)
    return path


# -- logs of Darshan ----------------------------------------------------------------------


def test_named_logs_are_laid_beside_the_stages(tmp_path, iobench_here):
    """A log of it: its marker, and one call of 3 ms in each read."""
    pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")
    here = {"pid": os.getpid(), "host": host_name(), "anchors": (Anchor(0, WALL_NS),)}
    run = recorded(tmp_path / "run", n_batches=20, process=here)
    names = [f"/data/{batch}.bin".encode() for batch in range(20)]
    log = MadeLog(
        [*names, b"/runs/iobench-clock-marker"], start_ns=WALL_NS, host=host_name().encode()
    )
    for batch in range(20):
        one = np.zeros(1, SEGMENT)
        one["length"], one["start"] = NBYTES, (batch * 13 * MS + 500 * US) / 1e9
        one["end"] = one["start"] + 0.003
        log.count(batch, OPENS=1, READS=1, BYTES_READ=NBYTES)
        log.trace(batch, one)
    marks = np.zeros(4, SEGMENT)
    marks["offset"] = np.arange(4) * 10 * US
    marks["start"] = (marks["offset"] + 4 * US) / 1e9
    marks["end"] = (marks["offset"] + 6 * US) / 1e9
    log.trace(20, marks)
    path = log.write(tmp_path / f"me_python_id{os.getpid()}-{os.getpid()}_11-20-1-1_1.darshan")
    done = iobench_here("report", run, "--darshan", path, "--json")
    storage = json.loads(done.stdout)["runs"][0]["storage"]
    read = storage["in_stages"]["read"]
    assert (read["busy_ns"], read["storage_ns"]) == (80 * MS, 60 * MS)
    whole = storage["bytes"][0]
    assert whole["requested_nbytes"] == whole["darshan_nbytes"] == 20 * NBYTES
    assert "Storage" in iobench_here("report", run, "--full", "--darshan", path).stdout


# -- folders of runs ----------------------------------------------------------------------


def made(path, day=0, **config):
    anchors = (Anchor(0, 1_700_000_000 * 10**9 + day * DAY_NS),)
    return recorded(path, n_batches=3, process={"anchors": anchors}, **config)


def test_runs_of_a_folder_are_listed_newest_first_and_the_formats_of_one_profile_are_one(
    tmp_path, iobench_here
):
    folder = tmp_path / "runs"
    made(folder / "old", 1)
    made(folder / "train-1", 3, kind="script", command="python train.py --lr 1")
    for place, name in enumerate(("source", "numpy")):
        made(folder / "both" / name, 2, position=place, turns="x", format=name)
    (folder / "notes").mkdir()
    _, table, _ = iobench_here("report", folder).stdout.split("\n\n")
    words = [line.split()[:2] for line in table.splitlines()]
    assert words == [["train-1", "2023-11-17"], ["both", "2023-11-16"], ["old", "2023-11-15"]]
    listed = json.loads(iobench_here("report", folder, "--json").stdout)["listed"]
    names = [str(folder / name) for name in ("train-1", "both", "old")]
    assert [each["path"] for each in listed] == names
    for line in ("report --html page.html", "compare", "advise", "simulate",
                 "check --max-exposed 5%"):  # fmt: skip
        command, *more = line.split()
        done = iobench_here(command, folder, *more)
        assert done.returncode == 1
        assert f"iobench report {folder}" in done.stderr


@pytest.mark.parametrize(
    ("configs", "are_one"),
    [
        ([{"turns": "a"}, {"turns": "a"}], True),
        ([{"turns": "a"}, {"turns": "b"}], False),
        ([{"turns": None}, {"turns": None}], False),
        ([{"turns": "a"}, {"turns": "a"}, {"turns": None}], False),
        ([{"turns": None}], True),
        # Made before there was such a key: places within one command.
        ([{"position": 0}, {"position": 1}], True),
        ([{"position": 0}, {"position": 0}], False),
        ([{"position": 0}, {"position": 1, "command": "another"}], False),
        ([{"kind": "script"}, {"kind": "script"}], False),
    ],
)
def test_which_runs_took_turns_is_in_their_run_json(tmp_path, configs, are_one):
    for number, config in enumerate(configs):
        made(tmp_path / str(number), **config)
    assert holds_several(tmp_path) is not are_one


# -- advice -------------------------------------------------------------------------------


def test_advice_has_figures_and_the_commands_parse(tmp_path, iobench_here):
    document = json.loads(iobench_here("advise", recorded(tmp_path / "run"), "--json").stdout)
    assert document["outcome"] == "advice"
    assert document["replay_error_fraction"] == pytest.approx(0.0, abs=1e-6)
    best = document["changes"][0]
    assert best["settings"] == {"workers": 1}
    # Six of thirteen ms hide behind a step of seven.
    assert best["saved_fraction"] == pytest.approx(6 / 13, abs=0.01)
    assert best["saved_s"] == pytest.approx(6.0, abs=0.1)
    assert best["cost"]["spent_s"] == 0
    (store,) = (each for each in document["to_measure"] if "format" in each["settings"])
    assert store["break_even"] == {"epochs": None, "never": False, "staging_to_epoch": None}
    for change in (*document["changes"], *document["to_measure"]):
        for command in change["commands"]:
            if command.startswith("iobench profile"):
                profile_config(shlex.split(command)[2:])


def test_a_script_is_told_lines_of_code_and_why_it_is_not_tried(tmp_path, iobench_here):
    script = {"kind": "script", "command": "python train.py", "framework": "torch"}
    done = iobench_here("advise", recorded(tmp_path / "run", **script), "--try", "1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "num_workers=1" in document["changes"][0]["commands"][0]
    assert document["not_tried"].startswith("Nothing tried: the loader belongs to the script;")


def test_a_profile_is_tried_with_the_files_batches_and_workers_that_are_recorded(
    tmp_path, monkeypatch, capsys
):
    tried = []
    monkeypatch.setattr(
        "iobench.trials.configurations.try_changes",
        lambda config, *_, **__: tried.append(config) or [],
    )
    facts = {"sources": ["own.nc"], "batch_size": 4, "asked": {"workers": 0}}
    command = "iobench profile gone.nc --format source --workers 3 --batch-size 9 --cache warm"
    run = recorded(tmp_path / "run", **facts, command=command)
    assert main(["advise", str(run), "--try", "1"]) == 0
    masked = recorded(tmp_path / "masked", **facts, command="iobench profile gone.nc --name ***")
    assert main(["advise", str(masked), "--try", "1"]) == 1
    assert "in place of the run" in capsys.readouterr().err
    assert [each.targets for each in tried] == [("own.nc",)]
    assert {(each.batch_size, each.workers, each.cache) for each in tried} == {(4, 0, "warm")}


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_dataset_is_profiled_first_and_the_best_change_tried(iobench, store_dir):
    pytest.importorskip("eccodes", reason="reads GRIB: pip install 'iobench[grib]'")
    done = iobench(
        "advise", "maelstrom-ens10", "--tiny", "--store-dir", store_dir, "--json",
        "--batches", "12", "--compute", "2ms", "--workers", "0", "--try", "1", "--rounds", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["baseline"]["format"] == "source"
    assert document["changes"] == []  # a dozen batches prove nothing
    (measured,) = (each for each in document["to_measure"] if each["evidence"] == "measured")
    assert measured["low_fraction"] is None
    assert measured["settings"]["format"] == "tfrecord"
    (tried,) = document["tried"]
    assert tried["settings"] in [each["settings"] for each in document["to_measure"]]
    assert tried["rounds"] == 1
    assert (Path(document["run"]).name, document["not_tried"]) == ("maelstrom-ens10-1", None)
