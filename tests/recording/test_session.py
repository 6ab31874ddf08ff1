"""Recordings of scripts: what loops ask loaders for, who records, and what a run says of it."""

import multiprocessing
import os
import sys
import threading

import pytest

import iobench
from iobench.analysis.run import Run
from iobench.errors import OptionError
from iobench.recording.activation import active_recorder
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.facts import read_process_facts
from iobench.recording.job import JobRank, command_line, find_job
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.session import Recording, current_recording, loop_recording
from iobench.testing import FakeClock


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("iobench.recording.session._refused", False)


def recording(path, *, clock=None):
    return Recording(path, detail="auto", clock=clock or FakeClock())


def spans_of(path):
    profile = iobench.open_profile(path)
    names = ["kind", "label", "batch", "start_ns", "end_ns", "sample", "nbytes"]
    rows = profile.spans[names].tolist()
    return [(Kind(kind), profile.strings[label], *rest) for kind, label, *rest in rows]


def waits_of(path):
    return [span for span in spans_of(path) if span[0] is Kind.WAIT]


def rounds_of(path):
    return [span for span in spans_of(path) if span[1] == "round"]


def facts_of(path):
    return read_process_facts(path / "processes")


def one_pass(session, clock, *, n_batches, epoch=0, loader=None):
    facts = loader or session.add_loader("torch", "a.Loader", "Samples", workers=0)
    log = DeliveryLog(session, facts, epoch=epoch)
    log.ask()
    clock.advance(5)
    log.started()
    for _ in range(n_batches):
        batch = session.next_batch()
        clock.advance(1)
        log.ask(batch)
        clock.advance(10)
        log.deliver(batch, maker="consumer")
        clock.advance(20)
    log.ask()
    clock.advance(3)
    log.end()
    return log


# -- what a loop asks for


def test_waits_and_the_rounds_around_them_are_recorded(tmp_path):
    clock = FakeClock(1000)
    with recording(tmp_path / "run", clock=clock) as session:
        one_pass(session, clock, n_batches=2)
        one_pass(session, clock, n_batches=1)
    waits = [(label, batch, end - start, number)
             for _, label, batch, start, end, number, _ in waits_of(tmp_path / "run")]  # fmt: skip
    assert waits == [
        ("startup", -1, 5, 0), ("", 0, 10, 0), ("", 1, 10, 0), ("shutdown", -1, 3, 0),
        ("startup", -1, 5, 1), ("", 2, 10, 1), ("shutdown", -1, 3, 1),
    ]  # fmt: skip
    first, _ = rounds_of(tmp_path / "run")
    assert first[3:5] == (1000, 1000 + 5 + 2 * 31 + 3)
    (facts,) = facts_of(tmp_path / "run")
    assert [(each.number, each.framework) for each in facts.loaders] == [(0, "torch"), (1, "torch")]
    assert (facts.ended, facts.rank, facts.pid) == ("closed", 0, os.getpid())


@pytest.mark.parametrize("set_by_ns", [-(10**18), 10**18])
def test_a_wall_clock_that_is_set_meanwhile_moves_no_span(tmp_path, set_by_ns):
    runs, anchors = [], []
    for name, by_ns in (("still", 0), ("set", set_by_ns)):
        clock = FakeClock(1000, wall_offset_ns=2 * 10**18)
        with recording(tmp_path / name, clock=clock) as session:
            one_pass(session, clock, n_batches=2)
            clock._wall_offset_ns += by_ns
            one_pass(session, clock, n_batches=3)
        profile = iobench.open_profile(tmp_path / name)
        runs.append((spans_of(tmp_path / name), Run(profile).of_rank().exposure.whole))
        (process,) = profile.processes
        anchors.append([each.wall_ns - each.monotonic_ns for each in process.anchors])
    assert runs[0] == runs[1]
    assert anchors == [[2 * 10**18] * 2, [2 * 10**18, 2 * 10**18 + set_by_ns]]


def test_a_loader_inside_a_loader_is_work_of_the_outer_one_and_left_once(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", clock=clock) as session:
        outer = DeliveryLog(session, session.add_loader("torch", "a", "outer"))
        outer.ask()
        one_pass(session, clock, n_batches=3)
        outer.deliver(session.next_batch())
        outer.leave()
        outer.leave()
        assert session.step == 1
    assert (len(waits_of(tmp_path / "run")), len(rounds_of(tmp_path / "run"))) == (1, 1)


def test_a_pass_that_goes_in_a_fork_before_its_hooks_ran_is_not_ended(tmp_path, monkeypatch):
    with recording(tmp_path / "run") as session:
        log = DeliveryLog(session, session.add_loader("torch", "a", "b"))
        log.ask()
        log.deliver(session.next_batch())
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: 1)
            log.abandon()
        assert not log.left
    assert len(rounds_of(tmp_path / "run")) == 1


