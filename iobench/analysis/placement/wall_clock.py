"""Times of the wall clock on the monotonic clock of a process, by its anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles.contents import Process

__all__ = ["clock_was_set", "monotonic_of_wall"]

_STEP_NS: Final = 1_000_000
"""By more than this two anchors do not differ unless the wall clock was set."""


def monotonic_of_wall(who: Process, wall_ns: NDArray[Any]) -> NDArray[np.int64]:
    """Return wall-clock times of a process on its monotonic clock.

    The difference of the clocks is that of the first anchor: both are steered alike, so that it
    changes only where the wall clock is set. What two anchors differ by, some microseconds, is the
    time between reading one clock and the other; to follow it would make a drift of it.
    """
    first = who.anchors[0]
    moved: NDArray[np.int64] = wall_ns.astype(np.int64) - (first.wall_ns - first.monotonic_ns)
    return moved


def clock_was_set(who: Process) -> bool:
    """Tell whether the two clocks disagree at the end by more than at the start."""
    first, last = who.anchors[0], who.anchors[-1]
    change = (last.wall_ns - last.monotonic_ns) - (first.wall_ns - first.monotonic_ns)
    return abs(change) > _STEP_NS
