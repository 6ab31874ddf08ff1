"""``iter(loader)`` with a recording: torch's own iterator, made from a private copy of the loader.

The user's loader, dataset, samplers and functions stay as they are; what has to be put before them
goes into the copy, which nobody else sees.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import weakref
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import torch
import torch.utils.data.dataloader as dataloader
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

from iobench.adapters.installed import install
from iobench.recording.free_data import is_free
from iobench.recording.session import loop_recording
from iobench.recording.span_file import POSITION
from iobench.torch import device_moves
from iobench.torch.batch_recorder import batch_nbytes
from iobench.torch.free_batches import free_loader
from iobench.torch.observation import (
    FullBatches,
    KnownLoader,
    LocalObservation,
    Observation,
    WorkersObservation,
)
from iobench.torch.training_hooks import role_of_pass
from iobench.torch.worker_side import ObservedContext, WorkerCollate, WorkerSpec, WorkerStarter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iobench.recording.delivery_log import DeliveryLog
    from iobench.recording.session import Recording

pack_position: Final = POSITION.pack
PLACE: Final = "_iobench"
"""Where an iterator keeps its `Observation`."""
T_co = TypeVar("T_co", covariant=True)
TORCHS: Final = dataloader._BaseDataLoaderIter
TORCH: Final = dataloader.DataLoader
"""torch's own class, whatever a script puts in its place later."""

CONTEXT: Final = "_DataLoader__multiprocessing_context"
MAKER: Final = "_get_iterator"

# By identity: a subclass may compare its loaders as it likes.
_known: Final[dict[int, tuple[weakref.ref[Any], KnownLoader]]] = {}
# By recording and what is alike of loaders: those of one class that scripts make in loops.
_alike: Final[weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], FullBatches]]] = (
    weakref.WeakKeyDictionary()
)


def observed_iter(loader: Any, stock_iter: Callable[[Any], Iterator[Any]] | None = None) -> Any:
    """Return what ``stock_iter(loader)`` returns; if there is a recording, it goes there."""
    own_iter = getattr(TORCH.__iter__, "_iobench_original", TORCH.__iter__)
    stock_iter = stock_iter or own_iter
    if get_worker_info() is not None:
        return stock_iter(loader)
    recording = loop_recording()
    if recording is None:
        return stock_iter(loader)
    asked = loader
    if is_free() and (free := free_loader(loader, stock_iter, recording)) is not None:
        loader, stock_iter = free, own_iter
    began_ns = recording.clock.now_ns()
    device_moves.install()
    known = _known_loader(recording, loader)
    if loader is not asked:
        known.facts.name = type(asked.dataset).__name__
        known.facts.batch_size = asked.batch_size
    if torch.is_grad_enabled() and not known.facts.gradients:
        known.facts.gradients = True
        recording.write_facts()
    log = known.new_log()
    log.role = role_of_pass(recording, loader)
    log.ask()
    # Facts are written, which may take long where disks are busy: that is no wait of the loop's.
    recording.recorder.own_ns += max(0, log.requested_ns - began_ns)
    try:
        iterator = _start(loader, stock_iter, known, log)
    except BaseException:
        log.fail()
        raise
    log.resumed = getattr(iterator, "_num_yielded", 0) > 0  # of a StatefulDataLoader
    log.started()
    return iterator


def observed(original: Any) -> Any:
    """Return what is put in the place of a class's ``__iter__``."""

    def __iter__(self: Any) -> Any:
        return observed_iter(self, original)

    __iter__._iobench_original = original  # type: ignore[attr-defined]
    return __iter__


def _start(
    loader: Any,
    stock_iter: Callable[[Any], Iterator[Any]],
    known: KnownLoader,
    log: DeliveryLog,
) -> Any:
    reason = _misfit(loader)
    if reason is not None:
        known.note_unseen(f"workers: {reason}")
        return _with_waits(stock_iter(loader), known, log)
    if not loader.num_workers:
        return _observe_maker(stock_iter(loader), loader, known, log)
    persistent = loader.__dict__.get("_iterator") if loader.persistent_workers else None
    if persistent is None:
        return _observe_worked(loader, stock_iter, known, log)
    before = observation_of(persistent)
    if before is None:
        known.note_unseen("workers: they were started before the recording")
    else:
        before.start_round(known, log)  # before torch submits its first batches
    return _with_waits(stock_iter(loader), known, log)


