"""The loader over a ring: what ``iobench.loader`` returns."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.cpus import available_cpus
from iobench.errors import OptionError, WorkerError
from iobench.files.crc32c import crc32c
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.pipeline import TARGET_SUFFIX
from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.loader_config import LoaderConfig
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.ready_run import ReadyRun
from iobench.loaders.ring.ring_run import RingRun
from iobench.loaders.ring.sample_source import SampleSource
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.free_data import KEPT, is_free
from iobench.recording.session import loop_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.loaders.contract import BatchSource, Present
    from iobench.loaders.device_copies import DeviceCopies
    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.loaders.ring.framework_loader import SampleFacts
    from iobench.loaders.ring.order import BatchOrder
    from iobench.loaders.ring.presenting import MeanStd
    from iobench.recording.facts import LoaderFacts
    from iobench.recording.recorder import Recorder
    from iobench.recording.session import Recording
    from iobench.samples import SampleSpec

DEPTH: Final = 4
"""Two that the loop holds (this batch, and the last one until then), two that are filled."""
MAX_THREADS: Final = 4
"""By default: a copy from the page cache is bound by memory long before that."""
MADE_BY: Final = "threads"
"""As `iobench.analysis.deliveries` reads it."""
UNREPLAYED: Final = "its batches are of the samples that were ready first (in_order=False)"
PATIENCE_S: Final = 2.0
"""How long a pass that is forgotten or interrupted waits for its threads."""


def usual_threads(depth: int) -> int:
    """Return how many threads read by default, into so many buffers."""
    return min(available_cpus(), MAX_THREADS, max(1, depth - 1))


class RingLoader:
    """Yields batches that reader threads have filled ahead, into buffers used again and again.

    A batch is valid as long as anyone holds it. Iterating again begins the next epoch.
    """

    def __init__(
        self,
        source: BatchSource,
        order: BatchOrder,
        *,
        threads: int | None = None,
        depth: int = DEPTH,
        present: Present | None = None,
        find_rank: Callable[[], tuple[int, int]] | None = None,
        device: DeviceCopies | None = None,
        dataset: Any = None,
        facts: SampleFacts | None = None,
        config: LoaderConfig | None = None,
    ) -> None:
        self.source = source
        self.dataset = source if dataset is None else dataset
        self.order = order
        self.threads = usual_threads(depth) if threads is None else threads
        self.depth = depth
        self.config = LoaderConfig() if config is None else config
        self.epoch = 0
        self._present = present
        self._device = device
        self._find_rank = find_rank
        self._facts = facts
        self._n_taken = 0  # batches of ``epoch`` that were handed out
        # Where these are not in order: their samples, and those that were drawn and not handed out.
        self._taken: dict[int, NDArray[np.int64]] = {}
        self._pending: list[int] = []
        self._is_resumed = self._is_begun = self._is_over = False
        self._recorded: tuple[Recording, LoaderFacts] | None = None
        # Buffers between two iterations; what does not fit is said here.
        self.idle: list[BufferPool] = []
        self.idle.append(self._pool())
        self._passes: weakref.WeakSet[RingPass] = weakref.WeakSet()
        # Where data are free: those that come again, and how many were handed on.
        self.first_batches: list[tuple[PlannedBatch, Any]] = []
        self.n_free = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "idle": None, "_passes": None, "_recorded": None, "_taken": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.idle, self._passes, self.first_batches = [], weakref.WeakSet(), []

    @property
    def spec(self) -> SampleSpec:
        """What one sample is; a batch has the samples as a further, first axis."""
        return self.source.spec

    @property
    def batch_size(self) -> int:
        """Samples a batch; the last of an epoch may have fewer."""
        return self.order.batch_size

    @property
    def normalisation(self) -> dict[str, MeanStd]:
        """What variables are normalised by: ``values * std + mean`` undoes it."""
        means: dict[str, MeanStd] = dict(getattr(self._inner, "means", {}))
        for name in self.spec.names:
            if (item := name.removesuffix(TARGET_SUFFIX)) in means:
                means.setdefault(name, means[item])
        return means

    @property
    def _inner(self) -> BatchSource:
        """What makes the samples, in whatever process."""
        return self.source.source if isinstance(self.source, ProcessSource) else self.source

    def __repr__(self) -> str:
        """Return what a batch holds, line by line."""
        order, config = self.order, self.config
        lines = [
            f"<{type(self).__name__}: {len(self)} batches of {self.batch_size} of "
            f"{order.n_samples} samples, {order.quality}"
            + ", those that are ready first"
            * (not config.in_order)
        ]
        width = max(map(len, self.spec.names))
        for variable in self.spec:
            kind = np.dtype(variable.dtype)
            name = str(config.dtype) if config.dtype is not None and kind.kind == "f" else kind.name
            shape = ", ".join(
                f"{dim}={length}" for dim, length in zip(variable.dims, variable.shape, strict=True)
            )
            units = f" [{variable.units}]" if variable.units else ""
            lines.append(f"  {variable.name:{width}}  {variable.role:6} {name} ({shape}){units}")
        if samples := self.config.samples:
            lines.append("  " + ", ".join(f"{name} {value}" for name, value in samples.items()))
        if means := self.normalisation:
            of = next((each.of for each in means.values() if each.of), "")
            by = f" by the statistics of {of}" if of else ""
            lines.append(f"  normalised{by}: {', '.join(means)}")
        if config.transform is not None:
            lines.append("  changed by a transform before they are handed out")
        if (stack := getattr(self._present, "stack", None)) is not None:
            lines.append(f"  handed out as ({stack})")
        return "\n".join([*lines, f"  {self.threads} threads, {self.depth} buffers>"])

    def coordinates(
        self, batch: int | None = None, epoch: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return where and when the samples of a batch are; by default of the latest one.

        Their numbers, of a window one for each offset; where patches begin, as ``y_start``; and
        the coordinates that each sample has for itself.
        """
        number = self._n_taken - 1 if batch is None else batch
        if not 0 <= number < len(self):
            what = "no batch was handed out" if batch is None else f"batch {batch} of {len(self)}"
            raise OptionError(f"coordinates: {what}")
        which, source = self.epoch if epoch is None else epoch, self._inner
        numbers = samples = self._samples_of(which, number)
        starts: dict[str, NDArray[Any]] = {}
        if isinstance(source, SampleSource):
            numbers, patches = source.items_of(samples), source.patches
            if patches is not None:
                corners = zip(patches.dims, patches.corners(samples, which).T, strict=True)
                starts = {f"{dim}_start": corner for dim, corner in corners}
        known = {} if self._facts is None else self._facts.coordinates(numbers)
        return {**known, "sample": numbers, **starts}

    def _samples_of(self, epoch: int, batch: int) -> NDArray[np.int64]:
        if self.config.in_order:
            return self.order.samples(epoch, batch)
        if epoch != self.epoch or batch not in self._taken:
            raise OptionError(
                f"coordinates: batch {batch} of epoch {epoch}: with in_order=False expected one "
                f"that this loader has handed out of epoch {self.epoch}"
            )
        return self._taken[batch]

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch, or those after where `load_state_dict` said.

        It begins with the first ``next``.
        """
        begun = RingPass(self)
        self._passes.add(begun)
        return begun

    # -- of a pass ----------------------------------------------------------------------------

    def new_log(self) -> DeliveryLog | None:
        """Return the log of another pass; None where nothing is recorded."""
        recording = loop_recording()
        if recording is None:
            return None
        if self._recorded is None or self._recorded[0] is not recording:
            facts = recording.add_loader(
                "native",
                f"{type(self).__module__}.{type(self).__qualname__}",
                type(self.dataset).__name__,
                threads=self.threads,
                prefetch=self.depth,
                batch_size=self.batch_size,
                unreplayed="" if self.config.in_order else UNREPLAYED,
            )
            self._recorded = recording, facts
        return DeliveryLog(recording, self._recorded[1])

    def begin(self, log: DeliveryLog | None = None) -> RingRun:
        """Return what makes the batches of the next iteration."""
        own = self.order.rank, self.order.world_size
        if self._find_rank is not None and (now := self._find_rank()) != own:
            raise OptionError(
                f"the loader was made for rank {own[0]} of {own[1]}, this process is rank "
                f"{now[0]} of {now[1]} now: make it after torch.distributed is initialised, "
                "or pass rank= and world_size="
            )
        if self._is_begun and not self._is_resumed:
            self.epoch += 1
        if not self._is_resumed:
            self._n_taken, self._pending = 0, []
        self._taken = {}
        self._is_begun, self._is_resumed, self._is_over = True, False, False
        if log is not None:
            log.epoch = self.epoch
        kind: Callable[..., RingRun] = RingRun
        if not self.config.in_order:
            kind = functools.partial(ReadyRun, new_memory=self._new_memory)
        return kind(
            self.source,
            self._batches(self.epoch, self._n_taken, log),
            self._pool(),
            threads=self.threads,
            ahead=self.depth,
            present=self._present,
            device=self._device,
            recorder=functools.partial(_recorder_of, log),
        )

    def _batches(self, epoch: int, first: int, log: DeliveryLog | None) -> Iterator[PlannedBatch]:
        order = self.order
        expect = self.source.expect if self.source.is_planned else None
        batches = order.batches(epoch, first, expect, self._pending)
        for place, samples in enumerate(batches, first):
            number = epoch * len(order) + place if log is None else log.recording.next_batch()
            yield PlannedBatch(number, epoch, samples, position=place)

    def took(self, batch: PlannedBatch | None, pending: Sequence[int] = ()) -> None:
        """Note which batch the loop got, None at the end, and samples that are pending after it."""
        if batch is None:
            self._is_over = self._n_taken == len(self)
        elif batch.epoch == self.epoch:
            self._n_taken, self._pending = batch.position + 1, [*pending]
            if not self.config.in_order:
                self._taken[batch.position] = np.asarray(batch.samples)

    def _pool(self) -> BufferPool:
        """Return buffers; none in which a batch of a parent process may be."""
        with suppress(IndexError):
            if (pool := self.idle.pop()).pid == os.getpid():
                return pool
        prepare = None if self._device is None else self._device.prepare
        new_memory = self._new_memory if self.config.in_order else None
        return BufferPool(
            self.spec, self.batch_size, depth=self.depth,
            prepare=prepare, new_memory=new_memory,
        )  # fmt: skip

    @property
    def _new_memory(self) -> Callable[[int], BatchMemory] | None:
        """What makes memory that the source fills; None for any."""
        return self.source.new_memory if isinstance(self.source, ProcessSource) else None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is of; its order depends on it.

        After `load_state_dict`, saying the epoch it is in anyway changes nothing.
        """
        if epoch < 0:
            raise OptionError(f"set_epoch({epoch}): expected 0 or more")
        if self._is_resumed and epoch == self.epoch:
            return
        self.epoch, self._n_taken, self._pending, self._taken = epoch, 0, [], {}
        self._is_begun = self._is_resumed = self._is_over = False

    def state_dict(self) -> dict[str, Any]:
        """Return where it is: after ``batches`` batches of ``epoch``.

        When the loop has come to the end of an epoch, that is the beginning of the next one. With
        it is what the order depends on, so that a loader of another one refuses it. With
        ``in_order=False`` some samples were begun, and others handed out before them: these are
        ``pending``, and come first where a loader goes on.
        """
        epoch, batches = (self.epoch + 1, 0) if self._is_over else (self.epoch, self._n_taken)
        pending = {} if self.config.in_order else {"pending": [*self._pending]}
        return {"epoch": epoch, "batches": batches, **pending, **self._identity()}

    def _identity(self) -> dict[str, int | bool | str]:
        order, means = self.order, self.normalisation
        names = ("seed", "shuffle", "n_samples", "batch_size", "drop_last", "world_size")
        identity = {**{name: getattr(order, name) for name in names}, **self.config.samples}
        if means:  # tells those numbers from others
            numbers = [
                np.ascontiguousarray(part).tobytes()
                for each in means.values()
                for part in (each.mean, each.std)
            ]
            text = f"{','.join(means)} by numbers {crc32c(b''.join(numbers)):08x}"
            identity["normalise"] = text
        return identity

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on after the batches that were handed out."""
        known = self._identity()
        for name in (*known, "split", "select", "patch", "normalise"):
            value = known.get(name)
            if state.get(name, value if name == "window" else None) != value:
                raise OptionError(
                    f"load_state_dict: state of another loader: {name} {state.get(name)}, here "
                    f"{value}"
                )
        epoch, batches = int(state.get("epoch", -1)), int(state.get("batches", -1))
        if epoch < 0 or not 0 <= batches <= len(self):
            raise OptionError(f"load_state_dict: epoch {epoch}, batch {batches} of {len(self)}")
        pending, n_all = state.get("pending") or [], self.order.n_samples
        if pending and self.config.in_order:
            raise OptionError(
                "load_state_dict: state of a loader with in_order=False, which passed over samples "
                f"{pending[:4]}; give in_order=False here, too"
            )
        is_known = all(isinstance(each, int) and 0 <= each < n_all for each in pending)
        if not is_known or len({*pending}) < len(pending):
            raise OptionError(
                f"load_state_dict: pending: expected samples below {n_all}, once each"
            )
        self.epoch, self._n_taken, self._pending, self._taken = epoch, batches, [*pending], {}
        self._is_resumed, self._is_over = True, False

    def close(self) -> None:
        """End all threads and let the buffers go; batches that are held stay valid."""
        for begun in list(self._passes):
            begun.close()
        self.idle.clear()
        if isinstance(self.source, ProcessSource):
            self.source.close()


def _recorder_of(log: DeliveryLog | None) -> Recorder | None:
    return None if log is None or log.recording.closed else log.recording.recorder


class RingPass:
    """What ``iter(loader)`` returns: ends its threads when exhausted, closed or forgotten.

    Nothing begins before the first batch is asked for: some libraries call ``iter`` to see whether
    it works, and the epoch may still be set after it.
    """

    def __init__(self, loader: RingLoader) -> None:
        self._loader = loader
        self._nbytes = loader.spec.nbytes
        self._starting = threading.RLock()  # another thread may close meanwhile
        self._is_over = False
        self._log: DeliveryLog | None = None
        self._run: RingRun | None = None
        self._n_taken = 0  # where data are free
        self._end: weakref.finalize[..., RingPass] | None = None

    def __iter__(self) -> RingPass:
        return self

    def __next__(self) -> Any:
        run = self._run
        if run is not None and os.getpid() != run.pid:
            raise WorkerError(
                "this iterator belongs to the process that was forked; call iter(loader) again"
            )
        if run is None and not self._is_over:
            self._log = self._loader.new_log()
            if self._log is not None:
                weakref.finalize(self, _leave, self._log)
        log = self._log
        if log is None or log.recording.closed:
            return self._take()[1]
        log.ask()
        try:
            batch, value = self._take()
        except BaseException as error:
            self._log = None
            if not log.recording.closed:
                log.end() if isinstance(error, StopIteration) else log.fail()
            raise
        if not log.recording.closed:
            log.deliver(batch.batch, nbytes=len(batch.samples) * self._nbytes, maker=MADE_BY)
        return value

    def _take(self) -> tuple[PlannedBatch, Any]:
        if not is_free():
            return self._next()
        kept = self._loader.first_batches
        if len(kept) < min(KEPT, len(self._loader)):
            kept.append(deepcopy(self._next()))  # the buffer is for others
        elif not self._is_over or self._run is not None:
            self._close(None)
        if self._n_taken == len(self._loader):
            self._loader.took(None)
            raise StopIteration
        batch, value = kept[self._n_taken % len(kept)]
        number = self._loader.n_free
        epoch = number // len(self._loader)
        self._loader.n_free, self._n_taken = number + 1, self._n_taken + 1
        if self._log is not None:
            self._log.epoch = epoch
        return replace(batch, batch=number, epoch=epoch), value

    def _next(self) -> tuple[PlannedBatch, Any]:
        try:
            run = self._run or self._started()
            taken = run.take()
        except Exception:
            self.close()
            raise
        except BaseException:  # Ctrl-C: whoever pressed it does not want to wait for a batch
            self._close(PATIENCE_S)
            raise
        if taken is None:
            if self._run is not None:  # not closed by another thread meanwhile
                self._loader.took(None)
            self.close()
            raise StopIteration
        batch, value = taken
        self._loader.took(batch, run.pending)
        device = self._loader._device
        return batch, value if device is None else device.receive(value)

    def _started(self) -> RingRun:
        with self._starting:
            if self._run is not None:
                return self._run
            if self._is_over:
                raise StopIteration
            self._is_over = True  # until the run is there
            run = self._loader.begin(self._log)
            self._end = weakref.finalize(self, _finish, run, self._loader.idle, PATIENCE_S)
            self._run = run
            run.start()  # from now on an interrupt finds what it has to end
            return run

    def close(self) -> None:
        """End the threads; batches that are held stay valid."""
        self._close(None)
        if self._log is not None and not self._log.waits:
            _leave(self._log)
            self._log = None

    def _close(self, patience_s: float | None) -> None:
        with self._starting:
            self._run, self._is_over = None, True
            end = None if self._end is None else self._end.detach()
        if end is not None:
            run, idle, _ = end[2]
            _finish(run, idle, patience_s)


def _finish(run: RingRun, idle: list[BufferPool], patience_s: float | None) -> None:
    if run.stop(patience_s) and not idle:  # else a thread may still come back to its buffers
        idle.append(run.pool)


def _leave(log: DeliveryLog) -> None:
    if not log.recording.closed:
        log.leave()