def test_what_goes_on_when_the_recording_ends_is_ended_with_it(tmp_path):
    with recording(tmp_path / "run") as session:
        log = DeliveryLog(session, session.add_loader("torch", "a", "b"))
        log.ask()
    assert [span[1] for span in spans_of(tmp_path / "run")] == ["failed", "round"]


@pytest.mark.parametrize(
    ("calls", "waits", "n_steps"),
    [
        ("timed.ask 10 timed.deliver timed.leave", [(0, 10, 7)], 1),  # nobody else sees it
        # A loader that is seen takes its place; what was begun and not ended is no wait;
        ("timed.ask 1 loader.ask 10 loader.started 1 timed.deliver timed.leave loader.end",
         [(1, 11, -1)], 0),
        ("timed.ask 10 timed.leave", [], 0),
        # a loader that it waits inside of keeps its place.
        ("loader.ask 1 timed.ask 1 timed.deliver 1 loader.deliver loader.leave", [(0, 3, 7)], 1),
    ],
)  # fmt: skip
def test_a_wait_that_a_script_times_gives_way_to_loaders(tmp_path, calls, waits, n_steps):
    clock = FakeClock()
    with recording(tmp_path / "run", clock=clock) as session:
        logs = {
            "timed": DeliveryLog(session, None, yields=True),
            "loader": DeliveryLog(session, session.add_loader("torch", "a", "b")),
        }
        for call in calls.split():
            if call.isdigit():
                clock.advance(int(call))
                continue
            log, _, name = call.partition(".")
            getattr(logs[log], name)(*[7][: name == "deliver"])
        assert session.step == n_steps
    found = waits_of(tmp_path / "run")
    assert [(start, end, batch) for _, _, batch, start, end, *_ in found] == waits
    assert len(rounds_of(tmp_path / "run")) == len(waits)


# -- who records, and where


def test_stages_of_the_script_go_to_the_run(tmp_path):
    with iobench.record(tmp_path / "run"), iobench.stage("augment"):
        pass
    assert [span[:2] for span in spans_of(tmp_path / "run")] == [(Kind.PREPROCESS, "augment")]
    assert active_recorder() is None
    assert not {name for name in os.environ if name.startswith("IOBENCH_RUN")}


def test_the_environment_starts_a_recording_where_a_loader_asks(tmp_path, monkeypatch):
    assert current_recording() is loop_recording() is None
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    session = current_recording()
    assert session is current_recording()
    assert session.run.path == tmp_path / "run"
    session.close()


def test_a_run_directory_that_cannot_be_used_is_a_warning(tmp_path, monkeypatch, caplog):
    RunDirectory.create(tmp_path / "run", {})
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    assert current_recording() is None
    assert current_recording() is None
    assert [each.getMessage().count("holds a run already") for each in caplog.records] == [1]


def test_threads_that_ask_first_at_once_have_one_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    make, seen, others = RunDirectory.create, [], []

    def made(*args, **kwargs):
        run = make(*args, **kwargs)
        if not others:  # the other thread asks while this one starts
            others.append(threading.Thread(target=lambda: seen.append(current_recording())))
            others[0].start()
            others[0].join(0.1)
        return run

    monkeypatch.setattr(RunDirectory, "create", made)
    session = current_recording()
    others[0].join(60)
    assert session is not None
    session.close()
    assert seen == [session]


def test_recording_inside_a_recording_is_the_same_one(tmp_path, caplog):
    with iobench.record(tmp_path / "run") as outer:
        for path in (None, tmp_path / "other", tmp_path / "other"):
            with iobench.record(path) as inner:
                assert inner.recorder is outer.recorder
        assert current_recording() is outer
    (line,) = caplog.records
    assert "records into" in line.getMessage()


def test_a_second_run_is_never_mixed_with_the_first(tmp_path, monkeypatch, caplog):
    for name in ("run", "run-2", "run-3"):
        caplog.clear()
        with iobench.record(tmp_path / "run") as session:
            assert session.run.path == tmp_path / name
        assert len(caplog.records) == (name != "run")
    monkeypatch.chdir(tmp_path)
    paths = []
    for _ in range(2):
        with iobench.record() as session:
            paths.append(session.run.path)
    assert paths[0].parent == tmp_path / "iobench-runs"
    assert paths[1].name == paths[0].name.replace("-1", "-2")


def test_all_ranks_of_a_job_find_the_same_numbered_run(tmp_path):
    RunDirectory.create(tmp_path / "run", {})
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "run.json").write_text("of another version")
    names = [
        RunDirectory.create(tmp_path / "run", {}, token=token, numbered=True).path.name
        for token in ("a job", "a job", "another")
    ]
    assert names == ["run-3", "run-3", "run-4"]


