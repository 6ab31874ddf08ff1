"""The command line: one command, one file. ``main`` turns an IobenchError into one line.

Results go to stdout, progress and notes to stderr. Exit 0 done, 1 an error said in one line,
2 usage, 75 interrupted and resumable.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "main"]

INTERRUPTED = 75


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGUSR1; no KeyboardInterrupt, which the argument parser swallows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the program's name; by default those of the process.
    """
    from iobench.cli.masked_streams import masked_streams

    arguments = list(sys.argv[1:] if argv is None else argv)
    with masked_streams(arguments):
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    from iobench.cli.app import make_app
    from iobench.errors import IobenchError

    try:
        with _interruptible():
            make_app()(args=arguments, prog_name="iobench")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except IobenchError as error:
        line = "; ".join([" ".join(str(error).split()), *_notes(error)])
        return _say(f"iobench: {line}", error.exit_code)
    except Interrupted as interrupt:
        from iobench.masking import mask_words

        again = shlex.join(["iobench", *mask_words(arguments)])
        kept = "; ".join(_notes(interrupt))
        kept = kept or f"what is finished is kept, run it again: {again}"
        return _say(f"iobench: interrupted; {kept}", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout has seen enough; keep the interpreter from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextmanager
def _interruptible() -> Iterator[None]:
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
    names = ("SIGINT", "SIGTERM", "SIGUSR1")
    wanted = (signal.Signals[name] for name in names if hasattr(signal, name))
    # Ignored by who started us (nohup, a background job of a script): so for what we start.
    return tuple(number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN)


def _notes(error: BaseException) -> list[str]:
    """Return what those it went through have added: where the work done by then is kept."""
    return getattr(error, "__notes__", [])


def _say(line: str, code: int) -> int:
    from iobench.masking import printable

    print(printable(line), file=sys.stderr)
    return code
