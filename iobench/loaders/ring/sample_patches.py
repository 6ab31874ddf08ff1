"""Patches of samples: all variables cut at one place, drawn at random or laid out as tiles.

Of a store no more is read or decoded than a patch touches: from mappings of files, after asking
for rows that are not in the page cache, or from a bucket by ranges.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from iobench.chunks.boxes import parts_touched
from iobench.errors import OptionError, StoreError
from iobench.files.ranges import FileRange
from iobench.loaders.ring.buffers import ScratchBytes, ScratchRows
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.order import drawn_below
from iobench.loaders.ring.reads import ask_for_ranges, is_cached
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec
from iobench.stores.fields import ChunkedArray, ChunkedDecoder
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.loaders.contract import Reader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.store_source import StoreSource
    from iobench.samples import Variable

PLACES: Final = ("random", "tiles", "centre")
CALL_NBYTES: Final = 32 << 10
"""What asking for a range is worth, and the Python around it: some 1.5 us at 20 GB/s."""
REQUEST_NBYTES: Final = 512 << 10
"""What a request to a store of objects is worth: 1 ms of this process at 500 MB/s. How long it is
under way counts less, since others are meanwhile."""
COPY_NBYTES: Final = 64 << 10
"""What copying one piece of a box is worth, beside its bytes: some 5 us."""
DECODE_FACTOR: Final = 5
"""Bytes that are copied while one is decompressed."""


@dataclass(frozen=True, slots=True)
class PatchCut:
    """What patches take of one variable."""

    variable: Variable  # the whole one
    columns: tuple[int, ...]  # by axis which of the dimensions that are cut it is; -1 for none
    sizes: tuple[int, ...]  # of a patch, along each axis

    @property
    def part(self) -> Variable:
        """A patch of the variable."""
        variable = self.variable
        cut = {d for d, c in zip(variable.dims, self.columns, strict=True) if c >= 0}
        is_cut = "channel" in cut or ("channel" not in variable.dims and {*variable.dims[:1]} & cut)
        channels = () if is_cut else variable.channels  # which ones is another for each patch
        return replace(variable, shape=self.sizes, channels=channels)

    def starts(self, corner: list[int]) -> list[int]:
        """Return where a patch begins along each axis."""
        return [corner[column] if column >= 0 else 0 for column in self.columns]

    def box(self, corner: list[int]) -> tuple[slice, ...]:
        """Return a patch as an index of the variable."""
        starts = zip(self.starts(corner), self.sizes, strict=True)
        return tuple(slice(start, start + size) for start, size in starts)


class PatchPlaces:
    """How large patches are and where they lie; see ``patch`` of `LoaderConfig`."""

    def __init__(
        self, sizes: Mapping[str, int], spec: SampleSpec, at: str = "centre", seed: int = 0
    ) -> None:
        if not isinstance(sizes, Mapping) or not sizes:
            raise OptionError(f"patch={sizes!r}: expected sizes by dimension, as {{'y': 256}}")
        lengths: dict[str, dict[int, str]] = {}
        for variable in spec:
            for dim, length in zip(variable.dims, variable.shape, strict=True):
                lengths.setdefault(dim, {}).setdefault(length, variable.name)
        self.dims = tuple(sizes)
        self.lengths = tuple(_length(dim, size, lengths) for dim, size in sizes.items())
        self.sizes = tuple(map(int, sizes.values()))
        self.cuts = {v.name: self.cut(v) for v in spec if {*v.dims} & {*sizes}}
        self.part = SampleSpec(tuple(self.cut(variable).part for variable in spec))
        self.at, self._seed = at, seed
        pairs = list(zip(self.lengths, self.sizes, strict=True))
        self._counts = [length - size + 1 for length, size in pairs]
        starts = [[(count - 1) // 2] for count in self._counts]
        if at == "tiles":
            # The last tile ends where the dimension does: it overlaps the one before.
            starts = [sorted({min(at, n - size) for at in range(0, n, size)}) for n, size in pairs]
        self._tiles = np.array(list(itertools.product(*starts)), dtype=np.int64)

    @property
    def n_each(self) -> int:
        """Patches of each sample."""
        return len(self._tiles)

    def cut(self, variable: Variable) -> PatchCut:
        """Return what patches take of a variable."""
        columns = tuple(self.dims.index(dim) if dim in self.dims else -1 for dim in variable.dims)
        sizes = tuple(
            length if column < 0 else self.sizes[column]
            for column, length in zip(columns, variable.shape, strict=True)
        )
        return PatchCut(variable, columns, sizes)

    def corners(self, samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return where patches begin: (samples, dimensions)."""
        if self.at == "random":
            return drawn_below(self._counts, samples, seed=self._seed, epoch=max(0, epoch))
        corners: NDArray[np.int64] = self._tiles[samples % len(self._tiles)]
        return corners


