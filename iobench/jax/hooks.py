"""Waits for batches of grain's pipelines, recorded where a training loop iterates over them.

grain has no public hook: ``__iter__`` of its classes is replaced, and gives an iterator of a class
derived from its own. Which batch grain's threads and worker processes work on is not recorded; what
adapters time there is.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.patches import Hooks, Patches
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.pass_names import frames_above, role_by_name
from iobench.recording.session import loop_recording
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from iobench.recording.facts import LoaderFacts
    from iobench.recording.session import Recording

GRAIN: Final = "grain._src.python"
PASS: Final = "_iobench_pass"  # where an iterator keeps its `GrainPass`
THREADS: Final = "grain-"  # how the names of grain's own threads begin
LABEL: Final = "grain"
UNSEEN: Final = (
    "which batch threads and worker processes of grain work on; copies of arrays that compiled "
    "functions are given"
)
PROCESS: Final = "ProcessPrefetchIterDataset"

_depth = threading.local()
# By the identity of a pipeline: itself, its recording, what is noted of it, passes so far.
_known: Final[dict[int, tuple[weakref.ref[Any], Recording, LoaderFacts, list[int]]]] = {}


def _begin(patches: Patches) -> None:
    loader = importlib.import_module(f"{GRAIN}.data_loader")
    dataset = importlib.import_module(f"{GRAIN}.dataset.dataset")
    for owner in (loader.DataLoader, dataset.MapDataset, *_subclasses(dataset.IterDataset)):
        _watch(owner)
    patches.put(dataset.IterDataset, "__init_subclass__", _watching)


_hooks: Final = Hooks(_begin)
install, uninstall = _hooks.install, _hooks.uninstall


def _subclasses(owner: type) -> set[type]:
    return {owner}.union(*map(_subclasses, type.__subclasses__(owner)))


def _watching(original: Any) -> Any:
    def __init_subclass__(cls: type, /, **kwargs: Any) -> None:
        original(cls, **kwargs)
        if _hooks:
            _watch(cls)

    return __init_subclass__


def _watch(owner: Any) -> None:
    if "__iter__" in vars(owner):
        _hooks.put(owner, "__iter__", _observed)


def _observed(original: Any) -> Any:
    def __iter__(self: Any) -> Any:  # of a class that may be pickled by value: it names no more
        return observed_iter(self, original)

    return __iter__


def observed_iter(dataset: Any, original: Callable[[Any], Any]) -> Any:
    """Return what ``__iter__`` returns; its waits are recorded where there is a recording."""
    depth = getattr(_depth, "n", 0)
    recording = None if depth or _is_grains() else loop_recording()
    if recording is None:
        return original(dataset)
    _depth.n = depth + 1
    requested_ns = recording.clock.now_ns()
    try:
        iterator = original(dataset)
    finally:
        _depth.n = depth
    own: Any = type(iterator)
    try:
        iterator.__class__ = _derived(own)
        iterator.__dict__[PASS] = GrainPass(recording, dataset, requested_ns)
    except (AttributeError, TypeError):
        recording.add_unseen(f"grain: iterators of {own.__qualname__}")
    return iterator


def _is_grains() -> bool:
    """Return whether this thread, or process, is one of grain's own."""
    processes: Any = sys.modules.get(f"{GRAIN}.dataset.transformations.process_prefetch")
    if processes is not None and processes.is_in_worker_process():
        return True
    return threading.current_thread().name.startswith(THREADS)


@functools.cache
def _derived(own: Hashable) -> Any:
    """Return a class of the same name that records; of one base alone, as its layout must be."""
    kind: Any = own

    def __next__(self: Any) -> Any:
        return self.__dict__[PASS].wait_for(self, functools.partial(kind.__next__, self))

    def set_state(self: Any, state: Any) -> Any:
        self.__dict__[PASS].resumed = True
        return kind.set_state(self, state)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {
        each.__name__: each for each in (__next__, set_state) if hasattr(kind, each.__name__)
    }
    return type(kind)(kind.__name__, (kind,), {**names, "__slots__": (), **methods})


class GrainPass:
    """Records one pass over a pipeline from its first batch on."""

    def __init__(self, recording: Recording, dataset: Any, requested_ns: int) -> None:
        self.resumed = False
        self._recording, self._dataset = recording, dataset
        self._times_ns = requested_ns, recording.clock.now_ns()
        self._log: DeliveryLog | None = None

    def wait_for(self, iterator: Any, take: Callable[[], Any]) -> Any:
        """Return what the function returns, and record the wait for it."""
        recording = self._recording
        outer = getattr(recording.waiting, "log", None)
        if recording.closed or (outer is not None and not outer.yields):
            return take()  # the latter is the work of another loader
        log = self._log = self._log or self._begin(iterator)
        return log.opaque_wait(take, LABEL, handed_on_nbytes, batch=recording.next_batch())

    def _begin(self, iterator: Any) -> DeliveryLog:
        recording, dataset = self._recording, self._dataset
        facts, passes = _noted(recording, dataset)
        log = DeliveryLog(recording, facts, epoch=passes[0])
        passes[0] += 1
        frames = frames_above()
        log.role = log.role or role_by_name(dataset, frames) or role_by_name(iterator, frames)
        log.resumed = self.resumed
        log.began(*self._times_ns)
        weakref.finalize(iterator, _leave, recording, log).atexit = False
        return log


def _leave(recording: Recording, log: DeliveryLog) -> None:
    if not recording.closed:
        log.leave()


def _noted(recording: Recording, dataset: Any) -> tuple[LoaderFacts, list[int]]:
    """Return what is noted of a pipeline in a recording, and how many passes it had."""
    number, kind = id(dataset), type(dataset)
    known = _known.get(number)
    if known is not None and known[0]() is dataset and known[1] is recording:
        return known[2], known[3]
    settings: dict[str, Any] = {"name": ""}
    try:
        settings = loader_settings(dataset)
    except Exception as error:  # noqa: BLE001 - a version of grain that is not known
        recording.add_unseen(f"settings of a pipeline of grain: {type(error).__name__}: {error}")
    facts = recording.add_loader(
        "grain", f"{kind.__module__}.{kind.__qualname__}", unseen=[UNSEEN], **settings
    )
    reference = weakref.ref(dataset, lambda _: _known.pop(number, None))
    _known[number] = (reference, recording, facts, passes := [0])
    return facts, passes


def loader_settings(dataset: Any) -> dict[str, Any]:
    """Return what `LoaderFacts` has of a ``DataLoader``, ``IterDataset`` or ``MapDataset``."""
    part = getattr(dataset, "_dataset", dataset)  # of a DataLoader
    size, workers, threads = None, 0, 0
    while True:  # from the last part of a pipeline on, by the first of several parents
        name = type(part).__name__
        parents: Any = getattr(part, "_datasets", None) or getattr(part, "_parents", ())
        if name in {"BatchMapDataset", "BatchIterDataset"}:
            size = int(part._batch_size) * (size or 1)
        elif name == "InterleaveIterDataset":
            workers = sum(type(each).__name__ == PROCESS for each in parents)
        elif name == PROCESS:
            workers = workers or 1
        elif name == "PrefetchIterDataset" and not workers:  # else they are those of a worker
            threads += int(part._read_options.num_threads)
        if not parents or not isinstance(parents, list | tuple):
            break
        part = parents[0]
    name = type(getattr(part, "_source", part)).__name__
    return {"name": name, "batch_size": size, "workers": workers, "threads": threads}
