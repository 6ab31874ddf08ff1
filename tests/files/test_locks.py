"""One writer of a folder at a time; a lock of one that ended is taken over."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from iobench.errors import StoreClaimedError
from iobench.files import locks
from iobench.files.locks import JOURNAL_NAME, LOCK_NAME, find_writer, lock_holder, locked

FORK = multiprocessing.get_context("fork")
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def hold(folder, pipe):
    with locked(folder):
        pipe.send("held")
        pipe.poll(30)


@pytest.fixture
def holder(tmp_path):
    """Return a process that holds the folder, and what ends it."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    assert ours.recv() == "held"
    yield process, lambda: ours.send("end")
    process.kill()
    process.join(30)


def test_a_second_writer_is_told_who_the_first_one_is(tmp_path, holder) -> None:
    process, _ = holder
    who = f"process {process.pid} on "
    with (
        pytest.raises(StoreClaimedError, match=f"is being written by {who}"),
        locked(tmp_path, wait_s=0),
    ):
        pass
    assert find_writer(tmp_path).startswith(who)


def test_a_second_writer_waits_says_so_once_and_goes_on(tmp_path, holder) -> None:
    process, end = holder
    notes = []

    def note(line):
        notes.append(line)
        end()

    with locked(tmp_path, notice=note):
        process.join(30)
    assert notes == [f"waiting for process {process.pid} on {os.uname().nodename}, which is "
                     f"writing {tmp_path}"]  # fmt: skip
    assert not (tmp_path / LOCK_NAME).exists()


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, holder) -> None:
    process, _ = holder
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert (tmp_path / LOCK_NAME).exists()
    assert find_writer(tmp_path) == ""
    with locked(tmp_path, wait_s=5) as lock:
        lock.check()


@pytest.mark.timeout(30)
def test_a_lock_that_was_lost_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.05)
    with locked(tmp_path) as lock:
        lock.check()
        (tmp_path / LOCK_NAME).write_text("of another host")
        lost: list[str] = []
        while not lost:  # until the next heartbeat
            try:
                lock.check()
            except StoreClaimedError as error:
                lost.append(str(error))
    assert "took over; run the command again" in lost[0]


def test_writers_of_parts_are_found(tmp_path) -> None:
    journal = tmp_path / JOURNAL_NAME
    journal.mkdir()
    assert find_writer(tmp_path) == ""
    with locked(journal, name="part-2.lock"):
        assert find_writer(tmp_path).startswith(f"process {os.getpid()} on ")
    assert lock_holder(journal / "part-2.lock") == ""
