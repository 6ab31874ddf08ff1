"""Samples made for a conversion: plan, windows of decoded chunks, rows; in order, in threads.

A window is as many samples as one row of source chunks spans, or as many as fit where samples
share no chunk; it lies in one part of the samples (a shard) or covers whole parts. Samples that
share nothing are made one by one.
"""

from __future__ import annotations

import math
import operator
import os
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from iobench.chunks.decoded_chunks import chunk_cache_nbytes
from iobench.chunks.sampled_variable import row_groups, runs
from iobench.datasets.contract import sample_steps
from iobench.datasets.positions import FileIndexes, chosen
from iobench.errors import OptionError, StorageError, WorkerError, in_one_line
from iobench.files.atomic import free_nbytes, storage_errors
from iobench.files.memory import own_pages, pages_used_again
from iobench.files.open_files import read_into
from iobench.recording.epoch_reads import EpochReads
from iobench.recording.mounts import on_mount, read_mounts
from iobench.samples import handed_on_nbytes
from iobench.sizes import mebibytes
from iobench.stores.plan import chunk_samples
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from typing import BinaryIO, TypeVar

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import Place
    from iobench.chunks.sampled_variable import SampledVariable
    from iobench.datasets.contract import Dataset, SampleIndex, Where
    from iobench.samples import Sample
    from iobench.stores.plan import StoreRequest

    T = TypeVar("T")
    FileSamples = tuple[tuple[SampledVariable, ...], NDArray[np.intp], NDArray[np.int64]]

JOB_NBYTES: Final = 8 << 20  # chunks of about so many decoded bytes are read and decoded by one job
LEAST_BAND_NBYTES: Final = 64
WRITTEN_NBYTES: Final = 8 << 20
STACK_NBYTES: Final = 1 << 20  # of samples that are made, measured and written at once
MOST_N_SAMPLES: Final = 64  # of samples that are made one by one; of others `MANY_N_SAMPLES`
MANY_N_SAMPLES: Final = 2048
COPIES: Final = 4  # of a small sample that is made: read, decoded, preprocessed, side by side
ENOUGH: Final = 1.05  # times that chunks are decoded in the mean; less is not worth a larger window
MOST_PASSES: Final = 4  # chunks are decoded more often only where --passes allows it
LEAST_WINDOW: Final = 32 << 20  # where samples share no chunk: all threads have work


# ---- the plan


class SampledFiles:
    """The files and indexes of samples, in the order they are made in, and their variables."""

    def __init__(self, dataset: Any, where: Sequence[Where]) -> None:
        self._dataset, self._where = dataset, where
        first = dataset.chunks_of(where[0]) if hasattr(dataset, "chunks_of") and where else ()
        self.variables: tuple[SampledVariable, ...] = tuple(dict.fromkeys(v for v, _ in first))
        self.rows: NDArray[np.int64] = np.empty((len(where), 1), dtype=np.int64)
        if isinstance(where, FileIndexes):
            self.rows = where.rows
        elif self.variables:
            n_dims = max((n for v in self.variables for n in v.sample_dims), default=0) + 1
            self.rows = np.array([each[: 1 + n_dims] for each in where], dtype=np.int64)
        self._known = {int(self.rows[0, 0]): self.variables} if self.variables else {}
        # Bytes of the decoded arrays of a sample, and the most that decoding a chunk takes.
        self.sample_nbytes = sum(each.sample_nbytes for each in self.variables)
        self.chunk_nbytes = max((each.chunk_nbytes for each in self.variables), default=0)

    def __bool__(self) -> bool:
        return bool(self.variables)

    def by_file(self, start: int = 0, stop: int | None = None) -> Iterator[FileSamples]:
        """Yield variables, places and indexes of the samples of each file between two places."""
        rows = self.rows[start:stop]
        order, starts = row_groups(rows[:, :1])
        for members in np.split(order, starts[1:]) if len(order) else ():
            number = int(rows[members[0], 0])
            if number not in self._known:
                chunks = self._dataset.chunks_of(self._where[start + int(members[0])])
                self._known[number] = tuple(dict.fromkeys(each for each, _ in chunks))
            yield self._known[number], members, rows[members, 1:]

    def shared_nbytes(self) -> tuple[NDArray[np.int64], NDArray[np.intp], int]:
        """Return the decoded bytes that samples on both sides of each place share, edges, and all.

        Edges are the places between samples that follow each other in no row of chunks, whichever
        other samples there are.
        """
        shared = np.zeros(len(self.rows) + 2, dtype=np.int64)
        is_inside = np.zeros(len(self.rows) + 1, dtype=bool)
        total = 0
        for variables, members, indexes in self.by_file():
            alike: dict[tuple[Place, Place], list[SampledVariable]] = {}
            for variable in variables:
                alike.setdefault((variable.sample_dims, variable.lengths), []).append(variable)
            for some in alike.values():
                nbytes = sum(variable.row_nbytes for variable in some)
                rows = some[0].chunk_rows(indexes)
                order, starts = row_groups(rows)
                first, last = order[starts], order[[*(starts[1:] - 1), len(order) - 1]]
                np.add.at(shared, members[first] + 1, nbytes)
                np.add.at(shared, members[last] + 1, -nbytes)
                total += nbytes * len(first)
                if rows.shape[1]:
                    is_same = (np.diff(members) == 1) & (np.diff(rows, axis=0) == 0).all(axis=1)
                    is_inside[members[1:][is_same]] = True
        return np.cumsum(shared)[:-1], np.flatnonzero(~is_inside), total

    def nbytes(self) -> tuple[int, int]:
        """Return what is stored and what is decoded of all chunks of the samples, each once."""
        stored = decoded = 0
        for variables, _, indexes in self.by_file():
            for variable in variables:
                rows = [row for row, _ in variable.parts(indexes)]
                stored += sum(map(variable.stored_nbytes, rows))
                decoded += len(rows) * variable.row_nbytes
        return stored, decoded


