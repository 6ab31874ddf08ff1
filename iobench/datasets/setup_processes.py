"""Runs jobs of set-up work (writing stand-ins, normalisation) in processes of their own.

Children are fresh interpreters fed through pipes: unlike a fork they are safe beside threads and
loaded frameworks, and unlike ``multiprocessing``'s spawn they do not run the user's script again.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

from iobench.cpus import available_cpus
from iobench.datasets.contract import Progress, no_progress
from iobench.errors import IobenchError, WorkerError
from iobench.recording.clocks import now_ns

Advance = Callable[[int], None]
"""Called by a job with the units of work done since its last call."""
Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

CHILD = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from iobench.datasets.setup_processes import child_main; child_main(sys.stdin.buffer)"
)


def stopwatch() -> Callable[[], float]:
    """Start a stopwatch: call what is returned for the seconds since."""
    started_ns = now_ns()
    return lambda: (now_ns() - started_ns) / 1e9


def run_jobs(
    function: Callable[[Job, Advance], Outcome],
    jobs: Sequence[Job],
    *,
    processes: int | None = None,
    progress: Progress = no_progress,
    total: int = 0,
) -> Iterator[tuple[int, Outcome]]:
    """Run ``function(job, advance)`` for every job and yield (job number, what it returned).

    Outcomes come as they are ready, not in order. Leaving the iteration early ends the children.
    """
    count = min(processes or available_cpus(), len(jobs))
    done = 0

    def advance(units: int) -> None:
        nonlocal done
        done += units
        progress(done, total)

    if count <= 1:
        for number, job in enumerate(jobs):
            yield number, function(job, advance)
        return
    numbered = list(enumerate(jobs))
    shares = [pickle.dumps((function, numbered[start::count])) for start in range(count)]
    messages: queue.Queue[tuple[str, int, Any]] = queue.Queue()
    children: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(count) as threads:
        try:
            for share in shares:
                command = [sys.executable, "-P", "-c", CHILD]
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                children.append(child)
                threads.submit(_converse, child, share, messages)
            running = count
            while running:
                what, number, value = messages.get()
                if what == "advance":
                    advance(number)
                elif what == "outcome":
                    yield number, value
                elif what == "error":
                    raise value
                elif number:
                    raise WorkerError(
                        f"a process doing set-up work ended with exit code {number}; its own "
                        "message is above (killed for memory if there is none): run the command "
                        "again"
                    )
                else:
                    running -= 1
        finally:
            for child in children:
                child.kill()


def _converse(child: Any, share: bytes, messages: queue.Queue[tuple[str, int, Any]]) -> None:
    """Send a child its share, pass on what it says, and report its exit code last."""
    try:
        with child:
            child.stdin.write(pickle.dumps(sys.path) + share)
            child.stdin.close()
            while True:
                messages.put(pickle.load(child.stdout))
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        pass  # the child is gone; its exit code says how
    messages.put(("ended", child.returncode, None))


def child_main(requests: IO[bytes]) -> None:
    """Do a share of the work and say so on standard output; the parent handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever else a job prints must not get between the messages.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)

        def say(*message: Any) -> None:
            replies.write(pickle.dumps(message))
            replies.flush()

        function, share = pickle.load(requests)
        try:
            for number, job in share:
                say("outcome", number, function(job, lambda units: say("advance", units, None)))
        except IobenchError as error:
            say("error", 0, error)
        except BrokenPipeError:
            os._exit(1)  # the parent is gone: there is nobody left to work for or to tell
