"""Adapter to queues and futures: who takes a batch that another thread drew waited for it.

A thread that puts something into a queue, or brings the result of a future, hands on the batch that
it drew from a loader last, or was handed itself; whoever takes that object has this batch, and
waited for it. Which of the threads trains follows from their spans (`iobench.runs.received`).
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from iobench.recording import session
from iobench.recording.delivery_log import CONSUMER, THREADS, DeliveryLog
from iobench.recording.kinds import RECEIVED, Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Patches
    from iobench.recording.session import Recording

POLLED_NS: Final = 1_000_000
"""A thread that asks again no later than this after a time-out has waited all the time."""
NOTED_NS: Final = 50_000
"""Waits of a thread that trains are noted from this length on, whatever they are for."""


class Handed(NamedTuple):
    """A batch on its way from thread to thread; -1 is the end of a pass."""

    log: DeliveryLog
    batch: int
    maker: str
    origin: int  # the thread that drew it


_in_queues: Final[dict[int, tuple[ref[Any], dict[int, deque[Handed]]]]] = {}
"""By identity of queues that batches go through: what is in them, by identity of objects."""


def adapt(patches: Patches, module: Any) -> None:
    """Follow batches through queues and futures, and note where threads wait."""
    if module.__name__ == "queue":
        patches.put(module.Queue, "put", _putting)
        patches.put(module.Queue, "get", _taking)
    elif module.__name__ == "threading":
        patches.put(module.Condition, "wait", _blocking)  # of queues, futures and events, too
    elif module.__name__ == "selectors":  # where the thread of an event loop waits for all it has
        patches.put(module.DefaultSelector, "select", _blocking)
    elif module.__name__.endswith(".connection"):
        for name in ("_recv_bytes", "_poll"):  # of queues between processes, too
            patches.put(module.Connection, name, _blocking)
    else:
        patches.put(module.Future, "set_result", lambda original: _handing(original, once=True))
        patches.put(module.Future, "set_running_or_notify_cancel", _starting)
        patches.put(module.Future, "result", _taking)


def _recording() -> Recording | None:
    """Return what records the calling thread, unless it waits for a loader."""
    recording = session._current
    if recording is None or recording.closed or getattr(recording.waiting, "log", None) is not None:
        return None
    return recording


def _putting(original: Callable[..., None]) -> Callable[..., None]:
    handing = _handing(original)

    def put(self: Any, item: Any, *args: Any, **kwargs: Any) -> None:
        recording = session._current  # most threads never hold a batch
        if recording is None or getattr(recording.waiting, "held", None) is None:
            return original(self, item, *args, **kwargs)
        was_full = 0 < self.maxsize <= self._qsize()
        handing(self, item, *args, **kwargs)
        if was_full:  # until somebody made room
            _note_release(recording)
        return None

    return put


def _starting(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def start(self: Any) -> bool:
        starts, recording = original(self), _recording()
        handed_ns = None if recording is None else getattr(recording.waiting, "handed_ns", None)
        if recording is not None and handed_ns is not None:
            recording.waiting.handed_ns = None
            if recording.clock.now_ns() - handed_ns >= POLLED_NS:  # until somebody asked for more
                _note_release(recording)
        return starts

    return start


def _note_release(recording: Recording) -> None:
    """Note that until now the calling thread had nothing to do, since it was ahead: slack."""
    recorder = recording.recorder
    now_ns = recorder.clock.now_ns()
    recorder.emit(Kind.SUBMIT_QUEUE, now_ns, now_ns, detail=recorder.string(CONSUMER))


def _handing(original: Callable[..., None], *, once: bool = False) -> Callable[..., None]:
    def hand(self: Any, item: Any, *args: Any, **kwargs: Any) -> None:
        recording = session._current
        held = None if recording is None else getattr(recording.waiting, "held", None)
        if held is None or (recording := _recording()) is None:
            return original(self, item, *args, **kwargs)
        if isinstance(held, DeliveryLog):
            batch, maker = (-1, "") if held.left else held.delivered
            held = Handed(held, batch, maker, get_ident())
        if once or held.batch < 0:  # what the thread hands on later is something else
            recording.waiting.held = None
        handed = _items_of(self).setdefault(id(item), deque())
        handed.append(held)  # before anybody can take it
        try:
            original(self, item, *args, **kwargs)
        except BaseException:
            handed.remove(held)
            raise
        if once:
            recording.waiting.handed_ns = recording.clock.now_ns()
        return None

    return hand


def _taking(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: Any, *args: Any, **kwargs: Any) -> Any:
        item = original(self, *args, **kwargs)
        if not _in_queues:
            return item
        known = _in_queues.get(id(self))
        handed = None if known is None else known[1].get(id(item))
        if known is not None and handed:
            held = handed.popleft()
            if not handed:
                known[1].pop(id(item), None)
            if held.origin != get_ident() and (recording := _recording()) is not None:
                _note(recording, held, getattr(self, "not_empty", None))
        return item

    return take


def _blocking(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = _recording()
        if recording is None:
            return original(self, *args, **kwargs)
        waiting, now_ns = recording.waiting, recording.clock.now_ns
        requested_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            got_ns = now_ns()
            blocked: Any = getattr(waiting, "blocked", None)
            polls = blocked is not None and blocked[0] == id(self)
            polls = polls and requested_ns - blocked[2] <= POLLED_NS
            waiting.blocked = id(self), blocked[1] if polls else requested_ns, got_ns
            if got_ns - requested_ns >= NOTED_NS and getattr(waiting, "trains", False):
                recording.recorder.emit(Kind.BLOCKED, requested_ns, got_ns, flags=Flag.DETAIL)

    return wait


def _items_of(queue: Any) -> dict[int, deque[Handed]]:
    """Return what batches are in a queue, by identity of the objects that were put there."""
    number = id(queue)
    known = _in_queues.get(number)
    if known is None or known[0]() is not queue:
        gone = ref(queue, lambda _: _in_queues.pop(number, None))
        known = _in_queues.setdefault(number, (gone, {})) if known is None else (gone, {})
        _in_queues[number] = known
    return known[1]


def _note(recording: Recording, held: Handed, condition: object) -> None:
    """Note that the calling thread has another one's batch, and waited for that, if it is known."""
    recorder, log, waiting = recording.recorder, held.log, recording.waiting
    got_ns = recorder.clock.now_ns()
    blocked: Any = getattr(waiting, "blocked", None)
    waited = blocked is not None and got_ns - blocked[2] <= POLLED_NS
    waited = waited and (condition is None or blocked[0] == id(condition))
    waiting.held, waiting.blocked = held if held.batch >= 0 else None, None
    maker = THREADS if held.maker == CONSUMER else held.maker
    recorder.emit(
        Kind.WAIT, blocked[1] if waited else got_ns, got_ns, -1, -1, held.batch, log.epoch,
        log.number, recorder.string(RECEIVED), recorder.string(maker), Flag.DETAIL,
    )  # fmt: skip
    recorder.position(held.batch, log.epoch)
    recorder.own_ns += recorder.clock.now_ns() - got_ns
