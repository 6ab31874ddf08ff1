"""Tracing from the middle of this process on: what was done before is no part of the logs.

The runtime must be there from the start, since its wrappers of ``read`` take effect then; but it
does nothing until it is told to begin. So the process is started once more, under it. Darshan knows
what it saw opened: files that were open before are opened once more, also in processes that are
forked, where it forgets them all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.storage.tracing.probing import ProbedRuntime
from iobench.storage.tracing.runtimes import DarshanRuntime, preloaded

if TYPE_CHECKING:
    from iobench.storage.tracing.setting_up import DarshanSetup

__all__ = ["attached", "follow", "probed_before", "restart_under"]

PROBED: Final = "IOBENCH_DARSHAN_PROBED"
"""Environment: what the process that started this one again found out about the runtime."""


def restart_under(probed: ProbedRuntime, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Replace this process by one of the same command, with the runtime waiting in it."""
    told = asdict(probed) | {"runtime": [str(probed.runtime.path), probed.runtime.found]}
    words = [str(probed.runtime.path)]
    words += [word for word in preloaded(environment) if word not in words]
    # Set, it would trace from the first line on.
    kept = {name: text for name, text in environment.items() if name != "DARSHAN_ENABLE_NONMPI"}
    inside = kept | {"LD_PRELOAD": ":".join(words), PROBED: json.dumps(told)}
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, sys.orig_argv, inside)


def probed_before(environment: MutableMapping[str, str] = os.environ) -> ProbedRuntime | None:
    """Return what `restart_under` was given; None in a process that it did not start."""
    text = environment.pop(PROBED, None)
    if text is None:
        return None
    told: dict[str, Any] = json.loads(text)
    path, found = told.pop("runtime")
    told |= {name: tuple(told[name]) for name in ("prefixes", "packages")}
    return ProbedRuntime(DarshanRuntime(Path(path), found), **told)


@contextlib.contextmanager
def attached(
    setup: DarshanSetup,
    folders: Iterable[Path],
    environment: MutableMapping[str, str] = os.environ,
) -> Iterator[dict[str, int]]:
    """Trace this process, and those that it starts meanwhile; its log is there afterwards.

    Files below ``folders`` that are open already are opened once more, to be seen.

    Yields
    ------
    dict of str to int
        ``pid``, and ``wall_ns``: when this process began to be traced, from which its log counts.
    """
    before = {name: environment.get(name) for name in (*setup.variables, *setup.dropped)}
    for name in setup.dropped:
        environment.pop(name, None)
    environment.update(setup.variables)
    runtime = ctypes.CDLL(None)
    begun = {"pid": os.getpid(), "wall_ns": SYSTEM_CLOCK.wall_ns()}
    runtime.darshan_core_initialize(0, None)
    follow(folders)
    try:
        yield begun
    finally:
        follow(())
        runtime.darshan_core_shutdown(1)
        for name, text in before.items():
            if text is None:
                environment.pop(name, None)
            else:
                environment[name] = text


DESCRIPTORS: Final = Path("/proc/self/fd")
AT_OPENING: Final = os.O_CREAT | os.O_EXCL | os.O_TRUNC

_followed: tuple[Path, ...] = ()
_asked = False


def follow(folders: Iterable[Path]) -> None:
    """Reopen what this process has open for reading below some folders, and what its forks inherit.

    No folders end that.
    """
    global _followed, _asked
    _followed = tuple(folder.resolve() for folder in folders)
    if _followed and not _asked:
        _asked = True
        os.register_at_fork(after_in_child=reopen)
    reopen()


def reopen() -> int:
    """Replace each such descriptor by a new one of the same file at the same place; count them.

    Does nothing while nothing is followed, and where there is no ``/proc``.
    """
    if not _followed:
        return 0
    try:
        numbers = [int(path.name) for path in DESCRIPTORS.iterdir()]
    except OSError:
        return 0
    return sum(_reopen(number) for number in numbers)


def _reopen(number: int) -> bool:
    link = DESCRIPTORS / str(number)
    with contextlib.suppress(OSError, ValueError):
        path = link.readlink()
        if not any(path.is_relative_to(folder) for folder in _followed):
            return False
        told = (Path("/proc/self/fdinfo") / str(number)).read_text("ascii")
        flags = int(told.partition("flags:")[2].split()[0], 8)
        before = os.fstat(number)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return False
        again = os.open(path, flags & ~AT_OPENING)
        try:
            now = os.fstat(again)
            if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
                return False  # something else has its name by now
            os.lseek(again, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, number, inheritable=os.get_inheritable(number))
        finally:
            os.close(again)
        return True
    return False
