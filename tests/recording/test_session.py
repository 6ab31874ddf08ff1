import multiprocessing
import os
import subprocess
import sys
import threading
import types
from importlib import metadata

import numpy as np
import pytest

import iobench
from iobench.analysis.run import Run
from iobench.errors import OptionError
from iobench.recording.activation import active_recorder
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.session import Recording, current_recording, loop_recording
from iobench.testing import FakeClock


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_STEPS", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def recording(path, *, steps=None, clock=None):
    return Recording(path, steps=steps, detail="auto", spool=None, clock=clock or FakeClock())


def spans_of(path):
    profile = iobench.open_profile(path)
    spans = profile.spans
    labels = [profile.strings[label] for label in spans["label"].tolist()]
    rows = zip(
        spans["kind"].tolist(),
        labels,
        spans["batch"].tolist(),
        spans["start_ns"].tolist(),
        spans["end_ns"].tolist(),
        spans["sample"].tolist(),
        spans["nbytes"].tolist(),
        strict=True,
    )
    return [(Kind(kind), *rest) for kind, *rest in rows]


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


def test_waits_and_the_round_around_them_are_recorded(tmp_path):
    clock = FakeClock(1000)
    with recording(tmp_path / "run", clock=clock) as session:
        one_pass(session, clock, n_batches=2)
    spans = spans_of(tmp_path / "run")
    waits = [(label, batch, end - start) for kind, label, batch, start, end, *_ in spans
             if kind is Kind.WAIT]  # fmt: skip
    assert waits == [("startup", -1, 5), ("", 0, 10), ("", 1, 10), ("shutdown", -1, 3)]
    (around,) = (span for span in spans if span[1] == "round")
    assert around[3:5] == (1000, 1000 + 5 + 2 * 31 + 3)


@pytest.mark.parametrize("set_by_ns", [-(10**18), 10**18])
def test_a_wall_clock_that_is_set_meanwhile_moves_no_span(tmp_path, set_by_ns):
    told, anchors = [], []
    for name, by_ns in (("still", 0), ("set", set_by_ns)):
        clock = FakeClock(1000, wall_offset_ns=2 * 10**18)
        with recording(tmp_path / name, clock=clock) as session:
            one_pass(session, clock, n_batches=2)
            clock._wall_offset_ns += by_ns
            one_pass(session, clock, n_batches=3)
        profile = iobench.open_profile(tmp_path / name)
        told.append((spans_of(tmp_path / name), Run(profile).of_rank().exposure.whole))
        (process,) = profile.processes
        anchors.append([each.wall_ns - each.monotonic_ns for each in process.anchors])
    assert told[0] == told[1]
    assert anchors == [[2 * 10**18] * 2, [2 * 10**18, 2 * 10**18 + set_by_ns]]


