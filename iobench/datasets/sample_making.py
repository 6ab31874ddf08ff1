"""Making samples ahead of who takes them: in order, in threads, within a bound of memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from iobench.chunks.file_indexes import chosen
from iobench.chunks.group_plan import SAMPLES_SHARE
from iobench.datasets.contract import (
    BandedDataset,
    GroupedDataset,
    VariablesApart,
    sample_steps,
)
from iobench.datasets.sample_groups import (
    UnitSizes,
    are_as_decoded,
    is_made_apart,
    may_be_read,
    names_apart,
    sample_groups,
)
from iobench.datasets.setup_processes import stopwatch
from iobench.files.memory import pages_used_again
from iobench.files.spill import SpillFile
from iobench.samples import StackedSamples, handed_on_nbytes
from iobench.stores.tally import Tally
from iobench.stores.value_statistics import VariableRows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from iobench.datasets.contract import Arrays, Dataset, SampleIndex, SpilledSamples, Where
    from iobench.datasets.sample_groups import SampleGroup
    from iobench.samples import Sample
    from iobench.stores.encoding import Encoder
    from iobench.stores.value_statistics import SampleMeasure


TASK_NBYTES = 1 << 20
"""Small samples are made by tasks of this many bytes: a task costs as much as reading 16 KB."""
WAITING = 2
"""Tasks of each thread that may be done before their samples are taken."""
TASK_S = 0.02
"""And tasks end after about this time, so that a probe of slow samples ends when it should."""
OBJECT_NBYTES = 512
"""About what Python's objects take beside the bytes of one array."""


