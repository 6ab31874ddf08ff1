"""The loader over a ring: what ``iobench.loader`` returns."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.cpus import available_cpus
from iobench.errors import OptionError
from iobench.files.crc32c import crc32c
from iobench.loaders.pipeline import MOST_PLANNED
from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.contract import OwnMemory, PlannedSource, RingBatch, is_planned
from iobench.loaders.ring.normalising import NormalisedSource
from iobench.loaders.ring.origins import coordinates_of
from iobench.loaders.ring.passes import RingPass
from iobench.loaders.ring.recorded import RecordedLoader
from iobench.loaders.ring.ring_run import RingRun
from iobench.loaders.ring.telling import beneath, told
from iobench.loaders.windowed import TARGET_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from iobench.loaders.device_copies import DeviceCopies
    from iobench.loaders.ring.composed_source import SampleFacts
    from iobench.loaders.ring.contract import BatchSource, Present
    from iobench.loaders.ring.normalising import MeanStd
    from iobench.loaders.ring.order import BatchOrder
    from iobench.loaders.ring.recorded import RecordedPass
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec

DEPTH: Final = 4
"""Two that the training loop holds (this batch, and the last one until it is overwritten), two
that are filled meanwhile."""
MIN_DEPTH: Final = 3
MAX_THREADS: Final = 4
"""By default: a copy from the page cache is bound by memory long before that."""


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
        max_bytes: int | None = None,
        present: Present | None = None,
        find_rank: Callable[[], tuple[int, int]] | None = None,
        device: DeviceCopies | None = None,
        recorder: Recorder | None = None,
        why: str = "",
        dataset: Any = None,
        facts: SampleFacts | None = None,
        samples: Mapping[str, str] | None = None,
    ) -> None:
        if depth < MIN_DEPTH:
            raise OptionError(
                f"depth={depth}: expected {MIN_DEPTH} or more; a loop holds two batches, the last "
                "one until the next is there, and one has to be filled"
            )
        if threads is None:
            threads = usual_threads(depth)
            if device is not None:  # one reads while the other one's batch is copied
                threads = max(threads, 2)
        if threads < 1:
            raise OptionError(f"threads={threads}: expected 1 or more")
        self.source = source
        self.dataset = source if dataset is None else dataset
        self.order = order
        self.threads = threads
        self.depth = depth
        self.epoch = 0
        self._max_bytes = max_bytes
        self._present = present
        self._device = device
        self._find_rank = find_rank
        self._recorder = recorder
        self._why = why
        self._facts = facts
        self._samples = dict(samples or {})
        self._n_taken = 0  # batches of ``epoch`` that were handed out
        self._is_resumed = self._is_begun = self._is_over = False
        self._recorded = RecordedLoader(
            f"{type(self).__module__}.{type(self).__qualname__}",
            type(self.dataset).__name__,
            source.spec.nbytes,
            threads=threads,
            prefetch=depth,
            batch_size=order.batch_size,
        )
        self._idle = _IdlePool()
        self._idle.put(self._new_pool())  # so that what does not fit is said here
        self._passes: weakref.WeakSet[RingPass] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": None, "_passes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._idle, self._passes = _IdlePool(), weakref.WeakSet()
        self._idle.put(self._new_pool())

    @property
    def spec(self) -> SampleSpec:
        """What one sample is; a batch has the samples as a further, first axis."""
        return self.source.spec

    @property
    def batch_size(self) -> int:
        """Samples a batch; the last of an epoch may have fewer."""
        return self.order.batch_size

    @property
    def n_samples(self) -> int:
        """Samples of an epoch, of this rank."""
        n_batches = len(self.order)
        if not n_batches:
            return 0
        return (n_batches - 1) * self.batch_size + len(self.order.samples(0, n_batches - 1))

    @property
    def delivered(self) -> tuple[int, int]:
        """Number of the batch handed out last, counted over all epochs, and its epoch."""
        return self.epoch * len(self.order) + self._n_taken - 1, self.epoch

    def tell_spans(self, recorder: Recorder) -> bool:
        """Let reader threads note there what they do, from the next epoch on."""
        can = not isinstance(self.source, OwnMemory)
        self._recorder = recorder if can else None
        return can

    @property
    def choice(self) -> str:
        """What the loader decided by itself, in words; all of it from the first batch on."""
        ahead = f"{self.threads} threads, {self.depth} buffers"
        lines = [f"{ahead}: {self._why}" if self._why else ahead, *told(self.source)]
        return "; ".join(lines)

    @property
    def normalisation(self) -> dict[str, MeanStd]:
        """What variables are normalised by: ``values * std + mean`` undoes it.

        Targets of a window by their own names as well.
        """
        at: BatchSource | None = self.source
        while at is not None and not isinstance(at, NormalisedSource):
            at = beneath(at)
        if at is None:
            return {}
        found = dict(at.means)
        for name in self.spec.names:
            if (item := name.removesuffix(TARGET_SUFFIX)) in found:
                found.setdefault(name, found[item])
        return found

    def coordinates(
        self, batch: int | None = None, epoch: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return where and when the samples of a batch are."""
        number = self._n_taken - 1 if batch is None else batch
        if not 0 <= number < len(self):
            what = "no batch was handed out" if batch is None else f"batch {batch} of {len(self)}"
            raise OptionError(f"coordinates: {what}")
        which = self.epoch if epoch is None else epoch
        samples = self.order.samples(which, number)
        return coordinates_of(self.source, samples, which, self._facts)

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch, or those after where `load_state_dict` said.

        It begins with the first ``next``.
        """
        begun = RingPass(
            self._begin,
            receive=None if self._device is None else self._device.receive,
            taken=self._took,
            ended=self._idle.put_back,
            recorded=self._recorded.begin,
        )
        self._passes.add(begun)
        return begun

    def _begin(self, log: RecordedPass | None = None) -> RingRun:
        own = self.order.rank, self.order.world_size
        if self._find_rank is not None and (found := self._find_rank()) != own:
            raise OptionError(
                f"the loader was made for rank {own[0]} of {own[1]}, this process is rank "
                f"{found[0]} of {found[1]} now: make it after torch.distributed is initialised, "
                "or pass rank= and world_size="
            )
        if self._is_begun and not self._is_resumed:
            self.epoch += 1
        if not self._is_resumed:
            self._n_taken = 0
        self._is_begun, self._is_resumed, self._is_over = True, False, False
        if log is not None:
            log.of_epoch(self.epoch)
        return RingRun(
            self.source,
            self._batches(self.epoch, self._n_taken, log),
            self._idle.take() or self._new_pool(),
            threads=self.threads,
            ahead=self.depth,
            present=self._present,
            device=self._device,
            recorder=self._recorder,
            recorder_now=None if log is None else log.recorder,
        )

    def _batches(self, epoch: int, first: int, log: RecordedPass | None) -> Iterator[RingBatch]:
        order = self.order
        planned = self.source if is_planned(self.source) else None
        n_planned = max(1, MOST_PLANNED // order.batch_size)
        for place in range(first, len(order)):
            if isinstance(planned, PlannedSource) and (place - first) % n_planned == 0:
                places = range(place, min(place + n_planned, len(order)))
                drawn = np.concatenate([order.samples(epoch, each) for each in places])
                planned.expect(drawn, follows=place > first)
            number = epoch * len(order) + place if log is None else log.next_batch()
            yield RingBatch(number, epoch, order.samples(epoch, place), place)

    def _took(self, batch: RingBatch | None) -> None:
        if batch is None:
            self._is_over = self._n_taken == len(self)
        elif batch.epoch == self.epoch:
            self._n_taken = batch.position + 1

    def _new_pool(self) -> BufferPool:
        new_memory = self.source.new_memory if isinstance(self.source, OwnMemory) else None
        prepare = None if self._device is None else self._device.prepare
        return BufferPool(
            self.spec, self.batch_size, depth=self.depth,
            max_bytes=self._max_bytes, prepare=prepare, new_memory=new_memory,
        )  # fmt: skip

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is of; its order depends on it.

        After `load_state_dict`, saying the epoch it is in anyway changes nothing.
        """
        if epoch < 0:
            raise OptionError(f"set_epoch({epoch}): expected 0 or more")
        if self._is_resumed and epoch == self.epoch:
            return
        self.epoch, self._n_taken = epoch, 0
        self._is_begun = self._is_resumed = self._is_over = False

    def state_dict(self) -> dict[str, int | bool | str]:
        """Return where it is: after ``batches`` batches of ``epoch``.

        When the loop has come to the end of an epoch, that is the beginning of the next one. With
        it is what the order depends on, so that a loader of another one refuses it.
        """
        epoch, batches = (self.epoch + 1, 0) if self._is_over else (self.epoch, self._n_taken)
        return {"epoch": epoch, "batches": batches, **self._identity()}

    def _identity(self) -> dict[str, int | bool | str]:
        order = self.order
        return {
            "seed": order.seed,
            "shuffle": order.shuffle,
            "n_samples": order.n_samples,
            "batch_size": order.batch_size,
            "drop_last": order.drop_last,
            "world_size": order.world_size,
            **self._samples,
            **self._normalised(),
        }

    def _normalised(self) -> dict[str, str]:
        """Return what tells numbers that variables are normalised by from others, if they are."""
        means = self.normalisation
        numbers = [
            np.ascontiguousarray(part).tobytes()
            for each in means.values()
            for part in (each.mean, each.std)
        ]
        told = f"{','.join(means)} by numbers {crc32c(b''.join(numbers)):08x}"
        return {"normalise": told} if means else {}

    def load_state_dict(self, state: Mapping[str, int | bool | str]) -> None:
        """Make the next iteration go on after the batches that were handed out."""
        known = self._identity()
        for name in (*known, "split", "patch", "normalise"):
            value = known.get(name)
            if state.get(name, value if name == "window" else None) != value:
                raise OptionError(
                    f"load_state_dict: {name} was {state.get(name)}, is {value} now; the batches "
                    "would be others"
                )
        epoch, batches = int(state.get("epoch", -1)), int(state.get("batches", -1))
        if epoch < 0 or not 0 <= batches <= len(self):
            raise OptionError(f"load_state_dict: epoch {epoch}, batch {batches} of {len(self)}")
        self.epoch, self._n_taken = epoch, batches
        self._is_resumed, self._is_over = True, False

    def close(self) -> None:
        """End all threads and let the buffers go; batches that are held stay valid."""
        for begun in list(self._passes):
            begun.close()
        self._idle.discard()
        if isinstance(self.source, OwnMemory):
            self.source.close()


class _IdlePool:
    """Holds the buffers between two iterations; not the loader, which may be gone by then."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an iteration may end in the middle of a collection
        self._pool: BufferPool | None = None

    def take(self) -> BufferPool | None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and pool.pid != os.getpid():
            return None  # the parent's threads were at work in it when we were forked
        return pool

    def put(self, pool: BufferPool) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = pool
                return
        pool.discard()

    def put_back(self, run: RingRun) -> None:
        self.put(run.pool)

    def discard(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.discard()

    def __del__(self) -> None:
        self.discard()
