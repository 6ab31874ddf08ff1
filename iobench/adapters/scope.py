"""Where adapters time: which threads and stretches of code count as loading."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

from iobench.recording.kinds import Kind
from iobench.recording.outside import OutsideSpan, outside_lane, thread_lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.recording.recorder import Lane, Recorder

Where = Literal["loading", "everywhere"]

# None: not installed, so that a function somebody kept from before times nothing any more.
_where: Where | None = None

ELSEWHERE: ContextVar[list[tuple[int, int, int, int]] | None] = ContextVar(
    "iobench_elsewhere", default=None
)
"""Set while other threads work for a call that is timed: they write (kind, start, end, bytes)
here instead of spans of their own. Event loops and thread pools hand contexts on."""


def set_where(where: Where | None) -> None:
    """Say where adapters time; None for nowhere."""
    global _where
    _where = where


def where_now() -> Where | None:
    """Return where adapters time now."""
    return _where


def begin(
    recorder: Recorder,
    kind: int,
    label: str = "",
    with_cpu: bool = False,
    hiding: bool = True,
) -> OutsideSpan | None:
    """Return a span for a call that is about to be made, or None if it is not to be timed."""
    lane = lane_to_time(recorder, locks=kind == Kind.LOCK)
    return None if lane is None else OutsideSpan(lane, kind, label, with_cpu, hiding)


def lane_to_time(recorder: Recorder, *, locks: bool = False) -> Lane | None:
    """Return the thread's lane if a call about to be made is to be timed, else None.

    No other span says of a stage that is timed that it waits for ``locks``.
    """
    where = _where
    if where is None or ELSEWHERE.get() is not None:
        return None
    return outside_lane(recorder, where == "everywhere", locks)


@contextmanager
def loading() -> Iterator[None]:
    """Mark that the calling thread makes a batch meanwhile."""
    lane = thread_lane()
    if lane is None:
        yield
        return
    lane.loading += 1
    try:
        yield
    finally:
        lane.loading -= 1