def cut_stacks(
    lengths: Sequence[int],
    stack_length: int,
    edges: NDArray[np.intp] | None = None,
    at_once: int = 1,
) -> list[int]:
    """Return where stacks of samples of parts end: at edges if they can, at multiples of a number.

    That depends on nothing but its part.
    """
    ends: list[int] = []
    every = np.empty(0, dtype=np.intp) if edges is None else edges
    start = 0
    for stop in np.cumsum(lengths, dtype=np.int64).tolist():
        known = every[(every - start) % at_once == 0] if at_once > 1 else every
        while start < stop:
            end = min(start + stack_length, stop)
            place = int(np.searchsorted(known, end, side="right")) - 1
            if end < stop and place >= 0 and known[place] > start:
                end = int(known[place])
            ends.append(end)
            start = end
    return ends


def plan_windows(
    across: NDArray[np.int64], ends: Sequence[int], cuts: Sequence[int], *, most: int, least: int
) -> list[tuple[int, int]]:
    """Return start and stop of windows over parts that end at ``ends``, in stacks up to ``cuts``.

    A window ends where the fewest bytes are shared: at a cut within the part that it begins in, or,
    if it begins where a part does, at the end of any part.
    """
    result: list[tuple[int, int]] = []
    bounds, places = np.asarray([0, *ends]), np.asarray(cuts)
    while (start := result[-1][1] if result else 0) < bounds[-1]:
        first, last = np.searchsorted(places, [start, start + most], side="right")
        stops = places[first : max(first + 1, last)]
        is_within = stops <= bounds[np.searchsorted(bounds, start, side="right")]
        if start in bounds:
            is_within |= np.isin(stops, bounds)
        stops = stops[is_within]
        cost = across[stops]
        enough = stops[(cost == 0) & (stops - start >= least)]
        result.append((start, int((enough if len(enough) else stops[cost == cost.min()][::-1])[0])))
    return result


class WindowPlan(msgspec.Struct, frozen=True):
    """How samples are made."""

    numbers: NDArray[np.int64]  # of the samples
    files: SampledFiles
    cuts: Sequence[int]  # where stacks end
    windows: Sequence[tuple[int, int]] = ()  # start and stop of each; none: one by one
    times: float = 1.0  # how often chunks are decoded in the mean
    memory_nbytes: int = 0  # of windows; of larger ones bands of ``band_nbytes`` go to scratch
    band_nbytes: int = 0
    scratch_nbytes: int = 0  # of the largest window there
    n_decoding: int = 1  # threads that decode at once
    is_filled_ahead: bool = False  # memory holds the next window beside one that is written


