"""Windows: the runs of samples whose chunks a conversion decodes together, and their memory.

A window is as many samples as one row of source chunks spans, or as many as fit where samples
share no chunk; it lies in one part of the samples (a shard) or covers whole parts.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from iobench.chunks.file_indexes import FileIndexes
from iobench.chunks.sampled_variable import row_groups, runs
from iobench.errors import StorageError
from iobench.files.atomic import storage_errors
from iobench.files.memory import own_pages
from iobench.files.open_files import read_into
from iobench.recording.mounts import on_mount, read_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import Place
    from iobench.chunks.sampled_variable import SampledVariable
    from iobench.datasets.contract import RunJobs, Where
    from iobench.stores.tally import Tally

JOB_NBYTES: Final = 2 << 20
"""Chunks of about so many decoded bytes are read and decoded by one job."""
LINE_NBYTES: Final = 64


class SampleWindow(msgspec.Struct, frozen=True):
    """Consecutive samples whose chunks are decoded together, by their places in the order."""

    start: int
    stop: int
    is_in_scratch: bool = False  # memory does not hold them

    def __len__(self) -> int:
        return self.stop - self.start


class SampledFiles:
    """The files and indexes of samples, in the order they are made in, and their variables."""

    def __init__(self, dataset: Any, where: Sequence[Where]) -> None:
        self._dataset, self._where = dataset, where
        self._known: dict[int, tuple[SampledVariable, ...]] = {}
        first = dataset.chunks_of(where[0]) if hasattr(dataset, "chunks_of") and where else ()
        self.variables = tuple(dict.fromkeys(variable for variable, _ in first))
        self.rows: NDArray[np.int64] = np.empty((len(where), 1), dtype=np.int64)
        if not self.variables:
            return
        if isinstance(where, FileIndexes):
            self.rows = where.rows
        else:
            n_dims = max((n for v in self.variables for n in v.sample_dims), default=0) + 1
            self.rows = np.array([each[: 1 + n_dims] for each in where], dtype=np.int64)
        self._known[int(self.rows[0, 0])] = self.variables

    @property
    def first(self) -> Where:
        """The address of the first sample."""
        return self._where[0]

    def __bool__(self) -> bool:
        return bool(self.variables)

    @property
    def sample_nbytes(self) -> int:
        """Bytes of the decoded arrays of a sample."""
        return sum(variable.sample_nbytes for variable in self.variables)

    @property
    def chunk_nbytes(self) -> int:
        """The most that decoding a chunk takes."""
        return max((variable.chunk_nbytes for variable in self.variables), default=0)

    def by_file(self, start: int = 0, stop: int | None = None) -> Iterator[_FileSamples]:
        """Yield the samples of each file between two places, counted from the first."""
        rows = self.rows[start:stop]
        order, starts = row_groups(rows[:, :1])
        for members in np.split(order, starts[1:]) if len(order) else ():
            number = int(rows[members[0], 0])
            if number not in self._known:
                chunks = self._dataset.chunks_of(self._where[start + int(members[0])])
                self._known[number] = tuple(dict.fromkeys(each for each, _ in chunks))
            yield _FileSamples(self._known[number], members, rows[members, 1:])

    def shared_nbytes(self) -> ChunkSharing:
        """Return what samples on both sides of each place share.

        Of rows of chunks, each with all that it has of its samples.
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
        return ChunkSharing(np.cumsum(shared)[:-1], np.flatnonzero(~is_inside), total)

    def nbytes(self) -> tuple[int, int]:
        """Return what is stored and what is decoded of all chunks of the samples, each once."""
        stored = decoded = 0
        for variables, _, indexes in self.by_file():
            for variable in variables:
                rows = [row for row, _ in variable.parts(indexes)]
                stored += sum(map(variable.stored_nbytes, rows))
                decoded += len(rows) * variable.row_nbytes
        return stored, decoded


class ChunkSharing(NamedTuple):
    """What samples share of the chunks that are decoded for them."""

    across: NDArray[np.int64]  # decoded bytes that samples on both sides of each place share
    # places between samples that follow each other in no row of chunks. They do not depend on
    # which other samples there are
    edges: NDArray[np.intp]
    total: int  # decoded bytes of all rows, each once


class _FileSamples(NamedTuple):
    """Samples of one file."""

    variables: tuple[SampledVariable, ...]
    members: NDArray[np.intp]  # their places
    indexes: NDArray[np.int64]  # (samples, dimensions)


