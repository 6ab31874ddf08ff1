"""Ctrl-C and the signals of schedulers, as one exception that unwinds whatever a command does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGUSR1; no KeyboardInterrupt, which the argument parser swallows."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGUSR1 (SLURM's warning) into one exception that unwinds all."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in _signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> tuple[signal.Signals, ...]:
    required = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    # Ignored by who started us (nohup, a background job of a script): so for what we start.
    return tuple(number for number in required if signal.getsignal(number) is not signal.SIG_IGN)
