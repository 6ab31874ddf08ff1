"""What surrounds a command in its process: signals as one exception, and masked streams."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO, cast

from iobench.masking import mask_text, note_secrets


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
    # Ignored by who started us (nohup, a background job of a script): so for what we start.
    required = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    numbers = [each for each in required if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _MaskedStream:
    """A text stream that masks; has no ``buffer``, which would go past it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask_text(text))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


@contextmanager
def masked_streams(arguments: Sequence[str]) -> Iterator[None]:
    """Mask what goes to stdout and stderr meanwhile; the secrets of the arguments anywhere in it.

    After an exception that nobody foresaw they stay masked: its traceback is still to come.
    """
    note_secrets(arguments)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _MaskedStream(stream)) for stream in before)
    yield
    sys.stdout, sys.stderr = before
