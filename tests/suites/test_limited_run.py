"""A command with a log: how it ended, and nothing left of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from iobench.suites.suite_run import run_limited


def test_how_a_command_ended_is_said_with_what_it_wrote_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; print('first'); sys.stdout.flush(); sys.exit('disk is full')"
    words = [sys.executable, "-S", "-c", code]
    assert run_limited(words, log, 60).how == "ended with 1: disk is full"
    assert run_limited(["sh", "-c", "kill -9 $$"], log, 60).how == "killed by SIGKILL"
    assert run_limited(["sleep", "60"], log, 0.05).how == "took longer than its limit"
    named = run_limited(["sh", "-c", "echo $NAME"], log, 60, {"NAME": "given"})
    assert (named.code, named.lines) == (0, ("given",))


def test_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    run_limited(["sh", "-c", f"sleep 60 & echo $! > {left}"], tmp_path / "log", 60)
    assert _is_gone(int(left.read_text()))


@pytest.mark.timeout(30)
def test_an_interrupt_ends_the_whole_group(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    written = tmp_path / "written"
    os.mkfifo(written)

    def interrupt_when_started() -> None:
        written.read_text()
        os.kill(os.getpid(), signal.SIGINT)

    teller = threading.Thread(target=interrupt_when_started)
    teller.start()
    command = f"sleep 60 & echo $! > {left}; echo > {written}; wait"
    with pytest.raises(KeyboardInterrupt):
        run_limited(["sh", "-c", command], tmp_path / "log", 60)
    teller.join()
    assert _is_gone(int(left.read_text()))


def _is_gone(pid: int) -> bool:
    """Return whether a process has ended; who inherits it may not have noticed yet."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        threading.Event().wait(0.005)
    return False
