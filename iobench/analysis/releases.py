"""Threads of a stream that had no room for what they make: until when, and who made room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.recording.span_keys import halves, key_of

if TYPE_CHECKING:
    from iobench.analysis.paths import Turns
    from iobench.profiles.contents import Profile

__all__ = ["find_releases", "releases_by_turn"]

Integers = NDArray[np.int64]


def find_releases(profile: Profile, submissions: NDArray[Any], lanes: Integers) -> Integers:
    """Return the releases among SUBMIT_QUEUE spans: those that name who released the thread.

    Parameters
    ----------
    profile : Profile
        For the names.
    submissions : ndarray of SPAN_DTYPE
        SUBMIT_QUEUE spans.
    lanes : ndarray of int64, sorted
        Process and thread of each lane of loading threads, as `lane_keys`.

    Returns
    -------
    ndarray of int64, shape (n_releases, 4)
        Lane that was held back, time of release, time it went on, lane that released it; the last
        is -1 where that was the training loop. By lane, then time.
    """
    named = submissions[submissions["detail"] != 0]
    if not len(named):
        return np.zeros((0, 4), dtype=np.int64)
    by_name = {
        (process, profile.processes[process].threads[thread]): lane
        for lane, (process, thread) in enumerate(map(halves, lanes.tolist()))
    }
    number = {key: lane for lane, key in enumerate(lanes.tolist())}
    rows = []
    for span in named:
        process = int(span["process"])
        lane = number.get(key_of(process, int(span["thread"])))
        if lane is not None:
            by = by_name.get((process, profile.strings[span["detail"]]), -1)
            rows.append((lane, int(span["start_ns"]), int(span["end_ns"]), by))
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)


def releases_by_turn(releases: Integers, turns: Turns) -> dict[int, tuple[int, int]]:
    """Return the time and the lane that released each turn whose thread was held back before it."""
    first = np.searchsorted(turns.lane, np.arange(int(turns.lane.max(initial=-1)) + 2))
    released = {}
    for lane, time_ns, end_ns, by in releases.tolist():
        low, high = int(first[lane]), int(first[lane + 1])
        turn = low + int(np.searchsorted(turns.start_ns[low:high], end_ns))
        if turn < high:
            released[turn] = (time_ns, by)
    return released
