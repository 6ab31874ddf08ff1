"""Times of the wall clock on the monotonic clock of a process, by its anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles import Process

__all__ = ["clock_was_set", "monotonic_of_wall"]

_STEP_NS: Final = 1_000_000
"""By more than this no clock drifts between two anchors; it was set."""


def monotonic_of_wall(who: Process, wall_ns: NDArray[Any]) -> NDArray[np.int64]:
    """Return wall-clock times of a process on its monotonic clock.

    Between two anchors the difference of the clocks goes straight from one to the other; where the
    wall clock was set in between, that of the first holds.
    """
    wall_ns = wall_ns.astype(np.int64)
    first, last = who.anchors[0], who.anchors[-1]
    step = _drift_ns(who)
    moved = wall_ns - (first.wall_ns - first.monotonic_ns)
    if step == 0 or clock_was_set(who) or last.wall_ns <= first.wall_ns:
        return moved
    passed = np.interp(wall_ns - first.wall_ns, (0, last.wall_ns - first.wall_ns), (0, step))
    drifted: NDArray[np.int64] = moved - np.rint(passed).astype(np.int64)
    return drifted


def _drift_ns(who: Process) -> int:
    first, last = who.anchors[0], who.anchors[-1]
    return (last.wall_ns - last.monotonic_ns) - (first.wall_ns - first.monotonic_ns)


def clock_was_set(who: Process) -> bool:
    """Tell whether the two clocks disagree at the end by more than at the start."""
    return abs(_drift_ns(who)) > _STEP_NS