def test_a_detail_that_is_none_is_refused():
    with pytest.raises(OptionError, match="auto, sample, batch"):
        iobench.record(detail="fine")


# -- processes


def _train(clock, n_batches, name):
    assert current_recording() is None, "a fork of a training process is not that process"
    session = loop_recording()
    one_pass(session, clock, n_batches=n_batches, loader=session.add_loader("torch", "a", name))
    assert loop_recording() is current_recording() is session


def test_a_fork_that_asks_loaders_is_a_training_process_of_its_own(tmp_path):
    clock = FakeClock(1000)
    with recording(tmp_path / "run", clock=clock) as session:
        assert loop_recording() is session
        one_pass(session, clock, n_batches=1)
        process = multiprocessing.get_context("fork").Process(target=_train, args=(clock, 3, "own"))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert current_recording() is session
        assert session.facts.ended is None
    # By number, and numbers begin again at some point: a child's may be the smaller one.
    fork, first = sorted(facts_of(tmp_path / "run"), key=lambda each: each.pid == os.getpid())
    assert (first.role, first.unseen, len(first.loaders)) == ("consumer", [], 1)
    assert (fork.role, fork.pid, fork.ppid) == ("consumer", process.pid, os.getpid())
    assert (fork.ended, fork.loaders[0].name) == ("closed", "own")
    profile = iobench.open_profile(tmp_path / "run")
    assert all(process.closed for process in profile.processes)
    exposure = Run(profile).of_rank().exposure
    assert exposure.whole.n_batches == 3


# -- what a process says of itself


def test_what_a_process_says_survives_a_reader_of_another_version(tmp_path, caplog):
    with iobench.record(tmp_path / "run") as session:
        session.add_unseen("pin: no such hook")
        session.add_unseen("pin: no such hook")
        session.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    folder = tmp_path / "run" / "processes"
    (folder / "rank9.json").write_text('{"version": 99}')
    (folder / "rank8.json").write_text("{")
    (facts,) = read_process_facts(folder)
    assert (facts.unseen, facts.ended) == (["pin: no such hook"], "ZeroDivisionError")
    assert len(caplog.records) == 2


def test_of_very_many_loaders_those_that_are_alike_are_one(tmp_path):
    number = type("Number", (), {"__index__": lambda self: 4})()  # whatever a loader says of itself
    with recording(tmp_path / "run") as session:
        early = [session.add_loader("torch", "a.Loader", "Samples") for _ in range(64)]
        late = [session.add_loader("torch", "a.Loader", "Samples") for _ in range(100)]
        other = session.add_loader("torch", "a.Loader", "Samples", workers=2, batch_size=number)
    assert len({each.number for each in early}) == 64
    assert {each.number for each in late} == {63}
    assert other.number == 64
    (facts,) = facts_of(tmp_path / "run")
    assert len(facts.loaders) == 65
    assert facts.loaders[64].batch_size == 4


KERNEL = ["/opt/env/bin/python", "-m", "ipykernel_launcher", "-f", "/tmp/kernel-1.json"]


@pytest.mark.parametrize(
    ("words", "environment", "command"),
    [
        (["python", "train.py", "--epochs", "2"], {}, ["python", "train.py", "--epochs", "***"]),
        (KERNEL, {"JPY_SESSION_NAME": "/notes/first try.ipynb"}, ["notebook", "first try.ipynb"]),
        (KERNEL, {}, ["notebook"]),
    ],
)
def test_a_script_is_called_as_it_was_started_but_for_values(
    monkeypatch, words, environment, command
):
    monkeypatch.setattr(sys, "orig_argv", words)
    assert command_line(environment) == command


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
            (3, 4, 1),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"}, (2, 8, 0)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, (1, 2, 1)),
        (
            {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"},
            (5, 6, 1),
        ),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, (1, 2, 1)),
    ],
)
def test_each_launcher_is_recognised(environment, expected):
    job = find_job(environment)
    assert (job.rank, job.world_size, job.local_rank) == expected
    assert job.token
    assert find_job({**environment, "IOBENCH_RUN_TOKEN": "given"}).token == "given"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # a batch script
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2"},
    ],
)
def test_anything_else_is_one_process(environment):
    assert find_job(environment) == JobRank()


def test_ranks_of_a_job_share_a_token_and_other_jobs_have_another():
    def torchrun(rank, port):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
        return find_job({**environment, "MASTER_PORT": port}).token

    assert torchrun(0, "29500") == torchrun(1, "29500") != torchrun(0, "29501")