def _with_waits(iterator: Iterator[Any], known: KnownLoader, log: DeliveryLog) -> Iterator[Any]:
    before = observation_of(iterator)
    if before is None:
        return observe_waits(iterator, Observation(known, log))
    before.start_round(known, log)
    return iterator


def _observe_maker(iterator: Any, loader: Any, known: KnownLoader, log: DeliveryLog) -> Any:
    recording = known.recording
    state = getattr(iterator, "__dict__", {})
    if not isinstance(iterator, TORCHS) or "_dataset_fetcher" not in state:
        known.note_unseen(f"samples: {type(iterator).__qualname__} is not torch's own iterator")
        return _with_waits(iterator, known, log)
    observation = LocalObservation(known, log, state, batches=_makes_batches(loader))
    if not known.full.begun:
        known.full.begun = True
        install()
    _derive(iterator, _Made, observation)
    is_due = observation.now_ns() >= observation.full.due_ns
    if observation.pins or recording.digests or is_due:
        observation.watch_collate(True)
    else:
        kind: Any = type(iterator)
        iterator.__class__ = _making_whole(kind)
    return iterator


def _observe_worked(
    loader: Any,
    stock_iter: Callable[[Any], Iterator[Any]],
    known: KnownLoader,
    log: DeliveryLog,
) -> Any:
    accelerator = getattr(torch, "accelerator", torch.cuda)
    pins = bool(loader.pin_memory and accelerator.is_available())  # as torch decides it
    observation = WorkersObservation(known, log, pins=pins)
    try:
        copy, context = _private_copy(loader, observation)
    except KeyError as error:
        known.note_unseen(f"workers: torch {torch.__version__} is not known: it has no {error}")
        return _with_waits(stock_iter(loader), known, log)
    # The copy may be changed by torch's method: what it keeps is the user's loader's as well.
    hooked = dict(copy.__dict__)
    try:
        iterator = stock_iter(copy)
        attributes = getattr(iterator, "__dict__", {})
        attributes.update({name: loader for name, value in attributes.items() if value is copy})
    finally:
        loader.__dict__.update(
            {name: value for name, value in copy.__dict__.items() if hooked.get(name) is not value}
        )
    queue = attributes.get("_worker_result_queue")
    if not isinstance(iterator, TORCHS) or getattr(queue, "log", None) is not observation:
        what = "queues" if context.foreign else type(iterator).__qualname__
        known.note_unseen(f"workers: their {what} are not of torch's or multiprocessing's own kind")
        return _with_waits(iterator, known, log)
    _derive(iterator, _Worked, observation)
    observation.iterator = weakref.ref(iterator)
    workers = attributes["_workers"]
    pids = [process.pid for process in workers]
    own = getattr(workers[0], "_start_method", None)
    # By then the default method is fixed.
    known.facts.start_method = str(own or multiprocessing.get_start_method())
    known.facts.worker_pids.extend(pid for pid in pids if pid is not None)
    known.recording.write_facts()
    return iterator


def _private_copy(loader: Any, observation: WorkersObservation) -> tuple[Any, ObservedContext]:
    """Return a loader like the user's, with what observes put before what that one has."""
    kind: Any = type(loader)
    copy = object.__new__(kind)
    copy.__dict__.update(loader.__dict__)
    state, recording = copy.__dict__, observation.recording
    context = ObservedContext(state[CONTEXT] or torch.multiprocessing, observation)
    spec = WorkerSpec(
        run=recording.run.path,
        rank=recording.job.rank,
        detail=recording.detail,
        unit_costs=dict(recording.facts.unit_costs),
        batches=_makes_batches(loader),
        digests=recording.digests,
        started_ns=recording.clock.now_ns(),
        keep_nbytes=recording.recorder.rotation.keep_nbytes,
        loop=recording.recorder.path,
    )
    drawn = "batch_sampler" if spec.batches else "sampler"
    if not isinstance(state[drawn], dataloader._InfiniteConstantSampler):  # asked for its class
        state[drawn] = _Sampler(state[drawn], observation)
    state["collate_fn"] = WorkerCollate(state["collate_fn"])
    state["worker_init_fn"] = WorkerStarter(spec, state["worker_init_fn"])
    state[CONTEXT] = context
    return copy, context