def cut_stacks(
    lengths: Sequence[int],
    stack_length: int,
    edges: NDArray[np.intp] | None = None,
    at_once: int = 1,
) -> list[int]:
    """Return where stacks of samples end, over parts of these lengths.

    A stack has as many as ``stack_length`` samples of one part, and ends where rows of chunks do
    if it can, at a multiple of ``at_once``. That depends on nothing but its part.
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

    Each has as many as ``most`` samples, or a stack, and where that is nowhere worse no more than
    ``least``. It ends where the fewest bytes are shared: at a cut within the part it begins in, or,
    if it begins where a part does, at the end of any part.
    """
    found = []
    start, part, begin = 0, 0, 0
    bounds, places = np.asarray(ends, dtype=np.int64), np.asarray(cuts, dtype=np.int64)
    while start < bounds[-1]:
        while bounds[part] <= start:
            begin, part = int(bounds[part]), part + 1
        first = np.searchsorted(places, start, side="right")
        stops = places[first : max(first + 1, np.searchsorted(places, start + most, side="right"))]
        within = stops <= bounds[part]
        if start == begin:
            within |= np.isin(stops, bounds[part:])
        stops = stops[within]
        cost = across[stops]
        enough = np.flatnonzero((cost == 0) & (stops - start >= least))
        if len(enough):
            stop = int(stops[enough[0]])
        else:
            stop = int(stops[np.flatnonzero(cost == cost.min())[-1]])
        found.append((start, stop))
        start = stop
    return found


