"""Epochs told while a script trains: by a process beside it, that must never break it."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import types

import pytest
from offline_runs import offline_runs
from tracked_runs import make_run
from training import Training

import iobench
from iobench.launch.boot import iobench_boot
from iobench.tracking import live_process, live_start, live_tracking
from iobench.tracking.live_tracking import live


def told_to(path, orders, **order):
    """Return what the process beside answers to orders, run in this one."""
    answers = []
    first = {
        "run": str(path), "rank": 0, "name": "", "mlflow": None, "join": None, "wandb": None,
        "figures": True, **order,
    }  # fmt: skip
    teller = live_process.LiveTeller(first, answers.append)
    for final in orders:
        teller.tell(final=final)
    return answers


def test_epochs_are_answered_once_and_the_last_one_when_it_is_over(tmp_path):
    with iobench.record(tmp_path / "run") as recording:
        training = Training(recording)
        training.epoch(3)
        training.epoch(2, end=False)
        answers = told_to(recording.run.path, [False, False])
        assert [each["epoch"]["epoch"] for each in answers] == [0]
        assert answers[0]["epoch"]["metrics"]["iobench/epoch/batches"] == 3
        answers = told_to(recording.run.path, [False, True])
    assert [each["epoch"]["epoch"] for each in answers if "epoch" in each] == [0, 1]
    assert answers[-1]["totals"]["iobench/run/batches"] == 5


def test_a_run_without_a_batch_is_no_error_before_its_end(tmp_path):
    answers = told_to(tmp_path / "nothing", [False])
    assert answers == []
    assert "run.json" in told_to(tmp_path / "nothing", [True])[0]["failed"]


def test_orders_that_came_meanwhile_are_followed_once(monkeypatch):
    told = []
    teller = types.SimpleNamespace(
        tell=lambda *, final: told.append(final), answer=lambda what: told.append(what)
    )
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    orders = live_process.queue.SimpleQueue()
    for order in ({}, {"environment": {"MLFLOW_TRACKING_TOKEN": "new"}}, {}):
        orders.put(order)
    lines = io.StringIO('{}\n{"ended": true}\n')
    live_process._read(lines, orders)
    live_process._follow(teller, orders)
    assert told == [True, {"ended": True}]
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "new"
    orders.put({})
    orders.put(None)  # the training was killed: what it had is told, and that is it
    told.clear()
    live_process._follow(teller, orders)
    assert told == [False]


def test_a_training_is_told_offline_and_goes_on_whatever_mlflow_does(tmp_path, caplog, monkeypatch):
    """One process beside, for Weights & Biases offline and for a server that is not there."""
    pytest.importorskip("wandb", reason="needs wandb")
    pytest.importorskip("mlflow", reason="needs MLflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    address = "http://me:QQsecretQQ@127.0.0.1:1"
    with (
        caplog.at_level(logging.INFO, "iobench"),
        iobench.record(tmp_path / "run") as recording,
        live(recording, mlflow=address, wandb="radiation") as told,
    ):
        training = Training(recording)
        for _ in range(2):
            training.epoch(3)
            told.end_epoch()
    (found,) = offline_runs(tmp_path)
    rows = [row for row in found.history if "iobench/epoch/wall_s" in row]
    assert [row["iobench/epoch"] for row in rows] == [0, 1]
    assert found.summary["iobench/run/batches"] == 6
    assert any("wandb sync" in place for place in told.told)
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert 1 <= len(said) <= 2  # as it happens, and at the end
    assert f"iobench report {tmp_path / 'run'} --mlflow" in said[-1]
    assert "QQsecretQQ" not in caplog.text
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"QQsecretQQ" not in file.read_bytes()


def test_a_run_of_weights_and_biases_that_goes_on_is_joined(tmp_path, monkeypatch):
    class Active:
        def __init__(self):
            self.rows, self.summary = [], {}

        def log(self, metrics, **how):
            self.rows.append((metrics, how))

    active = Active()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=active))
    with iobench.record(tmp_path / "run") as recording, live(recording, wandb=True) as told:
        training = Training(recording)
        for _ in range(2):
            training.epoch()
            told.end_epoch()
    assert [metrics["iobench/epoch"] for metrics, _ in active.rows] == [0, 1]
    # In the row that its owner logs next: a row more would move the owner's steps.
    assert {tuple(how.items()) for _, how in active.rows} == {(("commit", False),)}
    assert active.summary["iobench/run/batches"] == 6


def refuse(*_: object, **__: object) -> None:
    raise OSError(12, "Cannot allocate memory")


def test_no_process_beside_is_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(live_tracking.subprocess, "Popen", refuse)
    with iobench.record(tmp_path / "run") as recording, live(recording, mlflow="http://h") as told:
        Training(recording).epoch()
        told.end_epoch()
        told.end_epoch()
    assert caplog.text.count("Cannot allocate memory") == 1
    assert "iobench report" in caplog.text


def test_no_thread_beside_is_one_warning(tmp_path, caplog, monkeypatch):
    def refuses(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(live_tracking.threading.Thread, "start", refuses)
    with iobench.record(tmp_path / "run") as recording, live(recording, mlflow="http://h") as told:
        told.end_epoch()
        told.end_epoch()
        assert told._process.poll() is not None
    assert caplog.text.count("can't start new thread") == 1


def test_a_process_beside_that_dies_is_one_warning(tmp_path, caplog, monkeypatch):
    started = live_tracking.subprocess.Popen

    def dies(command, **how):
        return started([command[0], "-c", "pass"], **how)

    monkeypatch.setattr(live_tracking.subprocess, "Popen", dies)
    with iobench.record(tmp_path / "run") as recording, live(recording, mlflow="http://h") as told:
        training = Training(recording)
        for _ in range(3):
            training.epoch()
            told.end_epoch()
    assert "has ended" in caplog.text
    assert len({each.getMessage() for each in caplog.records}) <= 2


@pytest.mark.parametrize("answer", ['{"ended": true}', '{"epoch": {}}'])
def test_a_process_beside_that_does_not_end_is_ended(tmp_path, monkeypatch, answer):
    """After its last answer, and where what it says is taken by nobody any more."""
    started = live_tracking.subprocess.Popen
    command = f"import signal; print({answer!r}, flush=True); signal.pause()"
    processes = []

    def stays(words, **how):
        processes.append(started([words[0], "-c", command], **how))
        return processes[-1]

    monkeypatch.setattr(live_tracking.subprocess, "Popen", stays)
    monkeypatch.setattr(live_tracking.threading, "excepthook", lambda _: None)
    with (
        iobench.record(tmp_path / "run") as recording,
        live(recording, mlflow="http://h", wait_s=0.2) as told,
    ):
        told.end_epoch()
    assert processes[0].poll() == -signal.SIGKILL


@pytest.mark.parametrize("how", [{}, {"mlflow": False}, {"recording": None, "mlflow": "http://h"}])
def test_where_there_is_nothing_to_tell_nothing_is_started(tmp_path, monkeypatch, how):
    monkeypatch.setattr(live_tracking.subprocess, "Popen", refuse)
    with iobench.record(tmp_path / "run") as recording:
        given = {"recording": recording, **how}
        if given["recording"] is None:
            recording.close()
        with live(**given) as told:
            told.end_epoch()
        assert told.told == []


def test_only_the_first_of_several_training_processes_tells(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        live_tracking.subprocess, "Popen", lambda *a, **k: started.append(a) or refuse()
    )
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with iobench.record(tmp_path / "run") as recording:
        assert recording.job.rank == 1
        with live(recording, mlflow="http://h") as told:
            told.end_epoch()
        assert not started
        with live(recording, mlflow="http://h", every_rank=True) as told:
            told.end_epoch()
        assert len(started) == 1


def test_the_process_beside_is_not_recorded(monkeypatch):
    monkeypatch.setenv("IOBENCH_RUN", "/run")
    monkeypatch.setenv("DARSHAN_ENABLE_NONMPI", "1")
    monkeypatch.setenv("DFTRACER_ENABLE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/x/iobench/launch/boot", "/mine"]))
    found = live_start.beside_environment()
    assert not [name for name in found if name.startswith(("IOBENCH_", "DARSHAN_", "DFTRACER_"))]
    assert found["PYTHONPATH"] == "/mine"


def test_modules_of_the_training_are_found_but_shadow_none(tmp_path, monkeypatch):
    """Neither those of its working folder, nor those of its script's, which is first for it."""
    for folder in ("cwd", "script"):
        (tmp_path / folder).mkdir()
        for name in ("queue", "json", "iobench", "numpy"):
            (tmp_path / folder / f"{name}.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "script" / "only_there.py").write_text("FOUND = 1")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "script"), *sys.path])
    command = live_start.beside_command()
    assert iobench_boot.OURS in command  # `iobench run` knows it by this word
    place = command.index("-c") + 1
    command[place] = f"{command[place]}; print(__import__('only_there').FOUND, sys.argv)"
    command[place] = command[place].replace("sys.exit(main())", "main()")
    done = subprocess.run(
        command, env=live_start.beside_environment(), input="", capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (
        "",
        "1 ['-c']\n",
    )  # print: main() keeps stdout for answers


def test_notes_that_cannot_be_read_are_none(tmp_path):
    from iobench.tracking.tracking_notes import TrackingNotes

    run = make_run(tmp_path / "run")
    for text in ("", "{", "[]", '{"version": 2, "told": {}}', '{"version": 1, "told": 3}'):
        (run / "tracking.json").write_text(text)
        assert TrackingNotes(run).find("http://h", "") is None
    TrackingNotes(run, rank=1).keep("http://me:secret@h", "rank-1", run_id="x")
    assert TrackingNotes(run).find("http://other@h", "rank-1") == {"run_id": "x"}
    kept = json.loads((run / "tracking-rank-1.json").read_text())
    assert kept["told"] == {"http://***@h": {"rank-1": {"run_id": "x"}}}
