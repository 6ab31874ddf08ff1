"""Waits that a script times itself, around a loader that may be one that iobench sees."""

import pytest

import iobench
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.recording.session import Recording
from iobench.testing import FakeClock


@pytest.fixture
def clock(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_STEPS", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return FakeClock()


@pytest.fixture
def session(tmp_path, clock):
    with Recording(
        tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock
    ) as recording:
        yield recording


def waits(session):
    session.close()
    spans = iobench.open_profile(session.run.path).spans
    rows = spans[(spans["kind"] == Kind.WAIT) | (spans["kind"] == Kind.OTHER)]
    return [
        (Kind(row["kind"]).spelled, int(row["start_ns"]), int(row["end_ns"]), int(row["batch"]))
        for row in rows
    ]


def test_a_wait_that_nobody_else_sees_counts(session, clock):
    log = DeliveryLog(session, session.add_loader("script", "a", "io"), yields=True)
    log.ask()
    clock.advance(10)
    assert log.waits
    log.deliver(session.next_batch())
    assert not log.waits
    log.leave()
    assert waits(session) == [("wait", 0, 10, 0), ("other", 0, 10, -1)]


def test_a_loader_that_is_seen_takes_its_place(session, clock):
    timed = DeliveryLog(session, None, yields=True)
    loader = DeliveryLog(session, session.add_loader("torch", "a", "b"))
    timed.ask()
    clock.advance(1)
    loader.ask()
    clock.advance(10)
    assert not timed.waits
    loader.started()
    clock.advance(1)
    timed.deliver(7)
    assert session.step == 0
    timed.leave()
    loader.end()
    assert waits(session) == [("wait", 1, 11, -1), ("other", 1, 12, -1)]


def test_what_was_begun_and_not_ended_is_no_wait(session, clock):
    timed = DeliveryLog(session, None, yields=True)
    timed.ask()
    clock.advance(10)
    timed.leave()
    assert waits(session) == []


def test_a_loader_it_waits_inside_of_keeps_its_place(session, clock):
    loader = DeliveryLog(session, session.add_loader("torch", "a", "b"))
    timed = DeliveryLog(session, None, yields=True)
    loader.ask()
    clock.advance(1)
    timed.ask()
    clock.advance(1)
    timed.deliver(5)
    clock.advance(1)
    loader.deliver(4)
    loader.leave()
    assert session.step == 1
    assert waits(session) == [("wait", 0, 3, 4), ("other", 0, 3, -1)]