class Maker:
    """Makes the samples of a dataset."""

    def __init__(
        self,
        dataset: Dataset,
        index: SampleIndex,
        *,
        workers: int,
        memory_nbytes: int,
        tally: Tally,
        encoder: Encoder | None = None,
        measure: SampleMeasure | None = None,
        spill_folder: Path | None = None,
        spill_nbytes: int = 0,
        by_variable: bool = False,
    ) -> None:
        self._dataset = dataset
        self._index = index
        self._steps = sample_steps(dataset)
        self._tally = tally
        self._encoder = encoder
        self._measure = measure
        self._memory_nbytes = memory_nbytes
        self._names_apart = names_apart(dataset, index.spec) if by_variable else ()
        self._spill_folder, self._spill_nbytes = spill_folder, spill_nbytes
        self._spills: list[SpillFile] = []
        self._spilled: dict[int, tuple[SpillFile, SpilledSamples]] = {}
        self._parts: list[Sequence[int]] = []
        self._bounds: list[int] = [0]
        self._groups: list[SampleGroup] = []
        self._next = 0
        self._nbytes = index.spec.nbytes + OBJECT_NBYTES * (1 + len(index.spec))
        self._held = HeldBytes(self._nbytes)
        self._is_alone = not getattr(dataset, "thread_safe", False)
        self._workers = 1 if self._is_alone else max(1, workers)
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="iobench-make")
        self._lead = ThreadPoolExecutor(1, thread_name_prefix="iobench-group")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="iobench-read")
        self._until_closed = ExitStack()
        self._until_closed.enter_context(pages_used_again(memory_nbytes))

    def close(self) -> None:
        """End the threads, after what they are at."""
        self._lead.shutdown(wait=True, cancel_futures=True)
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._let_go(len(self._groups))
        for spill in self._spills:
            spill.close()
        self._until_closed.close()

    def expect(self, parts: Sequence[Sequence[int]]) -> None:
        """Say what `batches` will be asked for, in this order; parts may be left out.

        What samples of several parts share is decoded once, where it can be put aside meanwhile.
        """
        self._let_go(len(self._groups))
        self._parts, self._groups, self._next = list(parts), [], 0
        self._bounds = [0, *accumulate(map(len, parts))]
        if isinstance(self._dataset, GroupedDataset):
            self._groups = sample_groups(
                self._dataset,
                [self._where(part) for part in parts],
                memory_nbytes=self._memory_nbytes,
                spill_nbytes=0 if self._spill_folder is None else self._spill_nbytes,
                apart=bool(self._names_apart),
            )

    @overload
    def batches(self, numbers: Sequence[int]) -> Generator[Sequence[Sample], None, None]: ...

    @overload
    def batches(
        self, numbers: Sequence[int], *, by_variable: bool
    ) -> Generator[Sequence[Sample] | VariableRows, None, None]: ...

    def batches(
        self, numbers: Sequence[int], *, by_variable: bool = False
    ) -> Generator[Sequence[Sample] | VariableRows, None, None]:
        """Yield the samples of these numbers in order, a few at a time; made a little ahead.

        ``by_variable`` says that they may come as `VariableRows`, too: all variables of some, then
        all of the next ones. That takes less memory, and less time for pages that are new.
        """
        left = range(self._next, len(self._parts))
        part = next((each for each in left if self._parts[each] == numbers), None)
        if part is None:
            self.expect([numbers])
            part = 0
        self._next = part + 1
        start, stop = self._bounds[part], self._bounds[part + 1]
        first = bisect_right(self._groups, start, key=lambda group: group.stop)
        last = bisect_left(self._groups, stop, key=lambda group: group.start)
        here = range(first, last)
        if self._are_made_alone(numbers, here):
            return self._one_by_one(numbers, self._timed_make, self._memory_nbytes)
        return self._by_groups(start, stop, here, by_variable=by_variable)

    def _are_made_alone(self, numbers: Sequence[int], here: Sequence[int]) -> bool:
        """Whether samples are made one by one, since they share nothing."""
        if not isinstance(self._dataset, GroupedDataset) or not numbers:
            return True
        if any(len(self._groups[number]) > 1 for number in here):
            return False
        one = sum(self._dataset.group_nbytes(self._where(numbers[:1])))
        if 2 * one > self._memory_nbytes:  # its chunks are read as they are decoded, not before
            return False
        self._held.expect(one)
        return True

    def _one_by_one(
        self,
        numbers: Sequence[int],
        make: Callable[[Sequence[int]], tuple[float, Sequence[Sample]]],
        memory_nbytes: int,
    ) -> Generator[Sequence[Sample], None, None]:
        pending: deque[Future[tuple[float, Sequence[Sample]]]] = deque()
        at, size = 0, 1

        def submit(limit: int) -> None:
            nonlocal at
            while at < len(numbers) and len(pending) < limit:
                pending.append(self._pool.submit(make, numbers[at : at + size]))
                at += size

        try:
            # The first is made alone: what it holds is not known yet.
            submit(max(1, self._ahead(size, memory_nbytes)) if self._held.is_learnt else 1)
            while pending:
                seconds, samples = pending.popleft().result()
                size = self._next_size(len(samples), seconds)
                submit(self._ahead(size, memory_nbytes))
                yield samples
                del samples  # before more are made, where there is room for one alone
                submit(1)
        finally:
            for future in pending:
                future.cancel()

    def _ahead(self, size: int, memory_nbytes: int) -> int:
        """Return how many tasks of ``size`` samples may wait while those of one are written."""
        room = memory_nbytes // size - self._nbytes
        if room < self._workers * self._held.nbytes:
            return max(0, room // self._held.nbytes)
        waiting = (room - self._workers * self._held.nbytes) // self._nbytes
        # More would only be pages that are new. Tasks that are small still are twice as many.
        return self._workers + min(waiting, WAITING * self._workers)

    @property
    def _largest_size(self) -> int:
        return max(1, min(TASK_NBYTES, self._memory_nbytes // 16) // self._nbytes)

    def _next_size(self, count: int, seconds: float) -> int:
        """Return how many samples the next tasks make, after ``count`` of them took so long."""
        fitting = int(TASK_S * count / max(seconds, 1e-9))
        return max(1, min(fitting, 8 * count, self._largest_size))

    def _timed_make(self, numbers: Sequence[int]) -> tuple[float, Sequence[Sample]]:
        watch = stopwatch()
        where = self._where(numbers)
        given: tuple[Sequence[Any], ...] = (where,)
        sizes = []
        for name, step in self._steps:
            values, nbytes = self._apply(name, step, *given)
            sizes.append(nbytes if values[0] is not given[0][0] else 0)
            given = (values, where)
        samples = self._stored(numbers, values)
        sizes.append(len(samples) * self._nbytes if samples is not values else 0)
        self._held.learn(sizes, len(numbers))
        return watch(), self._measured(samples)

    def _apply(
        self, name: str, step: Callable[..., Any], *given: Sequence[Any]
    ) -> tuple[list[Any], int]:
        """Return what a step makes of some values, one of each in turn, and its bytes."""
        with self._tally.timed(name):
            made = [step(*each) for each in zip(*given, strict=True)]
        nbytes = sum(map(nbytes_of, made))
        self._tally.add_nbytes(name, nbytes)
        return made, nbytes

    def _preprocessed(
        self, arrays: Sequence[Arrays], where: Sequence[Where]
    ) -> tuple[Sequence[Sample], int]:
        """Return samples of a group, and the bytes of what was made for them."""
        preprocess = self._dataset.preprocess
        if are_as_decoded(self._dataset):
            with self._tally.timed("preprocess", nbytes_of_all(arrays)):
                return arrays, 0
        given = list(arrays)
        made, nbytes = self._apply("preprocess", preprocess, given, where)
        return made, nbytes if made[0] is not given[0] else 0

    def _stored(self, numbers: Sequence[int], samples: Sequence[Sample]) -> Sequence[Sample]:
        """Return the samples as they are stored, after checking them."""
        name, encoder = self._dataset.name, self._encoder
        if encoder is None:
            if isinstance(samples, StackedSamples) and self._index.spec.are_rows(samples.arrays):
                return samples
            for number, sample in zip(numbers, samples, strict=True):
                self._index.spec.check(sample, where=f"{name} sample {number}")
            return samples
        with self._tally.timed("encode"):
            encoded = [
                encoder.encode(sample, f"{name} sample {number}")
                for number, sample in zip(numbers, samples, strict=True)
            ]
        self._tally.add_nbytes("encode", sum(map(nbytes_of, encoded)))
        return list(encoded)

    def _measured(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Return the samples with their moments, where these are asked for."""
        if self._measure is None:
            return samples
        with self._tally.timed("statistics"):
            return self._measure.measured(samples)

    def _by_groups(
        self, start: int, stop: int, here: Sequence[int], *, by_variable: bool
    ) -> Generator[Sequence[Sample] | VariableRows, None, None]:
        """Yield the samples from ``start`` to ``stop`` of all that are expected."""
        self._let_go(here[0])
        units = [unit for group in here for unit in self._units(group, may_be_apart=by_variable)]
        ahead = GroupsAhead(self._reader, self._read_group, self._room_for(units), units)
        made = self._lead.submit(self._make_unit, 0, ahead)
        try:
            for place, unit in enumerate(units):
                group, batches = self._groups[unit.group], made.result()
                if place + 1 < len(units):  # made while the samples of this one are written
                    made = self._lead.submit(self._make_unit, place + 1, ahead)
                yield from batches(max(start, group.start), min(stop, group.stop))
                if group.stop <= stop and unit.is_last:
                    self._let_go(unit.group + 1)
        finally:
            made.cancel()
            ahead.cancel()

    def _units(self, group: int, *, may_be_apart: bool) -> list[_Unit]:
        """Return what is made at once: a group, or each variable of it."""
        numbers, names = self._numbers_of(group), self._names_apart
        where = self._where(numbers)
        nbytes = len(numbers) * self._index.spec.nbytes
        if (
            not may_be_apart
            or not names
            or self._groups[group].is_spilled
            or not is_made_apart(nbytes, len(names), self._memory_nbytes)
        ):
            return [_Unit(group, numbers, where)]
        return [_Unit(group, numbers, where, name, name == names[-1]) for name in names]

    def _numbers_of(self, group: int) -> list[int]:
        """Return the numbers of the samples of a group."""
        found: list[int] = []
        start, stop = self._groups[group].start, self._groups[group].stop
        first = bisect_right(self._bounds, start) - 1
        for part in range(first, bisect_left(self._bounds, stop)):
            at = self._bounds[part]
            found += self._parts[part][max(0, start - at) : stop - at]
        return found

    def _room_for(self, units: Sequence[_Unit]) -> Callable[[int, int], bool]:
        """Return what tells whether a unit may be read already while others are in memory."""

        @cache
        def sizes(place: int) -> UnitSizes:
            unit = units[place]
            read, decoded = self._unit_nbytes(unit)
            each = self._nbytes if unit.name is None else self._index.spec[unit.name].nbytes
            is_spilled = self._groups[unit.group].is_spilled
            return UnitSizes(read, max(decoded, len(unit.numbers) * each), is_spilled)

        def fits(place: int, n_read: int) -> bool:
            near = [sizes(each) for each in range(max(0, place - 2), place + 1)]
            return not self._is_alone and may_be_read(near, n_read, self._memory_nbytes)

        return fits

    def _let_go(self, before: int) -> None:
        """Have the files of groups before this one used again."""
        for number in [each for each in self._spilled if each < before]:
            spill, _ = self._spilled.pop(number)
            spill.clear()
            self._spills.append(spill)

    def _unit_nbytes(self, unit: _Unit) -> tuple[int, int]:
        """Return the bytes that are read and decoded for a unit."""
        dataset, where = self._dataset, unit.where
        if unit.name is not None:
            assert isinstance(dataset, VariablesApart)
            return dataset.group_nbytes(where, unit.name)
        assert isinstance(dataset, GroupedDataset)  # else there are no groups
        return dataset.group_nbytes(where)

    def _read_group(self, unit: _Unit) -> Any:
        dataset, where = self._dataset, unit.where
        with self._tally.timed("read"):
            if unit.name is not None:
                assert isinstance(dataset, VariablesApart)
                raw = dataset.read_group(where, unit.name)
            else:
                assert isinstance(dataset, GroupedDataset)
                raw = dataset.read_group(where)
        # Of few samples of long chunks the rest is read as it is decoded: it counts here.
        whole, _ = self._unit_nbytes(unit)
        self._tally.add_nbytes("read", max(whole, nbytes_of(raw)))
        return raw

    def _make_unit(
        self, place: int, ahead: GroupsAhead
    ) -> Callable[[int, int], Iterator[Sequence[Sample] | VariableRows]]:
        """Make a unit, and return what gives back its samples, a few in each of several lists."""
        unit = ahead.units[place]
        if self._groups[unit.group].is_spilled:
            return partial(self._taken_back, unit.group, self._spill(unit.group))
        dataset, numbers, where = self._dataset, unit.numbers, unit.where
        raw = ahead.take(place)
        ahead.read(place + 1, n_read=2)
        with self._tally.timed("decode"):
            if unit.name is not None:
                assert isinstance(dataset, VariablesApart)
                arrays = dataset.decode_group(raw, where, self._run, unit.name)
            else:
                assert isinstance(dataset, GroupedDataset)
                arrays = dataset.decode_group(raw, where, self._run)
        del raw
        ahead.read(place + 1, n_read=1)
        self._tally.add_nbytes("decode", nbytes_of_all(arrays))
        if unit.name is not None:
            assert isinstance(arrays, StackedSamples)
            rows = deque([self._variable_rows(unit, arrays)])
            return lambda start, stop: _popped(rows)
        side_by_side = isinstance(arrays, StackedSamples)  # no objects for each of them
        size = max(1, TASK_NBYTES // (self._index.spec.nbytes if side_by_side else self._nbytes))
        tasks = [slice(at, at + size) for at in range(0, len(arrays), size)]

        def finish(task: slice) -> Sequence[Sample]:
            made, _ = self._preprocessed(arrays[task], where[task])
            return self._measured(self._stored(numbers[task], made))

        made = deque(self._pool.map(finish, tasks))
        return lambda start, stop: _popped(made)

    def _variable_rows(self, unit: _Unit, arrays: StackedSamples) -> VariableRows:
        """Return one variable of some samples, which is being measured, after checking it."""
        assert unit.name is not None
        spec = self._index.spec.only(unit.name)
        if not spec.are_rows(arrays.arrays):
            spec.check(arrays[0], where=f"{self._dataset.name} sample {unit.numbers[0]}")
        with self._tally.timed("preprocess", arrays.nbytes):
            rows = arrays.arrays[unit.name]
        measures: list[Future[NDArray[Any] | None]] = []
        if self._measure is not None:
            size = max(1, TASK_NBYTES // max(1, spec.nbytes))
            if self._measure.keeps_values(unit.name):  # which are there
                size = len(rows)
            for at in range(0, len(rows), size):
                some = rows[at : at + size]
                measures.append(self._pool.submit(self._measured_rows, unit.name, some))
        return VariableRows(unit.name, rows, measures, unit.is_last)

    def start_statistics(
        self, job: Callable[[], NDArray[np.float64]]
    ) -> Future[NDArray[np.float64]]:
        """Have something that is part of the statistics done by a thread that makes samples."""

        def timed() -> NDArray[np.float64]:
            with self._tally.timed("statistics"):
                return job()

        return self._pool.submit(timed)

    def _measured_rows(self, name: str, rows: NDArray[Any]) -> NDArray[Any] | None:
        assert self._measure is not None
        with self._tally.timed("statistics"):
            return self._measure.of_variable(name, rows)

    def _spill(self, number: int) -> SpilledSamples:
        """Return a group that memory does not hold, put aside; where it is already, as it is."""
        if number in self._spilled:
            return self._spilled[number][1]
        dataset = self._dataset
        assert isinstance(dataset, BandedDataset)
        assert self._spill_folder is not None
        spill = self._spills.pop() if self._spills else SpillFile(self._spill_folder)
        try:
            with self._tally.timed("decode"):
                where = self._where(self._numbers_of(number))
                found = dataset.spill_group(
                    where, spill, self._run, memory_nbytes=self._memory_nbytes
                )
        except BaseException:
            spill.close()
            raise
        self._spilled[number] = spill, found
        self._tally.add_nbytes("read", found.read_nbytes)
        self._tally.add_nbytes("decode", found.spilled_nbytes)
        return found

    def _taken_back(
        self, number: int, spilled: SpilledSamples, start: int, stop: int
    ) -> Iterator[Sequence[Sample]]:
        """Yield the samples from ``start`` to ``stop`` of a group that was put aside."""
        begin, numbers = self._groups[number].start, self._numbers_of(number)

        def make(some: Sequence[int]) -> tuple[float, Sequence[Sample]]:
            watch = stopwatch()
            own = numbers[some[0] : some[-1] + 1]
            with self._tally.timed("spill"):
                arrays = spilled.take(some[0], some[-1] + 1)
            sizes = [nbytes_of_all(arrays)]
            self._tally.add_nbytes("spill", sizes[0])
            made, nbytes = self._preprocessed(arrays, self._where(own))
            sizes.append(nbytes)
            samples = self._stored(own, made)
            sizes.append(len(samples) * self._nbytes if samples is not made else 0)
            self._held.learn(sizes, len(some))
            return watch(), self._measured(samples)

        share = self._memory_nbytes // SAMPLES_SHARE
        return self._one_by_one(range(start - begin, stop - begin), make, share)

    def _run(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Run jobs that may run at once in as many threads as there are, taking them as needed."""
        waiting = iter(jobs)
        running: deque[Future[None]] = deque()
        try:
            for job in waiting:
                running.append(self._pool.submit(job))
                if len(running) > 2 * self._workers:
                    running.popleft().result()
            while running:
                running.popleft().result()
        except BaseException:
            for future in running:
                future.cancel()
            raise

    def _where(self, numbers: Sequence[int]) -> Sequence[Where]:
        return chosen(self._index.where, numbers)


def samples_in_order(
    dataset: Dataset,
    index: SampleIndex,
    numbers: Sequence[int],
    *,
    workers: int = 1,
    memory_nbytes: int = 256 << 20,
) -> Generator[Sample, None, None]:
    """Yield samples by their numbers, in that order, as a conversion makes them."""
    maker = Maker(dataset, index, workers=workers, memory_nbytes=memory_nbytes, tally=Tally())
    made = maker.batches(numbers)
    try:
        for samples in made:
            yield from samples
    finally:
        made.close()
        maker.close()


class _Unit(NamedTuple):
    """What is made at once."""

    group: int  # which samples
    numbers: list[int]  # their numbers
    where: Sequence[Where]  # and where they are
    name: str | None = None  # which variable of them; all of them
    is_last: bool = True  # whether their other variables come before


_Made = TypeVar("_Made")


def _popped(made: deque[_Made]) -> Iterator[_Made]:
    """Yield what is first until nothing is left, and hold none of it."""
    while made:
        yield made.popleft()


class GroupsAhead:
    """What is stored of units, read before it is needed where there is room for it."""

    def __init__(
        self,
        reader: ThreadPoolExecutor,
        read: Callable[[_Unit], Any],
        fits: Callable[[int, int], bool],
        units: Sequence[_Unit],
    ) -> None:
        self.units = units
        self._reader = reader
        self._read = read
        self._fits = fits
        self._coming: dict[int, Future[Any]] = {}

    def read(self, number: int, *, n_read: int) -> None:
        """Begin to read a unit, unless that was begun, or there is none, or no room for it."""
        if number < len(self.units) and number not in self._coming and self._fits(number, n_read):
            self._coming[number] = self._reader.submit(self._read, self.units[number])

    def take(self, number: int) -> Any:
        """Return a unit as stored, and let go of it here."""
        coming = self._coming.pop(number, None)
        return self._read(self.units[number]) if coming is None else coming.result()

    def cancel(self) -> None:
        """Read no more."""
        for coming in list(self._coming.values()):
            coming.cancel()


COPIES = 3
"""Of a sample that is being made, as far as nothing else is known: read, decoded, preprocessed."""


class HeldBytes:
    """The most that making one sample has held so far; starts with a guess.

    Mean and deviation of ten members are two arrays, and were ten: only making one tells.
    """

    def __init__(self, sample_nbytes: int) -> None:
        self.nbytes = COPIES * sample_nbytes
        self.is_learnt = False

    def expect(self, nbytes: int) -> None:
        """Take note of what is known before any sample is made."""
        self.nbytes = max(self.nbytes, nbytes)

    def learn(self, made_nbytes: Sequence[int], count: int) -> None:
        """Take note of what some samples held that were made together.

        Threads may call it at once: of two that do, the next to learn makes up for one.
        """
        held = given = 0
        for nbytes in made_nbytes:
            held = max(held, given + nbytes)
            given = nbytes or given
        self.nbytes = max(self.nbytes, -(-held // max(1, count)))
        self.is_learnt = True


def nbytes_of_all(values: Sequence[Any]) -> int:
    """Return the bytes of what a step returned for several samples."""
    return values.nbytes if isinstance(values, StackedSamples) else sum(map(nbytes_of, values))


def nbytes_of(value: Any) -> int:
    """Return the bytes of what a step returned, of buffers or arrays; 0 where it is not told."""
    return max(0, handed_on_nbytes(value))
