"""Tracing from the middle of this process on: what was done before is no part of the logs.

The runtime must be there from the start, since its wrappers of ``read`` take effect then; but it
does nothing until it is told to begin. So the process is started once more, under it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.storage.tracing.probing import ProbedRuntime
from iobench.storage.tracing.reopening import follow
from iobench.storage.tracing.runtimes import DarshanRuntime, preloaded

if TYPE_CHECKING:
    from iobench.storage.tracing.setting_up import DarshanSetup

__all__ = ["attached", "probed_before", "restart_under"]

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


@contextmanager
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
