"""One clock for all processes of a trace: wall time, as near as it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.runs.contents import Process

Machine = tuple[str, str]
CLOCK_STEP_NS: Final = 1_000_000
"""Anchors of one machine differ by microseconds; by more, the clock was set in between."""


def wall_offsets(processes: Iterable[Process]) -> dict[Machine, int]:
    """Return what to add to the monotonic times of each machine for wall time, in ns.

    Processes of one machine share it, so that what lies between their spans stays exact: it is the
    least of their first anchors' differences. An anchor reads one clock after the other, and what
    passes in between only adds. Where the wall clock was set meanwhile, it is that before.

    Returns
    -------
    dict of (str, str) to int
        By `machine_of`.
    """
    first: dict[Machine, int] = {}
    for process in sorted(processes, key=lambda each: each.anchors[0].monotonic_ns):
        anchor = process.anchors[0]
        offset = anchor.wall_ns - anchor.monotonic_ns
        known = first.setdefault(machine_of(process), offset)
        if known - CLOCK_STEP_NS < offset < known:
            first[machine_of(process)] = offset
    return first


def machine_of(who: Process) -> Machine:
    """Return what processes that share a monotonic clock have in common."""
    return who.host, who.boot_id
