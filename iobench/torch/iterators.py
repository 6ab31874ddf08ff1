"""torch's own iterators, made to tell what the training loop waits for.

An iterator gets a class derived from its own, of the same name: everything it had is there, and
whoever looks into it finds what torch put there.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from iobench.recording.kinds import Kind
from iobench.recording.span_file import POSITION
from iobench.torch.batch_recorder import batch_nbytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.torch.observation import LocalObservation, Observation, WorkersObservation

pack_position: Final = POSITION.pack
PLACE: Final = "_iobench"
"""Where an iterator keeps its `Observation`."""


def observation_of(iterator: Any) -> Observation | None:
    """Return what was noted of an iterator before."""
    result: Observation | None = getattr(iterator, "__dict__", {}).get(PLACE)
    return result


def observe_workers(iterator: Any, observation: WorkersObservation) -> None:
    """Let torch's iterator tell all it can that has worker processes."""
    _derive(iterator, _Worked, observation)
    observation.iterator = weakref.ref(iterator)


def observe_maker(iterator: Any, observation: LocalObservation) -> None:
    """Let torch's iterator tell all it can that makes batches itself."""
    _derive(iterator, _Made, observation)
    is_due = observation.now_ns() >= observation.full.due_ns
    if observation.pins or observation.recording.digests or is_due:
        observation.watch_collate(True)
    else:
        kind: Any = type(iterator)
        iterator.__class__ = _making_whole(kind)


def observe_waits(iterator: Iterator[Any], observation: Observation) -> Iterator[Any]:
    """Return an iterator that tells when it is waited for, the same one if that can be."""
    try:
        _derive(iterator, _Waited, observation)
    except (TypeError, AttributeError):  # of a generator, or with slots
        return _WaitsOnly(iterator, observation)
    return iterator


def _derive(iterator: Any, ours: type, observation: Observation) -> None:
    own: Any = type(iterator)
    iterator.__class__ = _derived(ours, own)
    iterator.__dict__[PLACE] = observation
    observation.armed = True


@functools.cache
def _derived(ours: Any, own: Any) -> Any:
    names = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {
        name: _saving(getattr(own, name), kind)
        for name, kind in ours.saves.items()
        if hasattr(own, name)
    }
    return type(own.__name__, (ours, own), {**names, "__slots__": (), **methods})


def _saving(original: Any, kind: Kind) -> Any:
    """Return a method of torchdata's iterators that is recorded."""

    def method(self: Any) -> Any:
        with self.__dict__[PLACE].saving(kind):
            return original(self)

    return functools.wraps(original)(method)


class _Worked:
    """The iterator of a loader with worker processes."""

    saves: ClassVar = {
        "_get_main_state": Kind.SERIALISE,
        "_take_snapshot": Kind.SERIALISE,
        "state_dict": Kind.CHECKPOINT,
    }

    def __next__(self) -> Any:
        observation: WorkersObservation = self.__dict__[PLACE]
        return observation.wait_for(super().__next__)  # type: ignore[misc]

    def _get_data(self) -> Any:
        got = super()._get_data()  # type: ignore[misc]
        self.__dict__[PLACE].got = got[0]
        return got

    def _process_data(self, data: Any, worker: int, *more: Any) -> Any:
        observation: WorkersObservation = self.__dict__[PLACE]
        now_ns = observation.recorder.clock.now_ns
        entered_ns = now_ns()
        in_order = self.__dict__.get("_in_order", True)
        number = self.__dict__["_rcvd_idx"] - 1 if in_order else observation.got
        observation.taken = number, worker
        observation.spent(now_ns() - entered_ns)
        return super()._process_data(data, worker, *more)  # type: ignore[misc]

    def _shutdown_workers(self) -> None:
        observation: WorkersObservation | None = self.__dict__.get(PLACE)
        if observation is None or self.__dict__.get("_shutdown", True) or not observation.live:
            super()._shutdown_workers()  # type: ignore[misc]
            return
        observation.log.abandon()
        start_ns = observation.recorder.clock.now_ns()
        super()._shutdown_workers()  # type: ignore[misc]
        observation.workers_ended(start_ns)


class _Made:
    """The iterator of a loader without workers: the training loop's thread makes the batches."""

    saves: ClassVar = {"state_dict": Kind.CHECKPOINT}

    def _next_index(self) -> Any:
        observation: LocalObservation = self.__dict__[PLACE]
        if not observation.live:
            return super()._next_index()  # type: ignore[misc]
        start_ns = observation.recorder.clock.now_ns()
        return observation.begin(super()._next_index(), start_ns)  # type: ignore[misc]

    def __next__(self) -> Any:
        observation: LocalObservation = self.__dict__[PLACE]
        if not observation.live:
            return super().__next__()  # type: ignore[misc]
        data = observation.take(super().__next__)  # type: ignore[misc]
        if observation.full.due_ns and not observation.pins:
            kind: Any = type(self)
            self.__class__ = _making_whole(kind)
            observation.watch_collate(False)
        return data


@functools.cache
def _making_whole(batch_class: Any) -> Any:
    """Return the class whose batches are recorded as a whole: it runs for the tiniest ones."""
    own: Any = batch_class.__mro__[batch_class.__mro__.index(_Made) + 1]
    take = own.__next__

    def __next__(self: Any) -> Any:
        observation: LocalObservation = self._iobench
        now_ns, log, recorder = observation.now_ns, observation.log, observation.recorder
        entered_ns, lane = now_ns(), recorder.lane()
        # A thread that has written nothing yet may be that of a fork.
        if entered_ns >= observation.full.due_ns or not lane.end or not log.begin_whole(entered_ns):
            _make_in_full(self, batch_class, observation)
            return self.__next__()
        batch = observation.recording.next_batch()
        lane.position = pack_position(-1, batch, log.epoch)
        hushes = observation.full.hushes
        lane.loading += 1
        lane.quiet += hushes
        requested_ns = now_ns()
        try:
            data = take(self)
        except BaseException as error:
            log.fail_whole(requested_ns)
            if isinstance(error, StopIteration):
                log.end()
            else:
                _make_in_full(self, batch_class, observation)
                log.fail()
            raise
        finally:
            lane.loading -= 1
            lane.quiet -= hushes
        held_ns = now_ns()
        waiting = observation.recording.waiting
        waiting.own_ns = getattr(waiting, "own_ns", 0) + requested_ns - entered_ns
        log.hold(batch, requested_ns, held_ns, batch_nbytes(data), lane)
        waiting.own_ns = now_ns() - held_ns
        recorder.own_ns += waiting.own_ns + requested_ns - entered_ns
        return data

    names = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    ours = {"__next__": __next__, "_next_index": own._next_index}
    return type(own.__name__, (batch_class,), {**names, "__slots__": (), **ours})


def _make_in_full(iterator: Any, batch_class: Any, observation: LocalObservation) -> None:
    iterator.__class__ = batch_class
    observation.watch_collate(True)


class _Waited:
    """An iterator that nothing else is known of: only the waits for it are recorded."""

    saves: ClassVar[dict[str, Kind]] = {}

    def __next__(self) -> Any:
        observation: Observation = self.__dict__[PLACE]
        return observation.wait_for(super().__next__)  # type: ignore[misc]


class _WaitsOnly:
    """Stands before an iterator whose class cannot be derived from."""

    def __init__(self, iterator: Iterator[Any], observation: Observation) -> None:
        self._behind = iterator
        observation.armed = True
        self._observation = observation

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._observation.wait_for(self._behind.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)
