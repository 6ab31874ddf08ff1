"""Makes samples ahead of whoever takes them: in order, stack by stack, in threads."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.chunks.file_indexes import chosen
from iobench.datasets.contract import sample_steps
from iobench.datasets.sample_windows import (
    FilledWindow,
    SampledFiles,
    SampleWindow,
    ScratchFile,
    WindowFiller,
    cut_stacks,
    is_in_memory,
    plan_windows,
    scratch_folder,
)
from iobench.errors import OptionError
from iobench.files.atomic import free_nbytes
from iobench.files.memory import pages_used_again
from iobench.samples import handed_on_nbytes
from iobench.sizes import mebibytes
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.samples import Sample

STACK_NBYTES: Final = 1 << 20
"""Samples of about so many bytes are made, measured and written at once."""
MOST_N_SAMPLES: Final = 64
"""Of samples that are made one by one; of others `MANY_N_SAMPLES`."""
MANY_N_SAMPLES: Final = 2048
COPIES: Final = 4
"""Of a small sample that is being made: read, decoded, preprocessed, side by side with others."""
ENOUGH: Final = 1.05
"""Times that chunks are decoded in the mean; less is not worth a larger window."""
MOST_PASSES: Final = 4
"""Chunks are decoded more often only where --passes allows it."""
LEAST_WINDOW: Final = 32 << 20
"""Windows are at least this long where samples share no chunk: all threads have work."""


class SampleStack(msgspec.Struct, frozen=True, eq=False):
    """Some samples side by side."""

    numbers: Sequence[int]  # of the samples
    rows: dict[str, NDArray[Any]]  # a row each
    figures: Any = None  # what the producer's `finish` found out about them

    def __len__(self) -> int:
        return len(self.numbers)


class WindowPlan(msgspec.Struct, frozen=True):
    """How samples are made."""

    cuts: Sequence[int]  # where stacks end
    windows: tuple[SampleWindow, ...] = ()  # none: one by one
    times: float = 1.0  # how often chunks are decoded in the mean
    band_nbytes: int = 0  # memory for bands of windows in scratch
    scratch_nbytes: int = 0  # of the largest window in scratch
    n_decoding: int = 1  # threads that decode at once
    is_filled_ahead: bool = False  # memory holds the next window beside one that is written


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
        self._scratch_folder = scratch_folder(scratch)
        self._scratch: ScratchFile | None = None
        # It depends neither on memory nor on threads, so that what is summed stack by stack is
        # the same whatever these are.
        is_chunked = bool(SampledFiles(dataset, index.where[:1]))
        most = MANY_N_SAMPLES if is_chunked else MOST_N_SAMPLES
        length = min(most, STACK_NBYTES // max(1, index.spec.nbytes))
        # Samples of which so many are stored in a chunk are handed on by whole chunks.
        self._at_once = at_once
        self._stack_length = max(1, length // at_once) * at_once
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
        if self._scratch is not None:
            self._scratch.close()
        self._until_closed.close()

    # ---- the plan

    def plan(self, parts: Sequence[Sequence[int]]) -> WindowPlan:
        """Return the windows in which samples of several parts are made.

        Raises
        ------
        OptionError
            If not even a sample and a chunk fit the memory, or chunks had to be decoded more often
            than allowed.
        """
        numbers = _side_by_side(parts)
        files = SampledFiles(self._dataset, chosen(self._index.where, numbers.tolist()))
        return self._plan(files, list(map(len, parts)))

    def _plan(self, files: SampledFiles, lengths: Sequence[int]) -> WindowPlan:
        if not files:
            return WindowPlan(cut_stacks(lengths, self._stack_length, None, self._at_once))
        shared = files.shared_nbytes()
        cuts = cut_stacks(lengths, self._stack_length, shared.edges, self._at_once)
        chunk, one, memory = files.chunk_nbytes, files.sample_nbytes, self._memory_nbytes
        # A sample is always taken, whatever its size: bands of it are decoded.
        together = 0 if self._at_once == 1 else self._at_once * one
        if chunk + together > memory:
            and_stored = f", {self._at_once} samples {together}" if together else ""
            raise OptionError(
                f"--memory {mebibytes(memory)} is too little for {self._dataset.name}:"
                f" a chunk takes {chunk} bytes as it is decoded{and_stored}; the smallest that "
                f"works is --memory {mebibytes(chunk + together)}"
            )
        stacks = 0 if self._is_as_decoded else self._ahead(self._stack_nbytes) * self._stack_nbytes
        left = memory - min(stacks, memory - chunk - together)
        n_decoding = max(1, min(self._workers, left // 2 // max(1, chunk)))
        band_nbytes = max(chunk, left - n_decoding * chunk)
        window_nbytes = max(one, band_nbytes)
        ends = np.cumsum(lengths).tolist()

        def planned(nbytes: int) -> tuple[list[tuple[int, int]], float]:
            most, least = nbytes // one, max(1, LEAST_WINDOW // one)
            found = plan_windows(shared.across, ends, cuts, most=most, least=least)
            again = int(shared.across[[stop for _, stop in found[:-1]]].sum()) if found[1:] else 0
            return found, 1 + again / max(1, shared.total)

        pairs, times = planned(window_nbytes)
        halves, halves_times = planned(max(one, window_nbytes // 2))
        is_filled_ahead = len(pairs) > 1 and halves_times <= times and one <= window_nbytes // 2
        if is_filled_ahead:
            pairs = halves
        folder = self._scratch_folder
        scratch_nbytes = 0 if is_in_memory(folder) else free_nbytes(folder) or 0
        if times > ENOUGH and scratch_nbytes > window_nbytes:
            pairs, times = min((pairs, times), planned(scratch_nbytes), key=lambda each: each[1])
        if times > self._passes:
            raise OptionError(
                f"--memory {mebibytes(memory)}: chunks of {self._dataset.name} are "
                f"decoded {times:.1f} times, for neither memory nor --scratch "
                f"{folder} holds a window; give more of either, or --passes {int(np.ceil(times))}"
            )
        most = max(window_nbytes, STACK_NBYTES)
        windows = tuple(SampleWindow(a, b, (b - a) * one > most) for a, b in pairs)
        is_filled_ahead &= not any(each.is_in_scratch for each in windows)
        longest = max((len(each) for each in windows if each.is_in_scratch), default=0)
        return WindowPlan(
            cuts, windows, times, band_nbytes, longest * one, n_decoding, is_filled_ahead
        )

    @property
    def _is_as_decoded(self) -> bool:
        return bool(getattr(self._dataset, "keeps_decoded", False))

    @cached_property
    def _stack_nbytes(self) -> int:
        return self._stack_length * self._index.spec.nbytes

    def _ahead(self, nbytes: int) -> int:
        """Return how many stacks of so many bytes are made ahead."""
        return max(1, min(self._workers + 1, self._memory_nbytes // 4 // max(1, nbytes)))

    # ---- making

    def stacks(self, parts: Sequence[Sequence[int]]) -> Generator[SampleStack, None, None]:
        """Yield the samples of several parts in order; a stack is of one part.

        Whoever takes a stack holds none of it when asking for the next one.
        """
        numbers = _side_by_side(parts)
        files = SampledFiles(self._dataset, chosen(self._index.where, numbers.tolist()))
        plan = self._plan(files, list(map(len, parts)))
        spans = list(zip([0, *plan.cuts], plan.cuts, strict=False))
        if files:
            yield from self._by_windows(files, plan, spans, numbers)
        else:
            yield from self._one_by_one([numbers[a:b].tolist() for a, b in spans])

    def _by_windows(
        self,
        files: SampledFiles,
        plan: WindowPlan,
        spans: Sequence[tuple[int, int]],
        numbers: NDArray[np.int64],
    ) -> Generator[SampleStack, None, None]:
        if plan.times > ENOUGH and self._notice is not None:
            self._notice(
                f"chunks are decoded {plan.times:.1f} times on average: neither --memory "
                f"{mebibytes(self._memory_nbytes)} nor --scratch {self._scratch_folder} holds the "
                "samples that share them"
            )
        run = partial(self._run, threading.BoundedSemaphore(plan.n_decoding))
        filler = WindowFiller(files, run, self._tally, plan.band_nbytes)
        ahead = self._ahead(self._stack_nbytes)
        left = deque(spans)
        with ThreadPoolExecutor(1, thread_name_prefix="iobench-fill") as filling:
            waiting = deque(plan.windows)
            begun: deque[Future[FilledWindow]] = deque()
            while waiting or begun:
                if not begun:
                    begun.append(filling.submit(self._filled, filler, waiting.popleft()))
                filled = begun.popleft().result()
                if waiting:
                    filler.announce(waiting[0])
                if waiting and plan.is_filled_ahead:
                    begun.append(filling.submit(self._filled, filler, waiting.popleft()))
                jobs = []
                while left and left[0][0] < filled.window.stop:
                    start, stop = left.popleft()
                    own = numbers[start:stop].tolist()
                    jobs.append(partial(self._from_window, filled, start, stop, own))
                yield from self._in_order(jobs, ahead)
                filled.close()

    def _filled(self, filler: WindowFiller, window: SampleWindow) -> FilledWindow:
        if window.is_in_scratch and self._scratch is None:
            self._scratch = ScratchFile(self._scratch_folder)
        return filler.fill(window, self._scratch if window.is_in_scratch else None)

    def _in_order(
        self, jobs: Iterable[Callable[[], SampleStack]], ahead: int
    ) -> Generator[SampleStack, None, None]:
        """Yield what jobs return, of which so many are begun ahead."""
        pending: deque[Future[SampleStack]] = deque()
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
        self, filled: Any, start: int, stop: int, numbers: Sequence[int]
    ) -> SampleStack:
        rows = filled.rows(start, stop)
        if self._is_as_decoded:
            with self._tally.timed("preprocess", sum(array.nbytes for array in rows.values())):
                return self._finished(SampleStack(numbers, rows))
        where = chosen(self._index.where, numbers)
        given = [{name: array[i, ...] for name, array in rows.items()} for i in range(len(numbers))]
        samples, _ = self._stepped("preprocess", self._dataset.preprocess, given, where)
        return self._finished(self._stacked(numbers, samples))

    def _one_by_one(self, stacks: Sequence[Sequence[int]]) -> Generator[SampleStack, None, None]:
        """Yield stacks of samples that share nothing."""
        if self._stack_length == 1 and stacks:  # what a large one takes only making it tells
            yield self._pool.submit(self._made_whole, stacks[0]).result()
            stacks = stacks[1:]
        ahead = self._ahead(self._stack_length * max(COPIES * self._index.spec.nbytes, self._held))
        yield from self._in_order((partial(self._made_whole, each) for each in stacks), ahead)

    def _made_whole(self, numbers: Sequence[int]) -> SampleStack:
        """Make samples one by one; fewer than there are where time is up."""
        samples: list[Sample] = []
        at_once = 1 if self._is_over is not None else len(numbers)
        for start in range(0, len(numbers), at_once):
            if samples and self._is_over is not None and self._is_over():
                break
            where = chosen(self._index.where, numbers[start : start + at_once])
            given: tuple[Sequence[Any], ...] = (where,)
            held = 0
            for name, step in self._steps:
                values, nbytes = self._stepped(name, step, *given)
                given = (values, where)
                held += nbytes
            self._held = max(self._held, held // len(where))
            samples += given[0]
        return self._finished(self._stacked(numbers[: len(samples)], samples))

    def _stepped(
        self, name: str, step: Callable[..., Any], *given: Sequence[Any]
    ) -> tuple[list[Any], int]:
        """Return what a step makes of some values, and its bytes."""
        with self._tally.timed(name):
            made = [step(*each) for each in zip(*given, strict=True)]
        nbytes = sum(max(0, handed_on_nbytes(each)) for each in made)
        self._tally.add_nbytes(name, nbytes)
        return made, nbytes

    def _stacked(self, numbers: Sequence[int], samples: Sequence[Sample]) -> SampleStack:
        spec = self._index.spec
        for number, sample in zip(numbers, samples, strict=True):
            spec.check(sample, where=f"{self._dataset.name} sample {number}")
        if len(samples) == 1:
            return SampleStack(numbers, {name: samples[0][name][None] for name in spec.names})
        stacked = {name: np.stack([each[name] for each in samples]) for name in spec.names}
        return SampleStack(numbers, stacked)

    def _finished(self, stack: SampleStack) -> SampleStack:
        if not self._index.spec.are_rows(stack.rows):
            first = {name: rows[0] for name, rows in stack.rows.items()}
            where = f"{self._dataset.name} sample {stack.numbers[0]}"
            self._index.spec.check(first, where=where)
        return stack if self._finish is None else self._finish(stack)

    def _run(self, gate: threading.BoundedSemaphore, jobs: Iterable[Callable[[], None]]) -> None:
        """Run jobs in as many threads as may decode at once, taking them as needed."""

        def gated(job: Callable[[], None]) -> None:
            with gate:
                job()

        running: deque[Future[None]] = deque()
        try:
            for job in jobs:
                running.append(self._pool.submit(gated, job))
                if len(running) > 2 * self._workers:
                    running.popleft().result()
            while running:
                running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def _side_by_side(parts: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


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