def test_batches_and_rounds_have_numbers_of_their_own(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", clock=clock) as session:
        one_pass(session, clock, n_batches=2)
        one_pass(session, clock, n_batches=1)
    spans = spans_of(tmp_path / "run")
    assert [(s[2], s[5]) for s in spans if s[0] is Kind.WAIT and not s[1]] == [
        (0, 0), (1, 0), (2, 1),
    ]  # fmt: skip
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    assert [(each.number, each.framework) for each in facts.loaders] == [(0, "torch"), (1, "torch")]
    assert (facts.ended, facts.rank, facts.pid) == ("closed", 0, os.getpid())


def test_a_loader_inside_a_loader_is_work_of_the_outer_one(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", clock=clock) as session:
        outer = DeliveryLog(session, session.add_loader("torch", "a", "outer"))
        outer.ask()
        one_pass(session, clock, n_batches=3)
        outer.deliver(session.next_batch())
        outer.leave()
        assert session.step == 1
    spans = spans_of(tmp_path / "run")
    assert [span[0] for span in spans if span[0] is Kind.WAIT] == [Kind.WAIT]
    assert len([span for span in spans if span[1] == "round"]) == 1


def test_a_pass_that_is_left_ends_its_round_once(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", clock=clock) as session:
        log = DeliveryLog(session, session.add_loader("torch", "a", "b"))
        log.ask()
        log.deliver(0)
        log.leave()
        log.leave()
    assert [span[1] for span in spans_of(tmp_path / "run")].count("round") == 1


def test_what_goes_on_when_the_recording_ends_is_ended_with_it(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", clock=clock) as session:
        log = DeliveryLog(session, session.add_loader("torch", "a", "b"))
        log.ask()
    assert [span[1] for span in spans_of(tmp_path / "run")] == ["failed", "round"]


def test_versions_and_settings_of_threads_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    monkeypatch.setitem(sys.modules, "zarr", types.ModuleType("zarr"))  # tells no version itself
    with recording(tmp_path / "run"):
        monkeypatch.setenv("MKL_NUM_THREADS", "6")  # when it begins, as libraries look then
    (told,) = read_process_facts(tmp_path / "run" / "processes")
    assert told.versions["numpy"] == np.__version__
    assert told.thread_settings["MKL_NUM_THREADS"] == "5"
    try:
        assert told.versions["zarr"] == metadata.version("zarr")
    except metadata.PackageNotFoundError:
        assert "zarr" not in told.versions


def test_only_the_steps_asked_for_are_recorded(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", steps=range(2, 4), clock=clock) as session:
        assert active_recorder() is None
        one_pass(session, clock, n_batches=6)
        assert active_recorder() is None
    spans = spans_of(tmp_path / "run")
    assert [span[2] for span in spans if span[0] is Kind.WAIT] == [2, 3]
    (around,) = (span for span in spans if span[1] == "round")
    assert around[6] == 2, "deliveries of the round before the window"
    assert around[4] - around[3] == 2 * 31, "up to the asking for the first batch outside"


def test_batches_are_wanted_as_early_as_they_are_submitted(tmp_path):
    with recording(tmp_path / "run", steps=range(4, 6)) as session:
        wanted = []
        for step in range(8):
            session.step = step
            wanted.append(session.wants(2))
    assert wanted == [False, False, True, True, True, True, False, False]


def test_stages_of_the_script_go_to_the_run(tmp_path):
    with iobench.record(tmp_path / "run"), iobench.stage("augment"):
        pass
    assert [span[:2] for span in spans_of(tmp_path / "run")] == [(Kind.PREPROCESS, "augment")]
    assert active_recorder() is None
    assert "IOBENCH_RUN" not in os.environ


def test_the_environment_starts_a_recording_where_a_loader_asks(tmp_path, monkeypatch):
    assert current_recording() is None
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("IOBENCH_RUN_STEPS", "3:5")
    session = current_recording()
    assert session is current_recording()
    assert (session.run.path, session.steps) == (tmp_path / "run", range(3, 5))
    session.close()


def test_a_run_directory_that_cannot_be_used_is_a_warning(tmp_path, monkeypatch, caplog):
    RunDirectory.create(tmp_path / "run", {})
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    monkeypatch.setattr("iobench.recording.session._refused", False)
    assert current_recording() is None
    assert current_recording() is None
    assert len(caplog.records) == 1
    assert "holds a run already" in caplog.text


def test_threads_that_ask_first_at_once_have_one_recording(tmp_path, monkeypatch):
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    monkeypatch.setattr("iobench.recording.session._refused", False)
    join, seen, others = RunDirectory.join, [], []

    def joined(*args, **kwargs):
        run = join(*args, **kwargs)
        if not others:  # the other thread asks while this one starts
            others.append(threading.Thread(target=lambda: seen.append(current_recording())))
            others[0].start()
            others[0].join(0.1)
        return run

    monkeypatch.setattr(RunDirectory, "join", joined)
    session = current_recording()
    others[0].join(60)
    try:
        assert seen == [session]
        assert session is not None
    finally:
        session.close()


class Around:
    """What goes on."""

    def leave(self):
        pass


def test_rounds_may_begin_in_other_threads_while_the_window_closes(tmp_path):
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    done = threading.Event()
    try:
        with recording(tmp_path / "run", steps=range(10)) as session:

            def begin():
                while not done.is_set():
                    kept = [Around() for _ in range(100)]
                    for each in kept:
                        session.open_log(each)

            other = threading.Thread(target=begin)
            other.start()
            try:
                for _ in range(2000):
                    session.close_window()
            finally:
                done.set()
                other.join(60)
    finally:
        sys.setswitchinterval(switch_s)


def test_the_window_closes_for_a_loop_that_was_waiting_when_it_ended(tmp_path):
    clock = FakeClock()
    with recording(tmp_path / "run", steps=range(1), clock=clock) as session:
        log = DeliveryLog(session, None)
        log.ask()
        log.deliver(session.next_batch())
        assert active_recorder() is session.recorder
        session.stepped()  # a delivery to another thread's loop, asked for before
        assert active_recorder() is None
        assert session.step == 2


def test_recording_inside_a_recording_is_the_same_one(tmp_path):
    with iobench.record(tmp_path / "run") as outer:
        with iobench.record() as inner:
            assert inner.recorder is outer.recorder
        assert current_recording() is outer
        with pytest.raises(OptionError, match="records into"):
            iobench.record(tmp_path / "other").start()


def test_a_second_run_is_never_mixed_with_the_first(tmp_path, caplog):
    for name in ("run", "run-2", "run-3"):
        caplog.clear()
        with iobench.record(tmp_path / "run") as recording:
            assert recording.run.path == tmp_path / name
        told = [record.getMessage() for record in caplog.records]
        assert (
            told
            == [f"{tmp_path / 'run'}: holds a run already; recording into {tmp_path / name}"][
                : name != "run"
            ]
        )


def test_all_ranks_of_a_job_find_the_same_numbered_run(tmp_path):
    RunDirectory.create(tmp_path / "run", {})
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "run.json").write_text("of another version")
    found = {
        RunDirectory.join(tmp_path / "run", {}, token=token, numbered=True).path.name
        for token in ("a job", "a job", "a job")
    }
    other = RunDirectory.join(tmp_path / "run", {}, token="another", numbered=True).path.name
    assert (found, other) == ({"run-3"}, "run-4")


@pytest.mark.parametrize("steps", ["", "5", "5:5", "6:5", (-1, 3), range(0, 9, 2), "a:b"])
def test_steps_that_are_none_are_refused(steps):
    with pytest.raises(OptionError, match=r"FIRST:END"):
        iobench.record(steps=steps)


def test_a_detail_that_is_none_is_refused():
    with pytest.raises(OptionError, match="auto, sample, batch"):
        iobench.record(detail="fine")


def test_without_a_path_runs_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with iobench.record() as session:
            path = session.run.path
    assert path.parent == tmp_path / "iobench-runs"
    assert path.name.endswith("-2")


def test_ranks_of_a_job_write_into_one_run(tmp_path):
    script = (
        "import iobench, sys\n"
        "with iobench.record(sys.argv[1]):\n"
        "    with iobench.stage('read'):\n"
        "        pass\n"
    )
    told = {"WORLD_SIZE": "3", "IOBENCH_RUN_TOKEN": "job", "PATH": os.environ["PATH"]}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "run")],
            env={**told, "RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(3)
    ]
    assert [rank.communicate(timeout=60)[1] for rank in ranks] == [b""] * 3
    profile = iobench.open_profile(tmp_path / "run")
    assert [process.rank for process in profile.processes] == [0, 1, 2]
    assert profile.config["world_size"] == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "processes", "run.json", "spans",
    ]  # fmt: skip
    facts = read_process_facts(tmp_path / "run" / "processes")
    assert [each.rank for each in facts] == [0, 1, 2]


def _fork_and_leave(path):
    session = current_recording()
    assert session is None, "a fork of the training process is not the training process"


def test_a_fork_leaves_the_recording_of_its_parent_alone(tmp_path):
    with iobench.record(tmp_path / "run") as session:
        process = multiprocessing.get_context("fork").Process(
            target=_fork_and_leave, args=(tmp_path,)
        )
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert session.facts.ended is None


def test_what_a_process_tells_survives_a_reader_of_another_version(tmp_path, caplog):
    with iobench.record(tmp_path / "run") as session:
        session.add_unseen("pin: no such hook")
        session.add_unseen("pin: no such hook")
    folder = tmp_path / "run" / "processes"
    (folder / "rank9.json").write_text('{"version": 99}')
    (folder / "rank8.json").write_text("{")
    (facts,) = read_process_facts(folder)
    assert facts.unseen == ["pin: no such hook"]
    assert len(caplog.records) == 2


def test_the_exception_that_ends_a_script_is_told(tmp_path):
    with pytest.raises(ZeroDivisionError), iobench.record(tmp_path / "run"):
        _ = 1 / 0
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    assert facts.ended == "ZeroDivisionError"


def test_of_very_many_loaders_those_that_are_alike_are_one(tmp_path):
    with recording(tmp_path / "run") as session:
        early = [session.add_loader("torch", "a.Loader", "Samples") for _ in range(64)]
        late = [session.add_loader("torch", "a.Loader", "Samples") for _ in range(100)]
        other = session.add_loader("torch", "a.Loader", "Samples", workers=2)
    assert len({each.number for each in early}) == 64
    assert {each.number for each in late} == {63}
    assert other.number == 64
    (told,) = read_process_facts(tmp_path / "run" / "processes")
    assert len(told.loaders) == 65


def _train(clock, n_batches, name):
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
    told = read_process_facts(tmp_path / "run" / "processes")
    # By number, and numbers begin again at some point: a child's may be the smaller one.
    fork, first = sorted(told, key=lambda each: each.pid == os.getpid())
    assert (first.role, first.unseen, len(first.loaders)) == ("consumer", [], 1)
    assert (fork.role, fork.pid, fork.ppid) == ("consumer", process.pid, os.getpid())
    assert (fork.ended, fork.loaders[0].name) == ("closed", "own")
    profile = iobench.open_profile(tmp_path / "run")
    assert all(process.closed for process in profile.processes)
    exposure = Run(profile).of_rank().exposure
    assert exposure.whole.n_batches == 3
    assert [(each.pid, each.n_waits) for each in exposure.other_loops] == [(os.getpid(), 3)]


def test_a_fork_that_ends_at_once_leaves_what_it_recorded(tmp_path):
    clock = FakeClock(1000)
    with recording(tmp_path / "run", clock=clock, steps=range(1, 3)):
        pid = os.fork()
        if not pid:
            _train(clock, 4, "own")
            os._exit(0)
        assert os.waitpid(pid, 0) == (pid, 0)
    assert [span[2] for span in spans_of(tmp_path / "run") if span[0] is Kind.WAIT] == [1, 2]


def test_without_a_recording_no_fork_records():
    assert loop_recording() is None


def test_whatever_a_loader_says_of_itself_can_be_written(tmp_path):
    number = type("Number", (), {"__index__": lambda self: 4})()
    with recording(tmp_path / "run") as session:
        session.add_loader("torch", "a.Loader", "Samples", batch_size=number)
    (told,) = read_process_facts(tmp_path / "run" / "processes")
    assert told.loaders[0].batch_size == 4


def test_a_bound_that_is_no_size_is_refused_before_anything_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("IOBENCH_KEEP", "much")
    with pytest.raises(OptionError, match="IOBENCH_KEEP=much: expected a size"):
        recording(tmp_path / "run").start()
    assert not (tmp_path / "run").exists()
