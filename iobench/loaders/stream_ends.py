"""The two ends of a running stream: the source of items and the maker of batches.

Each part of a stream is asked by the next one (``take``), by one thread at a time; between the
ends are the stages in threads (`iobench.loaders.stream_relay`).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from iobench.errors import SampleError, WorkerError
from iobench.loaders.stream_log import NOTHING, StreamPlace, Work
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.own_pipelines import Stream
    from iobench.loaders.stream_log import ThreadLog
    from iobench.samples import Sample

COLLATE: Final = Work(Kind.COLLATE, "", "collate")


class StreamEnded(Exception):
    """The stream was closed while a thread waited in it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """An item on its way, or with ``NOTHING`` in it the end of a pass."""

    value: Any
    place: StreamPlace


class StreamPart(Protocol):
    """Something that hands out items in order."""

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next item, made by the calling thread or by others.

        Raises
        ------
        IobenchError
            What the making of the item ended in, again each time.
        StreamEnded
            If the stream was closed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which batch needs an arriving sample first: known before the sample is made.

    Output ``o`` of a pass can leave when ``o + shuffle`` samples have arrived, or all of the pass.

    Parameters
    ----------
    first : int
        Number of the stream's first batch.
    shuffle : int
        Samples the shuffle buffer is filled to before each draw.
    batched : bool
        Whether batches arrive instead of samples.
    """

    first: int
    batch_size: int
    shuffle: int
    batched: bool

    def n_arrivals(self, n_samples: int) -> int:
        """Return how many samples, or batches where these arrive, so many samples are."""
        return -(-n_samples // self.batch_size) if self.batched else n_samples

    def place(self, epoch: int, item: int, arrival: int, before: int) -> StreamPlace:
        """Return where an arrival is, and which batch needs it."""
        output = before + max(arrival - max(self.shuffle - 1, 0), 0)
        batch = self.first + (output if self.batched else output // self.batch_size)
        return StreamPlace(epoch, item, arrival, batch, before)

    def later(self, place: StreamPlace, n: int) -> StreamPlace:
        """Return the place of the n-th arrival that an item spreads to."""
        return self.place(place.epoch, place.item, place.arrival + n, place.before)


class StreamSource:
    """The stream's items, pass after pass, counted; each pass ends with a parcel of nothing."""

    def __init__(self, stream: Stream, numbering: Numbering, makes: Work | None) -> None:
        self._stream = stream
        self._numbering = numbering
        self._makes = makes
        self._iterator: Iterator[Any] | None = None
        self._epoch = self._item = self._n_samples = self._arrival = self._before = 0

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next item, or the end of the pass."""
        place = self._numbering.place(self._epoch, self._item, self._arrival, self._before)
        value = log.run(self._makes, place, self._pull, None)
        if value is NOTHING:
            self._end_pass()
            return Parcel(NOTHING, place)
        n_samples = log.run(None, place, self._stream.n_samples, value)
        self._item += 1
        self._n_samples += n_samples
        self._arrival += self._numbering.n_arrivals(n_samples)
        return Parcel(value, place)

    def _pull(self, _: None) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._stream.items(self._epoch))
        return next(self._iterator, NOTHING)

    def _end_pass(self) -> None:
        if not self._n_samples:
            raise WorkerError(
                f"pass {self._epoch} of the stream has no sample ({self._item} items): nothing to "
                "load; see what its items are made from"
            )
        if self._n_samples != self._stream.n_samples_all:
            raise WorkerError(
                f"the items of pass {self._epoch} hold {self._n_samples} samples, expected "
                f"{self._stream.n_samples_all}: correct n_samples or n_samples_all of the stream"
            )
        self._iterator = None
        self._epoch += 1
        self._before += self._arrival
        self._item = self._n_samples = self._arrival = 0

    def close(self) -> None:
        """Close the items where they can be; nobody takes any more."""
        close_items(self._iterator)
        self._iterator = None


class Batcher:
    """Samples to batches, through the shuffle buffer; stacked by the thread that asks.

    The buffer is filled before each draw and drained at the end of a pass, so that every pass has
    each sample once; batches reach across passes.
    """

    def __init__(
        self, upstream: StreamPart, stream: Stream, numbering: Numbering, seed: int
    ) -> None:
        self._upstream = upstream
        self._spec = stream.spec
        self._numbering = numbering
        self._batched = stream.batched
        self._seed = seed
        self._next = numbering.first
        self._buffer: list[Parcel] = []
        self._arrived = 0
        self._draining = False
        self._epoch = 0
        self._random = random.Random(f"{seed}-0")

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next batch."""
        if self._batched:
            parcel = self._arrival(log)
            while parcel.value is NOTHING:
                parcel = self._arrival(log)
            log.run(None, parcel.place, self._check_batch, parcel)
            return parcel
        drawn = [self._draw(log) for _ in range(self._numbering.batch_size)]
        first = drawn[0].place
        place = StreamPlace(first.epoch, first.item, -1, self._next, -1)
        self._next += 1
        return Parcel(log.run(COLLATE, place, self._stack, drawn), place)

    def _arrival(self, log: ThreadLog) -> Parcel:
        parcel = self._upstream.take(log)
        if parcel.value is not NOTHING:
            self._arrived += 1
        elif parcel.place.arrival != self._arrived:
            what = "batches" if self._batched else "samples"
            raise WorkerError(
                f"pass {parcel.place.epoch} of the stream made {self._arrived} {what}, its items "
                f"were to become {parcel.place.arrival}: correct n_samples of the stream"
            )
        else:
            self._arrived = 0
        return parcel

    def _draw(self, log: ThreadLog) -> Parcel:
        buffer = self._buffer
        while True:
            while not self._draining and len(buffer) < max(self._numbering.shuffle, 1):
                parcel = self._arrival(log)
                if parcel.value is NOTHING:
                    self._draining = True
                    self._epoch = parcel.place.epoch + 1
                else:
                    buffer.append(parcel)
            if buffer:
                break
            self._draining = False
            self._random = random.Random(f"{self._seed}-{self._epoch}")
        chosen = self._random.randrange(len(buffer)) if len(buffer) > 1 else 0
        buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
        return buffer.pop()

    def _stack(self, drawn: list[Parcel]) -> dict[str, NDArray[Any]]:
        samples: list[Sample] = []
        for parcel in drawn:
            where = f"sample {parcel.place.arrival} of pass {parcel.place.epoch}"
            self._spec.check(parcel.value, where=where)
            samples.append(parcel.value)
        arrays = {name: np.stack([sample[name] for sample in samples]) for name in self._spec.names}
        samples.clear()  # their memory is given back inside the stage
        drawn.clear()
        return arrays

    def _check_batch(self, parcel: Parcel) -> None:
        where = f"batch of item {parcel.place.item} of pass {parcel.place.epoch}"
        sizes = {len(array) if array.ndim else 0 for array in parcel.value.values()}
        if len(sizes) != 1 or not 0 < sizes.pop() <= self._numbering.batch_size:
            raise SampleError(
                f"{where}: expected arrays of 1 to {self._numbering.batch_size} samples, all alike"
            )
        self._spec.check({name: array[0] for name, array in parcel.value.items()}, where=where)


def close_items(items: Iterator[Any] | None) -> None:
    """Let a generator end what it holds open; other iterators hold nothing."""
    if isinstance(items, Generator):
        items.close()
