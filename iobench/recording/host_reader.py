"""One thread that reads what a machine shows while a run goes on: its energy, what it was doing."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
from typing import TYPE_CHECKING, Final, Protocol

from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 2.0
"""What does not answer keeps nobody from leaving for longer."""
TOGETHER: Final = 10
"""What is due within a tenth of its period is read now: one thread wakes up once for both."""
PLACES: Final = re.compile(r"[^A-Za-z0-9._-]")


class HostReading(Protocol):
    """Something that is read again and again; nothing that goes wrong is an error of the run."""

    @property
    def period_ns(self) -> int:
        """Time from a reading to the next, now; 0 where there is nothing to read."""
        ...

    def read(self) -> None:
        """Read once, and write what it shows."""
        ...

    def finish(self) -> None:
        """Close all files."""
        ...


class HostReader:
    """Reads until it is closed, in a thread of its own where there is anything to read.

    Parameters
    ----------
    readings : sequence of HostReading
        Finished by this.
    """

    def __init__(self, readings: Sequence[HostReading], clock: Clock = SYSTEM_CLOCK) -> None:
        self._readings = [each for each in readings if each.period_ns]
        self._idle = [each for each in readings if not each.period_ns]
        self._clock, self._pid = clock, os.getpid()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> HostReader:
        """Read from now on."""
        for each in self._idle:
            each.finish()
        if not self._readings:
            return self
        for each in self._readings:
            each.read()
        self._thread = threading.Thread(target=self._run, name="iobench-machine", daemon=True)
        try:
            with _no_signals():
                self._thread.start()
        except RuntimeError as error:  # no more threads for this user
            self._thread = None
            logger.warning("the machine is not sampled (%s); the run continues", error)
            self._finish()
        return self

    def close(self) -> None:
        """Read once more and end; idempotent, and nothing in a fork of the process."""
        if os.getpid() != self._pid or self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                logger.warning("a counter does not answer; what it showed so far is kept")

    def _run(self) -> None:
        try:
            self._look()
        except MemoryError:  # of a limit that the run meets as well, and says
            logger.warning("the machine is not sampled any more (no memory)")

    def _look(self) -> None:
        now_ns = self._clock.now_ns()
        due_ns = [now_ns + each.period_ns for each in self._readings]
        while True:
            first = min(range(len(due_ns)), key=due_ns.__getitem__)
            left_ns = max(0, due_ns[first] - self._clock.now_ns())
            if self._stopped.wait(left_ns / 1e9):
                break
            until_ns = max(due_ns[first], self._clock.now_ns())
            for place, each in enumerate(self._readings):
                if due_ns[place] <= until_ns + each.period_ns // TOGETHER:
                    each.read()
                    # Readings that were missed are not made up for.
                    due_ns[place] = max(due_ns[place] + each.period_ns, self._clock.now_ns())
        for each in self._readings:
            each.read()
        self._finish()

    def _finish(self) -> None:
        for each in self._readings:
            each.finish()


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """Let threads begun here be sent no signal: who waits for signals shall get all of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def claimed_files(runs: Sequence[Path], folder: str, ending: str) -> Iterator[tuple[Path, int]]:
    """Make this machine's file in each run directory; yield those made, open for appending.

    Not where another process of this machine has made it already; what cannot be made is a warning.
    """
    # Containers of several machines may share a name.
    host, boot = (PLACES.sub("_", each) for each in (host_name(), boot_id()))
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    for run in runs:
        path = run / folder / f"{host}-{boot[:8]}.{ending}"
        if path.exists():
            continue
        try:
            path.parent.mkdir(exist_ok=True)
            yield path, os.open(path, how, 0o666)
        except OSError as error:
            if not path.exists():  # else somebody was faster
                logger.warning("%s: nothing is read for it (%s)", path, error.strerror or error)
