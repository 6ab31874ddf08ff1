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
from typing import Any, TypeVar

from iobench.cpus import available_cpus
from iobench.errors import IobenchError, WorkerError
from iobench.recording.clocks import now_ns

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

CHILD = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from iobench.datasets.setup_processes import child_main; child_main()"
)


def stopwatch() -> Callable[[], float]:
    """Start a stopwatch: call what is returned for the seconds since."""
    started_ns = now_ns()
    return lambda: (now_ns() - started_ns) / 1e9


def run_jobs(
    function: Callable[[Job], Outcome], jobs: Sequence[Job], *, processes: int | None = None
) -> Iterator[tuple[int, Outcome]]:
    """Run ``function(job)`` for every job and yield (job number, what it returned).

    Outcomes come as they are ready, not in order. Leaving the iteration early ends the children.
    One job runs in this process unless ``processes`` is 0.
    """
    count = min(processes or available_cpus(), len(jobs))
    numbered = list(enumerate(jobs))
    if count <= 1 and processes != 0:
        for number, job in numbered:
            yield number, function(job)
        return
    outcomes: queue.Queue[Any] = queue.Queue()
    children: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(count) as threads:
        try:
            for start in range(count):
                share = pickle.dumps(sys.path) + pickle.dumps((function, numbered[start::count]))
                command = [sys.executable, "-P", "-c", CHILD]
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                children.append(child)
                threads.submit(_converse, child, share, outcomes)
            for _ in jobs:
                outcome = outcomes.get()
                if isinstance(outcome, IobenchError):
                    raise outcome
                yield outcome
        finally:
            for child in children:
                child.kill()


def _converse(child: Any, share: bytes, outcomes: queue.Queue[Any]) -> None:
    """Send a child its share and pass on what it says, an error where it dies."""
    try:
        with child:
            child.stdin.write(share)
            child.stdin.close()
            while True:
                outcomes.put(pickle.load(child.stdout))
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        pass  # the child is gone; its exit code says how
    if child.returncode:
        outcomes.put(
            WorkerError(
                f"a process doing set-up work ended with exit code {child.returncode}; its own "
                "message is above (killed for memory if there is none): run the command again"
            )
        )


def child_main() -> None:
    """Do a share of the work and say so on standard output; the parent handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever else a job prints must not get between the outcomes.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function, share = pickle.load(sys.stdin.buffer)
    try:
        for number, job in share:
            pickle.dump((number, function(job)), replies)
            replies.flush()
    except IobenchError as error:
        pickle.dump(error, replies)
        replies.flush()
    except BrokenPipeError:
        os._exit(1)  # the parent is gone: there is nobody left to work for or to tell