class WindowFiller:
    """Reads and decodes the chunks of windows, each once, to the places of their samples."""

    def __init__(self, files: SampledFiles, run: RunJobs, tally: Tally, band_nbytes: int) -> None:
        self._files, self._run, self._tally = files, run, tally
        self._band_nbytes = band_nbytes
        self._pages: list[NDArray[np.uint8]] = []  # those of a window serve a later one

    def fill(self, window: SampleWindow, scratch: ScratchFile | None) -> FilledWindow:
        """Return the decoded samples of a window, in memory or in a scratch file."""
        samples = list(self._files.by_file(window.start, window.stop))
        variables = self._files.variables
        if scratch is None:
            return self._in_memory(window, samples)
        scratch.clear()
        bands: dict[str, list[_Band]] = {}
        nbytes = max(self._band_nbytes // len(window), LINE_NBYTES)
        pages = self._take_pages(max(1, self._band_nbytes))
        for number, variable in enumerate(variables):
            found = bands.setdefault(variable.name, [])
            for start, stop in _boxes(variable, nbytes):
                shape = (len(window), *(b - a for a, b in zip(start, stop, strict=True)))
                size = math.prod(shape) * variable.dtype.itemsize
                memory = pages if size <= pages.size else own_pages(size)
                band = memory[:size].view(variable.dtype).reshape(shape)
                self._run(self._jobs(samples, number, band, start, stop))
                found.append(_Band(scratch.write(band, self._run), start, stop))
        # Samples are read back into memory of their own.
        return FilledWindow(window, variables, {}, bands, scratch)

    def _in_memory(self, window: SampleWindow, samples: Sequence[_FileSamples]) -> FilledWindow:
        variables = self._files.variables
        sizes = [len(window) * variable.sample_nbytes for variable in variables]
        starts = [0, *itertools.accumulate(-(-size // LINE_NBYTES) * LINE_NBYTES for size in sizes)]
        pages = self._take_pages(starts[-1])
        arrays = {
            variable.name: pages[start : start + size]
            .view(variable.dtype)
            .reshape(len(window), *variable.shape)
            for variable, start, size in zip(variables, starts, sizes, strict=False)
        }
        jobs: list[Iterable[Callable[[], None]]] = [
            self._jobs(samples, number, arrays[variable.name], (0,) * len(variable.shape),
                       variable.shape)
            for number, variable in enumerate(variables)
        ]  # fmt: skip
        self._run(itertools.chain.from_iterable(jobs))
        return FilledWindow(window, variables, arrays, {}, None, partial(self._pages.append, pages))

    def _take_pages(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of a window that is over, where it is large enough, else new one."""
        pages = self._pages.pop() if self._pages else np.empty(0, dtype=np.uint8)
        if pages.size < nbytes:
            del pages  # before there is more
            pages = own_pages(nbytes)
        return pages

    def announce(self, window: SampleWindow) -> None:
        """Have the system read what a window needs, while another one is written."""
        for variables, _, indexes in self._files.by_file(window.start, window.stop):
            for variable in variables:
                variable.announce(indexes)

    def _jobs(
        self,
        samples: Sequence[_FileSamples],
        number: int,
        target: NDArray[Any],
        start: Place,
        stop: Place,
    ) -> Iterator[Callable[[], None]]:
        """Yield what fills the box of one variable of samples: some chunks each."""
        for variables, members, indexes in samples:
            variable = variables[number]
            inner = variable.places(start, stop)
            each_nbytes = max(1, variable.row_nbytes // max(1, len(inner)))
            size = max(1, JOB_NBYTES // each_nbytes)
            job: list[tuple[Place, Any]] = []
            lengths = np.array(variable.lengths, dtype=np.int64)
            for row, which in variable.parts(indexes):
                inside = indexes[which][:, variable.sample_dims] % lengths
                parts = list(runs(members[which], inside))
                for place in inner:
                    job.append((variable.place(row, place), parts))
                    if len(job) >= size:
                        yield partial(self._put, variable, job, target, start)
                        job = []
            if job:
                yield partial(self._put, variable, job, target, start)

    def _put(
        self,
        variable: SampledVariable,
        job: Sequence[tuple[Place, Any]],
        target: NDArray[Any],
        origin: Place,
    ) -> None:
        with self._tally.timed("read"):
            stored = variable.read([place for place, _ in job])
        self._tally.add_nbytes("read", sum(len(each) for each in stored if each is not None))
        with self._tally.timed("decode"):
            for number, (place, parts) in enumerate(job):
                content, stored[number] = stored[number], None
                variable.put(place, content, target, origin, parts)
                del content


class _Band(NamedTuple):
    """A box of the arrays of all samples of a window, and where it lies in scratch."""

    offset: int
    start: Place
    stop: Place


class FilledWindow:
    """The decoded arrays of the samples of a window."""

    def __init__(
        self,
        window: SampleWindow,
        variables: Sequence[SampledVariable],
        arrays: dict[str, NDArray[Any]],
        bands: dict[str, list[_Band]],
        scratch: ScratchFile | None,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self.window = window
        self._variables, self._arrays = variables, arrays
        self._bands, self._scratch = bands, scratch
        self._give_back = give_back

    def rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of samples side by side, by their places in the order of all."""
        first, last = start - self.window.start, stop - self.window.start
        if self._scratch is None:
            return {name: array[first:last] for name, array in self._arrays.items()}
        return {each.name: self._read(each, first, last) for each in self._variables}

    def _read(self, variable: SampledVariable, first: int, last: int) -> NDArray[Any]:
        assert self._scratch is not None
        rows = np.empty((last - first, *variable.shape), dtype=variable.dtype)
        for offset, start, stop in self._bands[variable.name]:
            lengths = tuple(b - a for a, b in zip(start, stop, strict=True))
            nbytes = math.prod(lengths) * variable.dtype.itemsize
            is_whole = lengths == variable.shape
            band = rows if is_whole else np.empty((last - first, *lengths), dtype=variable.dtype)
            self._scratch.read(band, offset + first * nbytes)
            if not is_whole:
                box = [slice(a, b) for a, b in zip(start, stop, strict=True)]
                rows[(slice(None), *box)] = band
        return rows

    def close(self) -> None:
        """Let go of its memory, which serves a later window."""
        self._arrays = {}
        if self._give_back is not None:
            self._give_back()


def _boxes(variable: SampledVariable, nbytes: int) -> Iterator[tuple[Place, Place]]:
    """Yield boxes of a sample's array, of whole chunks, of about so many bytes each."""
    lengths = [min(step, n) for step, n in zip(variable.steps, variable.shape, strict=True)]
    for axis in reversed(range(len(lengths))):
        one = math.prod(lengths) * variable.dtype.itemsize
        n_steps = max(1, nbytes // max(1, one))
        lengths[axis] = min(variable.shape[axis], lengths[axis] * n_steps)
        if lengths[axis] < variable.shape[axis]:
            break
    for place in itertools.product(
        *(range(0, n, max(1, step)) for n, step in zip(variable.shape, lengths, strict=True))
    ):
        stops = zip(place, lengths, variable.shape, strict=True)
        yield place, tuple(min(start + step, n) for start, step, n in stops)


class ScratchFile:
    """A file without a name for what memory does not hold; it is gone with the process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, 0
        with storage_errors(folder, resumable=True):
            descriptor, name = tempfile.mkstemp(prefix=".iobench-scratch-", dir=folder)
            Path(name).unlink()
        self._descriptor = descriptor

    def clear(self) -> None:
        """Begin anew; the stacks of the file are used again."""
        self._end = 0

    def write(self, array: NDArray[Any], run: RunJobs) -> int:
        """Write an array behind what is there, in several jobs; return where it begins."""
        start, data = self._end, array.reshape(-1).view(np.uint8).data
        self._end += len(data)
        step = 8 << 20
        run(
            partial(self._write, data[at : at + step], start + at)
            for at in range(0, len(data), step)
        )
        return start

    def _write(self, data: memoryview, offset: int) -> None:
        with storage_errors(self._folder, resumable=True):
            while len(data):
                count = os.pwrite(self._descriptor, data, offset)
                data, offset = data[count:], offset + count

    def read(self, array: NDArray[Any], offset: int) -> None:
        """Fill an array with what was written from ``offset`` on."""
        data = array.reshape(-1).view(np.uint8).data
        end = offset + len(data)
        with storage_errors(self._folder, resumable=True):
            if read_into(self._descriptor, [data], offset, end) < end:
                raise StorageError(f"{self._folder}: what was written to scratch there is gone")

    def close(self) -> None:
        """Give its space back."""
        os.close(self._descriptor)


def scratch_folder(folder: Path | None) -> Path:
    """Return where scratch files are: as asked for, else where temporary files are."""
    return Path(tempfile.gettempdir()) if folder is None else folder


def is_in_memory(folder: Path) -> bool:
    """Tell whether files of a folder are in memory, as on a tmpfs."""
    return on_mount(folder, read_mounts()).reach == "memory"