def _length(dim: str, size: Any, lengths: Mapping[str, Mapping[int, str]]) -> int:
    """Return the length of a dimension of which patches take so much."""
    if not isinstance(size, (int, np.integer)) or size < 1:
        raise OptionError(f"patch: {dim}={size!r}, expected a whole number of 1 or more")
    if dim not in lengths:
        known = ", ".join(f"{name} ({'/'.join(map(str, n))})" for name, n in lengths.items())
        raise OptionError(
            f"patch: no variable has the dimension {dim}; dimensions (lengths): {known}"
        )
    if len(lengths[dim]) > 1:
        listed = ", ".join(f"{name} has {length}" for length, name in lengths[dim].items())
        raise OptionError(
            f"patch: along {dim} {listed}; patches are cut at one place of all variables"
        )
    length = next(iter(lengths[dim]))
    if size > length:
        raise OptionError(f"patch: {dim}={size} is more than the {length} there are")
    return length


class CutReader:
    """Boxes of samples that another reader fills whole, some at once."""

    def __init__(
        self, whole: Reader, spec: SampleSpec, patches: PatchPlaces, most_nbytes: int = sys.maxsize
    ) -> None:
        self._whole = whole
        self._cuts = patches.cuts
        self._scratch = ScratchRows(spec)
        self._at_once = max(1, most_nbytes // max(1, spec.nbytes))
        self.close = whole.close

    def fill(
        self, samples: NDArray[np.int64], rows: Rows, log: BatchLog, corners: NDArray[np.int64]
    ) -> None:
        """Fill whole samples, each once, then copy their boxes."""
        every, place = np.unique(samples, return_inverse=True)
        boxes = corners.tolist()
        for first in range(0, len(every), self._at_once):
            some = every[first : first + self._at_once]
            whole = self._scratch.arrays(len(some))
            self._whole.fill(some, whole, log)
            start_ns = log.now_ns()
            nbytes = 0
            here = np.flatnonzero((place >= first) & (place < first + len(some)))
            for row, at in zip(here.tolist(), (place[here] - first).tolist(), strict=True):
                for name, target in rows.items():
                    cut = self._cuts.get(name)
                    source = whole[name][at]
                    target[row, ...] = source if cut is None else source[cut.box(boxes[row])]
                    nbytes += target[row].nbytes
            log.add(Kind.PREPROCESS, start_ns, nbytes=nbytes, label="patch")


class BoxRange(NamedTuple):
    """Bytes of a file, and where those of a box that are among them go."""

    file: int
    offset: int
    nbytes: int
    target: NDArray[Any]
    strides: tuple[int, ...]  # of the numbers there, where they lie as memory has them
    # else the array, the number of the extent, what of its chunk is taken, and the sample
    chunk: tuple[ChunkedArray, int, tuple[slice, ...], int] | None = None


class StoredVariable:
    """Where a variable lies in the extents of each sample: in chunks, or in one that is all."""

    def __init__(self, array: ChunkedArray, cut: PatchCut, start: int = 0) -> None:
        self.array, self.cut = array, cut
        self.start = start  # where in its extent it begins, if it is not encoded
        steps = [*array.chunk[1:], array.dtype.itemsize]
        self.strides = tuple(math.prod(steps[axis:]) for axis in range(len(array.chunk)))

    def ranges(
        self,
        sample: int,
        places: list[tuple[int, int, int]],
        corner: list[int],
        target: NDArray[Any],
        gap_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield what a box takes of a sample, whose extents lie at ``places``."""
        array, strides = self.array, self.strides
        begin = self.cut.starts(corner)
        end = [start + size for start, size in zip(begin, self.cut.sizes, strict=True)]
        for parts in parts_touched(array.chunk, begin, end):
            number, inner = 0, tuple(each for *_, each in parts)
            for (place, *_), n, c in zip(parts, array.shape, array.chunk, strict=True):
                number = number * -(-n // c) + place
            index: Any = (*(outer for _, outer, _ in parts), ...)
            part = target[index]
            extent = array.extent + number * array.is_encoded
            file, offset, nbytes = places[extent]
            if array.is_encoded:
                chunk = array, extent, inner, sample
                yield BoxRange(file, offset, nbytes, part, (), chunk)
                continue
            offset += self.start + number * array.chunk_nbytes
            offset += sum(one.start * each for one, each in zip(inner, strides, strict=True))
            yield from _rows(file, offset, part, strides, gap_nbytes)


def _rows(
    file: int, offset: int, target: NDArray[Any], strides: tuple[int, ...], gap_nbytes: int
) -> Iterator[BoxRange]:
    """Yield numbers from the first to the last one, apart where far more lies between."""
    spans = [target.itemsize]  # bytes from the first to the last one, by the axes from one on
    for size, stride in zip(target.shape[::-1], strides[::-1], strict=True):
        spans.insert(0, spans[0] + (size - 1) * stride)
    split = 0
    while (gap_nbytes and split < target.ndim) and (
        target.shape[split] == 1 or strides[split] - spans[split + 1] >= gap_nbytes
    ):
        split += 1
    for index in np.ndindex(*target.shape[:split]):
        at = offset + sum(place * each for place, each in zip(index, strides, strict=False))
        yield BoxRange(file, at, spans[split], target[(*index, ...)], strides[split:])


def find_arrays(source: StoreSource, patches: PatchPlaces) -> list[StoredVariable]:
    """Return where the variables of a store lie; none where boxes are cut of whole samples."""
    store, layout = source.store, source.layout
    if source.checks is not None or not len(store):
        return []
    cuts = {v.name: patches.cut(v) for v in store.manifest.spec if v.nbytes}
    arrays = []
    if layout is not None and layout.around is None:
        for number, parts in enumerate(layout.extents):
            for part in parts:
                if part.name:
                    v = cuts[part.name].variable
                    array = ChunkedArray(v, v.shape, extent=number)
                    arrays.append(StoredVariable(array, cuts[v.name], part.start))
    elif layout is None and isinstance(store.decoder, ChunkedDecoder):
        arrays = [StoredVariable(each, cuts[each.variable.name]) for each in store.decoder.arrays]
    each_nbytes = REQUEST_NBYTES if source.is_remote else COPY_NBYTES
    cost = patches.part.nbytes + len(arrays) * each_nbytes
    return arrays if cost < source.spec.nbytes * (DECODE_FACTOR if layout is None else 1) else []


class BoxReader:
    """Fills rows with boxes of a store's samples."""

    def __init__(
        self, source: StoreSource, patches: PatchPlaces, arrays: list[StoredVariable]
    ) -> None:
        self._store, self._table, self._files = source.store, source.store.table, source.files
        self._arrays = arrays
        self._packed = [
            (patches.cut(v).part, v.packed)
            for v in source.store.manifest.spec
            if v.packed is not None
        ]
        self._scratch = ScratchBytes()

    def fill(
        self, samples: NDArray[np.int64], rows: Rows, log: BatchLog, corners: NDArray[np.int64]
    ) -> None:
        """Fill ``rows`` with the boxes of samples that begin at these corners."""
        watch = StageStopwatch(log)
        stored = dict(rows)
        for part, _ in self._packed:
            memory = self._scratch.take(part.name, len(samples) * part.nbytes)
            stored[part.name] = memory.view(part.dtype).reshape(len(samples), *part.shape)
        watch.start()
        order = np.argsort(samples, kind="stable").tolist()

        def ranges(gap_nbytes: int) -> Iterator[BoxRange]:
            for row in order:
                sample, corner = int(samples[row]), corners[row].tolist()
                places = list(self._table.places(sample))
                for each in self._arrays:
                    target = stored[each.array.variable.name][row, ...].reshape(each.cut.sizes)
                    yield from each.ranges(sample, places, corner, target, gap_nbytes)

        if self._files is None:
            apart, files = list(ranges(REQUEST_NBYTES)), self._table.files
            read = self._store.read([FileRange(files[one.file], *one[1:3]) for one in apart])
            for one, data in zip(apart, read, strict=True):
                self._put(one, data, 0, watch)
        else:
            if not is_cached(self._table, samples[order], self._files):
                places = np.array([one[:3] for one in ranges(CALL_NBYTES)], dtype=np.int64)
                start, nbytes = places[:, 1], places[:, 2]
                ask_for_ranges(places[:, 0], start, start + nbytes, self._files)
            for one in ranges(0):
                mapped = self._files.mapped(one.file)
                if (end := one.offset + one.nbytes) > len(mapped):
                    raise self._files.opened(one.file).ends_early(len(mapped), end)
                self._put(one, mapped, one.offset, watch)
        for part, packed in self._packed:
            unpack(stored[part.name], packed, rows[part.name])
            watch.end(Kind.DECODE, stored[part.name].nbytes)
        watch.emit()

    def _put(self, one: BoxRange, buffer: Any, offset: int, watch: StageStopwatch) -> None:
        """Copy, or decode, the numbers that lie in a buffer."""
        target = one.target
        if one.chunk is None:
            target[...] = np.ndarray(target.shape, target.dtype, buffer, offset, one.strides)
            watch.end(Kind.READ, target.nbytes)
            return
        array, extent, inner, sample = one.chunk
        decoder = self._store.decoder
        assert isinstance(decoder, ChunkedDecoder)
        chunk = self._scratch.take("", array.chunk_nbytes)
        watch.end(Kind.READ, one.nbytes)
        try:
            decoder.decode_chunk(extent, memoryview(buffer)[offset : offset + one.nbytes], chunk)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {sample}: {error}") from error
        target[...] = chunk.view(array.dtype).reshape(array.chunk)[inner]
        watch.end(Kind.DECODE, one.nbytes)

    def close(self) -> None:
        """Let memory go."""
        self._scratch.clear()