def _makes_batches(loader: Any) -> bool:
    return bool(getattr(loader, "_auto_collation", loader.batch_sampler is not None))


def _misfit(loader: Any) -> str | None:
    """Return why this loader cannot be hooked into, None if it can."""
    kind = type(loader)
    if not isinstance(loader, TORCH):
        return f"{kind.__module__}.{kind.__qualname__} is not torch's DataLoader"
    if MAKER in loader.__dict__ or getattr(kind, MAKER, None) is not getattr(TORCH, MAKER, None):
        return f"{kind.__qualname__} makes iterators of its own"
    if hasattr(kind, "__del__") or any(vars(each).get("__slots__") for each in kind.__mro__):
        return f"{kind.__qualname__} has __slots__ or __del__, so that no copy can stand for it"
    return None


def _known_loader(recording: Recording, loader: Any) -> KnownLoader:
    entry = _known.get(id(loader))
    if entry is not None and entry[0]() is loader and entry[1].recording is recording:
        return entry[1]
    dataset = getattr(loader, "dataset", None)
    sampler = getattr(loader, "sampler", None)
    workers = int(getattr(loader, "num_workers", 0))
    kind = type(loader)
    facts = recording.add_loader(
        "torch",
        f"{kind.__module__}.{kind.__qualname__}",
        "" if dataset is None else type(dataset).__qualname__,
        workers=workers,
        prefetch=int(getattr(loader, "prefetch_factor", None) or 0) if workers else 0,
        batch_size=_batch_size(loader),
        gradients=torch.is_grad_enabled(),
        iterable=isinstance(dataset, IterableDataset),
        shuffles=isinstance(sampler, RandomSampler) or bool(getattr(sampler, "shuffle", False)),
    )
    alike = _alike.setdefault(recording, {})
    known = KnownLoader(
        recording, facts, alike.setdefault((type(dataset), *facts.identity), FullBatches())
    )
    number = id(loader)
    _known[number] = (weakref.ref(loader, lambda _: _known.pop(number, None)), known)
    return known


def _batch_size(loader: Any) -> int | None:
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        # Without running any code of the user's.
        size = getattr(owner, "__dict__", {}).get("batch_size")
        if size is None:
            size = inspect.getattr_static(owner, "batch_size", None)
        if type(size) is int:
            return size
    return None


class DataLoader(torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]
    """``torch.utils.data.DataLoader`` in every respect: arguments, batches, order, errors.

    With a recording (`iobench.record`, ``iobench run``) what its workers do is recorded: every
    batch from the sampler to the training loop, with its samples, by batch and worker. Without
    one it is torch's own loader and nothing more.
    """

    __signature__ = inspect.signature(torch.utils.data.DataLoader)

    def __iter__(self) -> Any:
        """Return torch's iterator over the batches."""
        return observed_iter(self)


class _Sampler:
    """Stands before a sampler of the user's, and has what that has; each draw is recorded."""

    def __init__(self, behind: Any, observation: WorkersObservation) -> None:
        self._behind = behind
        self._observation = observation

    def __len__(self) -> int:
        return len(self._behind)

    def __iter__(self) -> Iterator[Any]:
        return self._draws(iter(self._behind))

    def _draws(self, drawn: Iterator[Any]) -> Iterator[Any]:
        now_ns = self._observation.recorder.clock.now_ns
        while True:
            start_ns = now_ns()
            try:
                index = next(drawn)
            except StopIteration:
                return
            self._observation.draw(start_ns)
            yield index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


# -- torch's own iterators, made to tell what the training loop waits for ---
#
# An iterator gets a class derived from its own, of the same name: everything it had is there, and
# whoever looks into it finds what torch put there.


def observation_of(iterator: Any) -> Observation | None:
    """Return what was noted of an iterator before."""
    result: Observation | None = getattr(iterator, "__dict__", {}).get(PLACE)
    return result


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
    return type(own.__name__, (ours, own), {**names, "__slots__": ()})


class _Waited:
    """An iterator that nothing else is known of: only the waits for it are recorded."""

    def __next__(self) -> Any:
        observation: Observation = self.__dict__[PLACE]
        return observation.wait_for(super().__next__)  # type: ignore[misc]


class _Worked(_Waited):
    """The iterator of a loader with worker processes."""

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
