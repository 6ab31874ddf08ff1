"""Puts itself where a training asks grain for elements, and into grain's threads; and away again.

grain has no public hook that tells of a worker or of a single element. What is replaced are methods
of its classes and functions of its modules that it looks up by name each time.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from queue import Queue
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.patches import Patches
from iobench.jax.elements import (
    begin_pending,
    note_sample,
    open_element,
    pending,
    prefetched_for,
    prefetched_of,
    timed_stage,
    timed_transform,
)
from iobench.jax.user_iterators import derived_from, time_user_parts
from iobench.recording import activation
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording, loop_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.jax.elements import Pending
    from iobench.jax.grain_passes import GrainPass
    from iobench.recording.recorder import Recorder

GRAIN: Final = "grain._src.python"
PLACE: Final = "_iobench"
"""Where an iterator keeps its `GrainPass`."""
OURS: Final = "_iobench_times"
"""A mark of a function that stays where it is, inside one of grain's."""
THREADS: Final = "grain-"
"""How the names of grain's own threads begin."""

_lock: Final = threading.RLock()
_patches: Final = Patches()
_replaced: Final[dict[tuple[type, str], tuple[Any, Any]]] = {}
_depth = threading.local()


def install() -> None:
    """Record what pipelines of grain do that are iterated over from now on. Idempotent.

    Raises
    ------
    AttributeError, ImportError, TypeError
        If this version of grain is another one than is known. Then nothing is replaced.
    """
    with _lock:
        if _replaced:
            return
        try:
            _install()
        except BaseException:
            uninstall()
            raise


def uninstall() -> None:
    """Put everything back as it was; passes that go on are recorded to their end. Idempotent."""
    with _lock:
        _patches.take_back()
        while _replaced:
            (owner, name), (original, ours) = _replaced.popitem()
            if vars(owner).get(name) is ours:
                type.__setattr__(owner, name, original)


def _install() -> None:
    parts = ("data_loader", "dataset.dataset", "dataset.stats", "ipc.shared_memory_array")
    loader, dataset, stats, memory = (importlib.import_module(f"{GRAIN}.{each}") for each in parts)
    transformations = f"{GRAIN}.dataset.transformations"
    prefetch = importlib.import_module(f"{transformations}.prefetch")
    processes = importlib.import_module(f"{transformations}.process_prefetch")
    if dataset.is_in_free_threaded_python():
        raise TypeError("its workers are threads in a free-threaded Python")
    _patches.put(stats._DefaultStats, "record_self_time", _self_time)
    _patches.put(memory, "open_from_shm", _opened)
    _patches.put(prefetch, "_getitem", _getitem)
    _patches.put(prefetch, "_put_iterator_elements_in_buffer", _fill_from)
    # grain puts a function of its own around that of an iterator at a pipeline's end, for good.
    if not hasattr(prefetch.PrefetchDatasetIterator.__next__, OURS):
        _patches.put(prefetch.PrefetchDatasetIterator, "__next__", _next_prefetched)
    _patches.put(prefetch.PrefetchDatasetIterator, "_fill_buffer", _fill_buffer)
    _patches.put(prefetch.PrefetchDatasetIterator, "set_state", _set_prefetched_state)
    _patches.put(prefetch.ThreadPrefetchDatasetIterator, "start_prefetch", _start_thread)
    _patches.put(processes.ProcessPrefetchDatasetIterator, "start_prefetch", _start_process)
    _patches.put(loader.DataLoader, "__iter__", _iterated)
    _patches.put(dataset.MapDataset, "__iter__", _iterated)
    for each in _subclasses(dataset.IterDataset):
        _watch_iter(each)
    _watch_subclasses(dataset.IterDataset)


def _subclasses(owner: type) -> set[type]:
    return {owner}.union(*map(_subclasses, type.__subclasses__(owner)))


def _watch_iter(owner: type) -> None:
    original = vars(owner).get("__iter__")
    if original is not None and (owner, "__iter__") not in _replaced:
        _replace(owner, "__iter__", original, functools.wraps(original)(_iterated(original)))


def _replace(owner: type, name: str, original: Any, ours: Any) -> None:
    _replaced[owner, name] = original, ours
    type.__setattr__(owner, name, ours)


