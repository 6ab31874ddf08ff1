"""Which call a loading process is in where a batch takes long: noted by a thread of its own."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import sysconfig
import threading
from pathlib import Path
from traceback import walk_stack
from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import HANG_NS, LOCKED, STUCK, Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.recorder import Recorder

LOOK_S: Final = 2.0
OWN: Final = (str(Path(__file__).parents[1]), "<frozen ")
LIBRARIES: Final = (*OWN, *{sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")})
FUTEX: Final = {"x86_64": "202", "aarch64": "98"}
"""Number of the system call by which a thread waits for a lock."""
PRIVATE: Final = 128  # in what it is called with: a lock of this process alone


def watch_calls(recorder: Recorder, begun_ns: Callable[[], int]) -> None:
    """Note which call this thread is in, each time that what it began then takes long."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:  # not by `threading`, which would list it among the user's
        _thread.start_new_thread(_watch, (recorder, begun_ns, threading.get_ident()))
    except RuntimeError:  # no more threads for this user
        pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(recorder: Recorder, begun_ns: Callable[[], int], thread: int) -> None:
    noted_ns, pause = 0, threading.Event()
    while not pause.wait(LOOK_S):
        since_ns, now_ns = begun_ns(), recorder.clock.now_ns()
        if since_ns not in {0, noted_ns} and now_ns - since_ns >= HANG_NS:
            noted_ns = since_ns
            with recorder.quiet():
                label, call = LOCKED if _is_locked() else STUCK, _call_of(thread)
                recorder.emit(
                    Kind.OTHER, since_ns, now_ns, label=recorder.string(label),
                    detail=recorder.string(call), flags=Flag.DETAIL,
                )  # fmt: skip


def _call_of(thread: int) -> str:
    """Return which function of the user's a thread is in, and which of a library that called."""
    frames = [frame for frame, _ in walk_stack(sys._current_frames().get(thread))]
    frames = [each for each in frames if not each.f_code.co_filename.startswith(OWN)]
    own = [each for each in frames if not each.f_code.co_filename.startswith(LIBRARIES)]
    calls = (
        f"{each.f_code.co_name} ({Path(each.f_code.co_filename).name}:{each.f_lineno})"
        for each in (*own[:1], *frames[:1])
    )
    return ", which calls ".join(dict.fromkeys(calls))


def _is_locked() -> bool:
    """Return whether the main thread waits for a lock that no other thread is there to open."""
    # The feeder is multiprocessing's, and locks nothing of the user's.
    n_known = 2 + sum(each.name == "QueueFeederThread" for each in threading.enumerate())
    try:
        task = Path("/proc/self/task")
        words = (task / str(os.getpid()) / "syscall").read_text("ascii").split()
        is_alone, is_private = len([*task.iterdir()]) == n_known, int(words[2], 16) & PRIVATE
    except (OSError, ValueError, LookupError):
        return False
    return bool(is_alone and is_private and words[0] == FUTEX.get(os.uname().machine))
