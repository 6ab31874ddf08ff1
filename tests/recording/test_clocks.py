import psutil
import pytest

from iobench.recording.clocks import SYSTEM_CLOCK, now_ns, process_start_ns, wait_until_ns
from iobench.testing import FakeClock


def test_waiting_sleeps_again_when_woken_early_and_is_never_short(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    deadline_ns = now_ns() + 100_000
    assert wait_until_ns(deadline_ns) >= deadline_ns
    assert len(slept) > 1
    slept.clear()
    assert wait_until_ns(now_ns() - 1)
    assert not slept


def test_a_fake_clock_moves_by_what_it_is_told():
    clock = FakeClock(start_ns=7, step_ns=3, wall_offset_ns=100)
    clock.advance(10, cpu_ns=4)
    assert [clock.now_ns(), clock.now_ns(), clock.cpu_ns()] == [17, 20, 4]
    assert clock.wait_until_ns(50) == 50
    assert clock.wait_until_ns(20) == 50


def test_a_process_began_when_the_system_says():
    age_s = (now_ns() - process_start_ns()) / 1e9
    since_s = SYSTEM_CLOCK.wall_ns() / 1e9 - psutil.Process().create_time()
    assert age_s == pytest.approx(since_s, abs=1)
