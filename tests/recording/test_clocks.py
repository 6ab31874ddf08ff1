import psutil
import pytest

from iobench.recording.clocks import SYSTEM_CLOCK, Clock, now_ns, process_start_ns, wait_until_ns
from iobench.testing import FakeClock


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, FakeClock()])
def test_times_are_integers(clock: Clock):
    assert {type(read()) for read in (clock.now_ns, clock.cpu_ns, clock.wall_ns)} == {int}


def test_waiting_is_never_short():
    deadline_ns = now_ns() + 200_000
    assert wait_until_ns(deadline_ns) >= deadline_ns


def test_a_deadline_in_the_past_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("slept"))
    deadline_ns = now_ns() - 1
    assert wait_until_ns(deadline_ns) > deadline_ns


def test_waiting_sleeps_again_when_woken_early(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    wait_until_ns(now_ns() + 100_000)
    assert len(slept) > 1


def test_a_fake_clock_stands_still():
    clock = FakeClock(start_ns=7, wall_offset_ns=100)
    assert [clock.now_ns(), clock.now_ns(), clock.wall_ns(), clock.cpu_ns()] == [7, 7, 107, 0]


def test_a_fake_clock_moves_by_what_it_is_told():
    clock = FakeClock(step_ns=3)
    clock.advance(10, cpu_ns=4)
    assert [clock.now_ns(), clock.now_ns(), clock.cpu_ns()] == [10, 13, 4]
    assert clock.wait_until_ns(50) == 50
    assert clock.wait_until_ns(20) == 50


def test_a_process_began_when_the_system_says():
    started_ns = process_start_ns()
    assert started_ns is not None
    age_s = (now_ns() - started_ns) / 1e9
    assert age_s == pytest.approx(
        SYSTEM_CLOCK.wall_ns() / 1e9 - psutil.Process().create_time(), abs=1
    )