# ---- windows


class FilledWindow(NamedTuple):
    """The decoded samples of a window."""

    start: int
    stop: int
    arrays: dict[str, NDArray[Any]]  # in memory
    # or in scratch: where boxes of the arrays of all its samples lie, their start and shape
    bands: dict[str, list[tuple[int, Place, Place]]]
    pages: dict[str, NDArray[np.uint8]]


class WindowDecoder:
    """Decodes the chunks of a window, each once, to memory or to a file without a name."""

    def __init__(
        self,
        plan: WindowPlan,
        tally: Tally,
        folder: Path,
        run: Callable[[Iterable[Callable[[], None]]], None],
    ) -> None:
        self._files, self._plan, self._tally = plan.files, plan, tally
        self._folder, self._run = folder, run
        self._pages: list[dict[str, NDArray[np.uint8]]] = []  # of windows that are over
        self._scratch: BinaryIO | None = None
        if plan.scratch_nbytes:
            with storage_errors(folder, resumable=True):
                self._scratch = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def close(self) -> None:
        """Give its memory and its space back."""
        self._pages.clear()
        if self._scratch is not None:
            self._scratch.close()

    def fill(self, start: int, stop: int) -> FilledWindow:
        """Decode the samples of a window, in pages of one that is over."""
        n, pages = stop - start, self._pages.pop() if self._pages else {}
        window = FilledWindow(start, stop, {}, {}, pages)
        samples = list(self._files.by_file(start, stop))
        fits = n * self._files.sample_nbytes <= self._plan.memory_nbytes
        every, offset = [], 0
        for number, each in enumerate(self._files.variables):
            whole = [((0,) * len(each.shape), each.shape)]
            nbytes = max(self._plan.band_nbytes // n, LEAST_BAND_NBYTES)
            for begin, shape in whole if fits else _boxes(each, nbytes):
                array = _memory(pages, each.name if fits else "", (n, *shape), each.dtype)
                jobs = self._jobs(samples, number, array, begin)
                if fits:
                    window.arrays[each.name] = array
                    every.append(jobs)
                    continue
                self._run(jobs)
                data = array.reshape(-1).view(np.uint8).data
                self._run(
                    partial(self._write, data[at : at + WRITTEN_NBYTES], offset + at)
                    for at in range(0, len(data), WRITTEN_NBYTES)
                )
                window.bands.setdefault(each.name, []).append((offset, begin, shape))
                offset += len(data)
        self._run(chain.from_iterable(every))
        if not fits:  # samples are read back into memory of their own
            pages.clear()
        return window

    def give_back(self, window: FilledWindow) -> None:
        """Let the memory of a window serve a later one."""
        self._pages.append(window.pages)

    def _jobs(
        self, samples: Sequence[FileSamples], number: int, target: NDArray[Any], start: Place
    ) -> Iterator[Callable[[], None]]:
        """Yield what fills a box of one variable of samples, from ``start``: some chunks each."""
        stop = tuple(map(operator.add, start, target.shape[1:]))
        for variables, members, indexes in samples:
            variable = variables[number]
            stacks = variable.stacks(start, stop)
            each_nbytes = max(1, variable.row_nbytes // max(1, len(stacks)))
            size = max(1, JOB_NBYTES // each_nbytes)
            lengths = np.array(variable.lengths, dtype=np.int64)
            rows = []
            for row, which in variable.parts(indexes):
                inside = indexes[which][:, variable.sample_dims] % lengths
                rows.append((row, list(runs(members[which], inside))))
            job: list[tuple[list[Place], Any]] = []
            # Rows last: chunks of several lie side by side in a file, and are read at once.
            for places, (row, parts) in product(stacks, rows):
                job.append(([variable.place(row, place) for place in places], parts))
                if len(job) >= size:
                    yield partial(self._put, variable, job, target, start)
                    job = []
            if job:
                yield partial(self._put, variable, job, target, start)

    def _put(
        self,
        variable: SampledVariable,
        job: Sequence[tuple[list[Place], Any]],
        target: NDArray[Any],
        origin: Place,
    ) -> None:
        with self._tally.timed("read"):
            is_cut = variable.variable.is_cut
            left, nbytes = variable.fill(job, target, origin) if is_cut else (job, 0)
            stored = variable.read([place for places, _ in left for place in places])
        nbytes += sum(len(each) for each in stored if each is not None)
        self._tally.add_nbytes("read", nbytes)
        with self._tally.timed("decode"):
            contents = deque(stored)
            del stored
            for places, parts in left:
                some = [contents.popleft() for _ in places]
                variable.put(places, some, target, origin, parts)

    def _write(self, data: memoryview, offset: int) -> None:
        assert self._scratch is not None
        with storage_errors(self._folder, resumable=True):
            while len(data):
                count = os.pwrite(self._scratch.fileno(), data, offset)
                data, offset = data[count:], offset + count

    def rows(self, window: FilledWindow, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of samples side by side, by their places in the order of all."""
        first, last = start - window.start, stop - window.start
        if not window.bands:
            return {name: array[first:last] for name, array in window.arrays.items()}
        bands = window.bands
        return {each.name: self._read(each, bands, first, last) for each in self._files.variables}

    def _read(
        self, variable: SampledVariable, bands: dict[str, Any], first: int, last: int
    ) -> NDArray[Any]:
        assert self._scratch is not None
        rows = np.empty((last - first, *variable.shape), dtype=variable.dtype)
        for offset, start, shape in bands[variable.name]:
            is_whole = shape == variable.shape
            band = rows if is_whole else np.empty((last - first, *shape), dtype=variable.dtype)
            begin = offset + first * math.prod(shape) * variable.dtype.itemsize
            data, end = band.reshape(-1).view(np.uint8).data, begin + band.nbytes
            with storage_errors(self._folder, resumable=True):
                if read_into(self._scratch.fileno(), [data], begin, end) < end:
                    raise StorageError(f"{self._folder}: what was written to scratch there is gone")
            if not is_whole:
                box = [slice(a, a + length) for a, length in zip(start, shape, strict=True)]
                rows[(slice(None), *box)] = band
        return rows


def _memory(
    pages: dict[str, NDArray[np.uint8]], name: str, shape: Place, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return an array in the pages of a name, in new ones where these are too few."""
    nbytes = math.prod(shape) * dtype.itemsize
    if name not in pages or pages[name].size < nbytes:
        pages.pop(name, None)
        pages[name] = own_pages(nbytes)
    return pages[name][:nbytes].view(dtype).reshape(shape)


def _boxes(variable: SampledVariable, nbytes: int) -> Iterator[tuple[Place, Place]]:
    """Yield start and shape of boxes of a sample's array: whole chunks, of about so many bytes."""
    lengths = list(map(min, variable.steps, variable.shape))
    for axis in reversed(range(len(lengths))):
        n_steps = max(1, nbytes // max(1, math.prod(lengths) * variable.dtype.itemsize))
        lengths[axis] = min(variable.shape[axis], lengths[axis] * n_steps)
        if lengths[axis] < variable.shape[axis]:
            break
    starts = (range(0, n, max(1, k)) for n, k in zip(variable.shape, lengths, strict=True))
    for start in product(*starts):
        ends = zip(start, lengths, variable.shape, strict=True)
        yield start, tuple(min(length, n - a) for a, length, n in ends)


def is_in_memory(folder: Path) -> bool:
    """Tell whether files of a folder are in memory, as on a tmpfs."""
    return on_mount(folder, read_mounts()).reach == "memory"


# ---- rows


class SampleStack(msgspec.Struct, frozen=True, eq=False):
    """Some samples side by side."""

    numbers: Sequence[int]  # of the samples
    rows: dict[str, NDArray[Any]]  # a row each
    figures: Any = None  # what the producer's `finish` found out about them

    def __len__(self) -> int:
        return len(self.numbers)


class SampleProducer:
    """Makes the samples of a dataset; a context manager, which ends its threads.

    Stacks, and the windows they are made in, begin at multiples of ``at_once`` in their part.
    """

    def __init__(
        self,
        dataset: Dataset,
        index: SampleIndex,
        *,
        workers: int,
        memory_nbytes: int,
        tally: Tally | None = None,
        finish: Callable[[SampleStack], SampleStack] | None = None,
        scratch: Path | None = None,
        passes: int = MOST_PASSES,
        is_over: Callable[[], bool] | None = None,
        notice: Callable[[str], None] | None = None,
        at_once: int = 1,
    ) -> None:
        self._dataset, self._index = dataset, index
        self._steps = sample_steps(dataset)
        self._tally = tally or Tally()
        self._finish, self._is_over, self._notice = finish, is_over, notice
        self._memory_nbytes, self._passes = memory_nbytes, passes
        self._folder = scratch or Path(tempfile.gettempdir())
        # It depends neither on memory nor on threads, so that what is summed stack by stack is
        # the same whatever these are.
        is_chunked = bool(SampledFiles(dataset, index.where[:1]))
        most = MANY_N_SAMPLES if is_chunked else MOST_N_SAMPLES
        length = min(most, STACK_NBYTES // max(1, index.spec.nbytes))
        # Samples of which so many are stored in a chunk are handed on by whole chunks.
        self._at_once = at_once
        self._stack_length = max(1, length // at_once) * at_once
        self._is_as_decoded = is_chunked and getattr(dataset, "keeps_decoded", False)
        self._held = 0  # bytes that making a sample took at the most
        is_safe = bool(getattr(dataset, "thread_safe", False))
        self._workers = max(1, workers) if is_safe else 1
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="iobench-make")
        self._until_closed = ExitStack()
        self._until_closed.enter_context(pages_used_again(memory_nbytes))

    def __enter__(self) -> SampleProducer:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._until_closed.close()

    def plan(self, parts: Sequence[Sequence[int]]) -> WindowPlan:
        """Return the windows in which samples of parts are made; refuse too little memory."""
        numbers = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        files = SampledFiles(self._dataset, chosen(self._index.where, numbers.tolist()))
        lengths = list(map(len, parts))
        if not files:
            cuts = cut_stacks(lengths, self._stack_length, None, self._at_once)
            return WindowPlan(numbers, files, cuts)
        across, edges, total = files.shared_nbytes()
        cuts = cut_stacks(lengths, self._stack_length, edges, self._at_once)
        chunk, one, memory = files.chunk_nbytes, max(1, files.sample_nbytes), self._memory_nbytes
        # A sample is always taken, whatever its size: bands of it are decoded.
        together = 0 if self._at_once == 1 else self._at_once * one
        if chunk + together > memory:
            and_stored = f", {self._at_once} samples {together}" if together else ""
            raise OptionError(
                f"--memory {mebibytes(memory)} is too little for {self._dataset.name}:"
                f" a chunk takes {chunk} bytes as it is decoded{and_stored}; the smallest that "
                f"works is --memory {mebibytes(chunk + together)}"
            )
        nbytes = self._stack_length * self._index.spec.nbytes
        stacks = 0 if self._is_as_decoded else self._ahead(nbytes) * nbytes
        left = memory - min(stacks, memory - chunk - together)
        n_decoding = max(1, min(self._workers, left // 2 // max(1, chunk)))
        band_nbytes = max(chunk, left - n_decoding * chunk)
        window_nbytes = max(one, band_nbytes)
        ends = np.cumsum(lengths).tolist()

        def planned(nbytes: int) -> tuple[list[tuple[int, int]], float]:
            most, least = nbytes // one, max(1, LEAST_WINDOW // one)
            result = plan_windows(across, ends, cuts, most=most, least=least)
            again = int(across[[stop for _, stop in result[:-1]]].sum()) if result[1:] else 0
            return result, 1 + again / max(1, total)

        windows, times = planned(window_nbytes)
        halves, halves_times = planned(max(one, window_nbytes // 2))
        is_ahead = len(windows) > 1 and halves_times <= times and one <= window_nbytes // 2
        windows = halves if is_ahead else windows
        free = 0 if is_in_memory(self._folder) else free_nbytes(self._folder) or 0
        if times > ENOUGH and free > window_nbytes:
            windows, times = min((windows, times), planned(free), key=lambda each: each[1])
        if times > self._passes:
            raise OptionError(
                f"--memory {mebibytes(memory)}: chunks of {self._dataset.name} are "
                f"decoded {times:.1f} times, for neither memory nor --scratch {self._folder} "
                f"holds a window; give more of either, or --passes {math.ceil(times)}"
            )
        in_memory = max(window_nbytes, STACK_NBYTES)
        sizes = [(stop - start) * one for start, stop in windows]
        scratch = max((size for size in sizes if size > in_memory), default=0)
        return WindowPlan(
            numbers, files, cuts, windows, times, in_memory, band_nbytes, scratch, n_decoding,
            is_ahead and not scratch,
        )  # fmt: skip

    def _ahead(self, nbytes: int) -> int:
        """Return how many stacks of so many bytes are made ahead."""
        return max(1, min(self._workers + 1, self._memory_nbytes // 4 // max(1, nbytes)))

    def stacks(self, parts: Sequence[Sequence[int]]) -> Generator[SampleStack, None, None]:
        """Yield the samples of parts in order; a stack is of one part, used before the next."""
        plan = self.plan(parts)
        spans = list(zip([0, *plan.cuts], plan.cuts, strict=False))
        if plan.files:
            yield from self._by_windows(plan, spans)
            return
        stacks = [plan.numbers[a:b].tolist() for a, b in spans]
        for some in stacks[:1]:  # what a sample takes only making it tells
            yield self._pool.submit(self._made_whole, some).result()
        ahead = self._ahead(self._stack_length * max(COPIES * self._index.spec.nbytes, self._held))
        yield from self._in_order((partial(self._made_whole, some) for some in stacks[1:]), ahead)

    def _by_windows(
        self, plan: WindowPlan, spans: Sequence[tuple[int, int]]
    ) -> Generator[SampleStack, None, None]:
        if plan.times > ENOUGH and self._notice is not None:
            self._notice(
                f"chunks are decoded {plan.times:.1f} times on average: neither --memory "
                f"{mebibytes(self._memory_nbytes)} nor --scratch {self._folder} holds the "
                "samples that share them"
            )
        gate = threading.BoundedSemaphore(plan.n_decoding)

        def gated(job: Callable[[], None]) -> None:
            with gate:
                job()

        def run(jobs: Iterable[Callable[[], None]]) -> None:
            for _ in self._in_order((partial(gated, job) for job in jobs), 2 * self._workers):
                pass

        decoder = WindowDecoder(plan, self._tally, self._folder, run)
        self._until_closed.callback(decoder.close)
        ahead = self._ahead(self._stack_length * self._index.spec.nbytes)
        left = deque(spans)
        waiting = deque(plan.windows)
        begun: Future[FilledWindow] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="iobench-fill") as filling:
            while waiting or begun is not None:
                begun = begun or filling.submit(decoder.fill, *waiting.popleft())
                window, begun = begun.result(), None
                if waiting and plan.is_filled_ahead:
                    begun = filling.submit(decoder.fill, *waiting.popleft())
                jobs = []
                while left and left[0][0] < window.stop:
                    a, b = left.popleft()
                    rows = partial(decoder.rows, window, a, b)
                    jobs.append(partial(self._from_window, rows, plan.numbers[a:b].tolist()))
                yield from self._in_order(jobs, ahead)
                decoder.give_back(window)

    def _in_order(self, jobs: Iterable[Callable[[], T]], ahead: int) -> Generator[T, None, None]:
        """Yield what jobs return, of which so many are begun ahead, each taken as it is needed."""
        pending: deque[Future[T]] = deque()
        try:
            for job in jobs:
                pending.append(self._pool.submit(job))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _from_window(
        self, take: Callable[[], dict[str, NDArray[Any]]], numbers: Sequence[int]
    ) -> SampleStack:
        rows = take()
        if self._is_as_decoded:
            first = {name: array[0] for name, array in rows.items()}
            self._index.spec.check(first, where=f"{self._dataset.name} sample {numbers[0]}")
            with self._tally.timed("preprocess", sum(array.nbytes for array in rows.values())):
                return self._finished(SampleStack(numbers, rows))
        where = chosen(self._index.where, numbers)
        with self._tally.timed("preprocess"):
            samples = []
            for place, each in enumerate(where):
                arrays = {name: array[place, ...] for name, array in rows.items()}
                with self._in_one_line("preprocess", numbers[place]):
                    samples.append(self._dataset.preprocess(arrays, each))
        self._tally.add_nbytes("preprocess", sum(map(_nbytes, samples)))
        return self._stacked(numbers, samples)

    def _made_whole(self, numbers: Sequence[int]) -> SampleStack:
        """Make samples one by one; fewer than there are where time is up."""
        samples: list[Any] = []
        for number in numbers:
            if samples and self._is_over is not None and self._is_over():
                break
            where = self._index.where[number]
            given: tuple[Any, ...] = (where,)
            held = 0
            for name, step in self._steps:
                with self._tally.timed(name), self._in_one_line(name, number):
                    given = (step(*given), where)
                nbytes = _nbytes(given[0])
                self._tally.add_nbytes(name, nbytes)
                held += nbytes
            self._held = max(self._held, held)
            samples.append(given[0])
        return self._stacked(numbers[: len(samples)], samples)

    def _in_one_line(self, step: str, number: int) -> AbstractContextManager[None]:
        return in_one_line(f"{self._dataset.name}: {step} of sample {number} raised", WorkerError)

    def _stacked(self, numbers: Sequence[int], samples: Sequence[Sample]) -> SampleStack:
        spec = self._index.spec
        for number, sample in zip(numbers, samples, strict=True):
            spec.check(sample, where=f"{self._dataset.name} sample {number}")
        if len(samples) == 1:  # without a copy
            rows = {name: samples[0][name][None] for name in spec.names}
        else:
            rows = {name: np.stack([each[name] for each in samples]) for name in spec.names}
        return self._finished(SampleStack(numbers, rows))

    def _finished(self, stack: SampleStack) -> SampleStack:
        return stack if self._finish is None else self._finish(stack)


def _nbytes(handed_on: Any) -> int:
    return max(0, handed_on_nbytes(handed_on))


def requested_samples(request: StoreRequest, **more: Any) -> SampleProducer:
    """Return what makes the samples of a store; ``more`` is what else `SampleProducer` takes."""
    return SampleProducer(
        request.dataset,
        request.index,
        workers=request.workers,
        memory_nbytes=request.memory_nbytes,
        scratch=request.scratch,
        passes=request.passes,
        at_once=chunk_samples(request.fmt, request.options),
        **more,
    )


def samples_in_order(
    dataset: Dataset,
    index: SampleIndex,
    numbers: Sequence[int],
    *,
    workers: int = 1,
    memory_nbytes: int = 256 << 20,
) -> Generator[Sample, None, None]:
    """Yield samples by their numbers, in that order, as a conversion makes them."""
    producer = SampleProducer(
        dataset, index, workers=workers, memory_nbytes=memory_nbytes, passes=1 << 30
    )
    with producer:
        for stack in producer.stacks([numbers]):
            for place in range(len(stack)):
                yield {name: rows[place, ...] for name, rows in stack.rows.items()}


def epoch_reads(dataset: Any, where: Sequence[Where], n_processes: int) -> EpochReads | None:
    """Return what epochs over samples read; None where the dataset does not tell."""
    # Each process keeps the chunks that are needed next: with a share ``1 - (1 + u) exp(-u)`` of
    # them in the cache, ``exp(-u)`` of samples in random order find none.
    files = SampledFiles(dataset, where)
    if not files:
        return None
    n, kept = len(where), chunk_cache_nbytes() // n_processes
    (once, decoded), (alone, _) = files.nbytes(), SampledFiles(dataset, where[:1]).nbytes()
    if getattr(dataset, "chunk_cache", None) is None:
        alone = files.sample_nbytes  # of numbers in one piece nothing else is read
        return EpochReads(n, n * alone, n * alone, decoded)
    per_chunk = max(1.0, n * alone / max(1, once))
    distances = np.linspace(0.0, 20.0, 2001)
    shares = 1 - (1 + distances) * np.exp(-distances)
    again = float(np.exp(-np.interp(kept / max(1, decoded), shares, distances)))
    again = again if decoded > kept else 0.0
    n_rows, n_each = max(1.0, n / per_chunk), n / n_processes
    begun = min(n_rows, n_each) if n_processes == 1 else n_rows * -np.expm1(-n_each / n_rows)
    first = n_processes * (begun + (n_each - begun) * again) / n_rows
    later = n * again / n_rows
    return EpochReads(n, round(once * first), round(once * later), decoded, kept, per_chunk)