def _watch_subclasses(owner: type) -> None:
    """Replace the method of those that are yet to be defined, as grain itself does."""
    original: Any = vars(owner)["__init_subclass__"]

    def __init_subclass__(cls: type, /, **kwargs: Any) -> None:
        original.__func__(cls, **kwargs)
        with _lock:
            if _replaced:
                _watch_iter(cls)

    _replace(owner, "__init_subclass__", original, classmethod(__init_subclass__))


# -- iter(pipeline) -----------------------------------------------------------------------


def _iterated(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Any:  # of a class that may be pickled by value: it names no more
        return observed_iter(self, original)

    return __iter__


def observed_iter(dataset: Any, original: Callable[[Any], Any]) -> Any:
    """Return what the method returns; if there is a recording, what is asked of it goes there."""
    depth = getattr(_depth, "n", 0)
    if depth:
        return original(dataset)
    recording = None if _is_grains() else loop_recording()
    worker = _worker() if recording is None else None
    if recording is None and worker is None:
        return original(dataset)
    _depth.n = depth + 1
    now_ns = recording.clock.now_ns if recording is not None else int
    asked_ns = now_ns()
    try:
        iterator = original(dataset)
    finally:
        _depth.n = depth
    if recording is None:
        return _derive(iterator, _made, worker)
    from iobench.jax.grain_passes import GrainPass  # a script may ask for no pass at all

    return _derive(iterator, _waited, GrainPass(recording, dataset, asked_ns, now_ns()))


def _is_grains() -> bool:
    """Tell whether this thread, or process, is one of grain's own."""
    processes: Any = sys.modules.get(f"{GRAIN}.dataset.transformations.process_prefetch")
    if processes is not None and processes.is_in_worker_process():
        return True
    return threading.current_thread().name.startswith(THREADS)


def _worker() -> Any:
    """Return what records this process, if it is a worker and its thread the one that makes."""
    module: Any = sys.modules.get("iobench.jax.grain_worker")
    worker = module.this_worker() if module is not None else None
    return worker if worker is not None and worker.claim() else None


def _derive(iterator: Any, methods: Callable[[Any], dict[str, Any]], place: Any) -> Any:
    """Let an iterator tell when it is asked: one that cannot be derived from stays as it is."""
    recording = current_recording() if methods is _waited else None
    try:
        untold = time_user_parts(iterator)
    except Exception as error:  # noqa: BLE001 - a version of grain that is not known
        untold = [f"a pipeline that iobench does not know ({type(error).__name__}: {error})"]
    if recording is not None:
        for each in untold:
            recording.add_unseen(f"grain: what {each} does itself, beside waiting for threads")
    own: Any = type(iterator)
    try:
        iterator.__class__ = derived_from(own, methods)
        iterator.__dict__[PLACE] = place
    except (AttributeError, TypeError):
        if recording is not None:
            recording.add_unseen(f"grain: iterators of {own.__qualname__}")
    return iterator


def _waited(own: Any) -> dict[str, Any]:
    """Return the methods of an iterator that a loop of the training process asks."""

    def __next__(self: Any) -> Any:
        found: GrainPass = self.__dict__[PLACE]
        return found.wait_for(self, functools.partial(own.__next__, self))

    def set_state(self: Any, state: Any) -> Any:
        self.__dict__[PLACE].state_set()
        return own.set_state(self, state)

    def start_prefetch(self: Any) -> Any:
        found: GrainPass = self.__dict__[PLACE]
        if found.live and not found.is_inner:
            found.begun(self)
        return own.start_prefetch(self)

    found = {"__next__": __next__, "set_state": set_state, "start_prefetch": start_prefetch}
    return {name: each for name, each in found.items() if hasattr(own, name)}


def _made(own: Any) -> dict[str, Any]:
    """Return the methods of the iterator of a worker, which makes its elements."""

    def __next__(self: Any) -> Any:
        return self.__dict__[PLACE].take(functools.partial(own.__next__, self))

    return {"__next__": __next__}


# -- threads of grain ---------------------------------------------------------------------


def _self_time(original: Callable[..., Any]) -> Callable[..., Any]:
    def self_time(self: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is not None:
            timed = timed_transform(recorder, self)
            if timed is not None:
                return timed
        return original(self, **kwargs)

    return self_time


def _getitem(original: Callable[..., Any]) -> Callable[..., Any]:
    def getitem(stats: Any, parent: Any, index: int) -> Any:
        recorder = activation._active
        found = None if recorder is None else prefetched_for(stats)
        if recorder is None or found is None:
            return original(stats, parent, index)
        return found.make(recorder, index, lambda: original(stats, parent, index))

    return getitem


def _fill_buffer(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def fill_buffer(self: Any) -> None:
        recorder = activation._active
        if recorder is None:
            return original(self)
        most = self._next_buffered_index + self._target_prefetch_buffer_size - len(self._buffer)
        due = range(self._next_buffered_index, min(most, self._dataset_length))
        prefetched_of(self).submitted(due, recorder.clock.now_ns())
        return original(self)

    return fill_buffer


def _next_prefetched(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __next__(self: Any) -> Any:
        recorder = activation._active
        if recorder is None:
            return original(self)
        before = self._next_returned_index
        if self._target_prefetch_buffer_size > 0 and self._target_num_threads > 0:
            try:
                return original(self)
            finally:
                prefetched_of(self).taken(range(before, self._next_returned_index))
        if before == self._dataset_length:
            return original(self)  # there is none
        start_ns = recorder.clock.now_ns()
        try:
            with timed_stage(recorder, Kind.FUSED):
                return original(self)
        finally:
            note_sample(recorder.clock.now_ns() - start_ns)

    setattr(__next__, OURS, True)
    return __next__


def _set_prefetched_state(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_state(self: Any, state: Any) -> Any:
        if activation._active is not None:
            prefetched_of(self).forget()
        return original(self, state)

    return set_state


def _recorder() -> Recorder | None:
    """Return what a thread that is started now will write to, or may once a window opens."""
    recorder = activation._active
    if recorder is None and "iobench.jax.grain_passes" in sys.modules:
        recording = current_recording()
        recorder = None if recording is None else recording.recorder
    return recorder


class _Carrying(Queue[Any]):
    """A queue between two threads of grain: with each item goes what was written of it."""

    def _put(self, item: Any) -> None:
        recorder = activation._active
        found = pending()
        if recorder is not None:
            lane = recorder.lane()
            found.spans += lane.since(getattr(_depth, "mark", lane.mark()))
            _depth.mark = lane.mark()
        super()._put((item, found))
        begin_pending()

    def _get(self) -> Any:
        told: tuple[Any, Pending] = super()._get()
        pending().add(told[1])
        return told[0]


def _start_thread(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def start_prefetch(self: Any) -> None:
        if _recorder() is not None and self._prefetch_thread is None:
            before = self._buffer
            if type(before) is Queue and before.empty():
                self._buffer = _Carrying(before.maxsize)
        return original(self)

    return start_prefetch


def _fill_from(original: Callable[..., None]) -> Callable[..., None]:
    def put_iterator_elements_in_buffer(*args: Any, **kwargs: Any) -> None:
        recorder = _recorder()
        if recorder is None:
            return original(*args, **kwargs)
        lane = recorder.lane()
        lane.place(-1)
        lane.loading += 1
        _depth.mark = lane.mark()
        begin_pending()
        try:
            return original(*args, **kwargs)
        finally:
            lane.loading -= 1

    return put_iterator_elements_in_buffer


# -- processes of grain -------------------------------------------------------------------


def _start_process(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def start_prefetch(self: Any) -> None:
        passes: Any = sys.modules.get("iobench.jax.grain_passes")
        if passes is None or self._prefetch_process is not None:
            return original(self)
        found: GrainPass | None = passes.pass_of_worker(self._iter_parent)
        if found is None:
            return original(self)
        then = self._worker_init_fn
        self._worker_init_fn = found.start_of(self._iter_parent, then)
        try:
            original(self)
        finally:
            self._worker_init_fn = then
        found.worker_started(getattr(self._prefetch_process, "pid", None))
        return None

    return start_prefetch


def _opened(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def open_from_shm(struct: Any) -> Any:
        return open_element(activation._active, original, struct)

    return open_from_shm
