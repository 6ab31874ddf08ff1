"""A command as an arm: its time, its end, and nothing left of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from iobench.errors import OptionError, TrialError
from iobench.testing import FakeClock
from iobench.trials.command_arms import CommandArm, recorded_command, run_command

PYTHON = [sys.executable, "-S", "-E", "-c"]


def test_cost_is_wall_and_cpu_time() -> None:
    clock = FakeClock(step_ns=5)
    cost = run_command([*PYTHON, "sum(range(10**6))"], clock=clock)
    assert cost.wall_ns == 5
    assert cost.cpu_ns > 0
    assert cost.peak_nbytes > 1 << 20


def test_an_arm_keeps_what_each_run_took(capfd: pytest.CaptureFixture[str]) -> None:
    arm = CommandArm(["true"], clock=FakeClock(step_ns=3_000_000_000))
    assert [arm(0), arm(1)] == [3.0, 3.0]
    assert [cost.wall_ns for cost in arm.costs] == [3_000_000_000] * 2
    by_cpu = CommandArm(["true"], by_cpu=True)
    assert by_cpu(0) == by_cpu.costs[0].cpu_ns / 1e9
    assert capfd.readouterr() == ("", "")


def test_a_failure_says_how_and_what_it_wrote_last() -> None:
    code = "import sys; print('first'); sys.stdout.flush(); sys.exit('disk is full')"
    with pytest.raises(TrialError, match=r"ended with exit code 1, expected 0; first \| disk is"):
        run_command([*PYTHON, code])
    with pytest.raises(TrialError, match="ended with signal 9"):
        run_command(["sh", "-c", "kill -9 $$"])


def test_no_such_program() -> None:
    with pytest.raises(OptionError, match="no-such-program: cannot be started"):
        run_command(["no-such-program", "x"])


def test_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    run_command(["sh", "-c", f"sleep 60 & echo $! > {left}"])
    assert _is_gone(int(left.read_text()))


def test_an_interrupt_ends_the_whole_group(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    started = tmp_path / "started"
    os.mkfifo(started)

    def interrupt_when_started() -> None:
        started.read_text()
        os.kill(os.getpid(), signal.SIGINT)

    teller = threading.Thread(target=interrupt_when_started)
    teller.start()
    with pytest.raises(KeyboardInterrupt):
        run_command(["sh", "-c", f"sleep 60 & echo $! > {left}; echo > {started}; wait"])
    teller.join()
    assert _is_gone(int(left.read_text()))


def _is_gone(pid: int) -> bool:
    """Return whether a process has ended; who inherits it may not have noticed yet."""
    for _ in range(2000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        threading.Event().wait(0.005)
    return False


def test_a_recorded_command_is_run_by_this_python() -> None:
    words = recorded_command(["python", "train.py", "--", "x"], Path("runs/a 1"))
    assert words[0] == sys.executable
    assert words[3:] == [
        "run", "--no-report", "--out", "runs/a 1", "--detail", "auto", "--",
        "python", "train.py", "--", "x",
    ]  # fmt: skip
