"""Every byte of a store against its checksums: each file is read once, several at a time."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import StoreError
from iobench.files.atomic import is_local, storage_errors
from iobench.files.crc32c import crc32c
from iobench.stores.extents import ExtentStore, missing_is_damage
from iobench.stores.finished_store import CHECKSUMS_NAME, read_checksums
from iobench.stores.manifest import MANIFEST_NAME, check_document
from iobench.stores.places import MARK_NAME, STAGED_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.files.ranges import FileRange
    from iobench.stores.contract import Store
    from iobench.stores.manifest import ShardFile

    # As `iobench.datasets.Progress`, which this room is not to know.
    Progress = Callable[[int, int], None]

PIECE_NBYTES = 1 << 20
"""Read at a time: what one thread holds, small enough to be hashed twice in the cache."""


def verify_store(store: Store, *, workers: int = 1, progress: Progress | None = None) -> int:
    """Read a whole store and compare every checksum it has; return the bytes read.

    Every file is read once, in pieces of 1 MiB, whatever the size of a sample.
    """
    counts = [shard.n_samples for shard in store.manifest.shards]
    starts = [0, *accumulate(counts)]
    n_extents = len(store.extents(0)) if len(store) else 0
    checksums = read_checksums(store.path, len(store) * n_extents).reshape(len(store), n_extents)
    counter = _Counter(sum(file.nbytes for file in store.manifest.files), progress)

    def groups() -> Iterator[list[Callable[[], _Damage | None]]]:
        for number, shard in enumerate(store.manifest.shards):
            samples = range(starts[number], starts[number + 1])
            names = {file.name for file in shard.files}
            extents = _extents_by_file(store, samples, n_extents, names)
            yield [
                _FileCheck(
                    store, file, extents.get(file.name, _NO_EXTENTS), checksums, counter, number
                )
                for file in shard.files
            ]
        for file in store.manifest.metadata:
            yield [_FileCheck(store, file, _NO_EXTENTS, checksums, counter, None)]

    for damages in _in_order(groups(), workers):
        if damages:
            raise StoreError(min(damages, key=lambda damage: damage.place).message)
    not_covered(store)
    return counter.done


def not_covered(store: Store) -> tuple[str, ...]:
    """Compare what manifest and mark of a store say with their checksums; return what has none.

    In words, for who reads that a store is as written: what stores of former versions carry no
    checksum of, and files that no manifest lists.
    """
    found = []
    if not check_document(store.path / MANIFEST_NAME):
        found.append(
            f"what {MANIFEST_NAME} says of plan, options, provenance and sample numbers, of which "
            "stores of this version have no checksum"
        )
    with suppress(FileNotFoundError):  # only what iobench put in a place of its own has a mark
        if not check_document(store.path / MARK_NAME):
            found.append(f"{MARK_NAME}, likewise")
    if is_local(store.path):
        listed = {file.name for file in store.manifest.files}
        listed |= {MANIFEST_NAME, MARK_NAME, CHECKSUMS_NAME, STAGED_NAME}
        others = sorted(
            name
            for file in store.path.rglob("*")
            if (name := file.relative_to(store.path).as_posix()) not in listed and file.is_file()
        )
        if others:
            more = f" and {len(others) - 1} more" if others[1:] else ""
            found.append(f"{others[0]}{more}, which the manifest does not list")
    return tuple(found)


def shard_of(store: Store, sample: int) -> int:
    """Return the number of the shard that holds a sample of the store."""
    ends = np.cumsum([shard.n_samples for shard in store.manifest.shards])
    return int(np.searchsorted(ends, sample, side="right"))


def array_of_extent(store: Store, extent: FileRange[Path], number: int, n_extents: int) -> str:
    """Return in words which array the extent of a sample holds."""
    names = store.manifest.spec.names
    if n_extents == len(names):
        return f"array {names[number]!r}"
    folder = extent.file.relative_to(store.path).parts[0]
    if folder in names:  # Zarr keeps an array in a folder of its own, several chunks a sample
        return f"array {folder!r}, chunk {number}"
    return f"one of its arrays {', '.join(names)}, which are stored together"


class _Damage(msgspec.Struct, frozen=True):
    """What is not as written; ``place`` says which comes first: sample, extent."""

    place: tuple[int, int]
    message: str


class _Counter:
    """Bytes done, by all threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._progress = progress
        self.done = 0

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.done += nbytes
            if self._progress is not None:
                self._progress(self.done, self._total)


class _Extents(msgspec.Struct, frozen=True):
    """Extents of one file, sorted by offset; ``index`` counts the extents of the whole store."""

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    index: NDArray[np.int64]


_NO_EXTENTS = _Extents(*(np.empty(0, dtype=np.int64) for _ in range(3)))


class _FileCheck(msgspec.Struct, frozen=True):
    """Reads one file and compares it, and every extent in it, with what was written."""

    store: Store
    file: ShardFile
    extents: _Extents
    checksums: NDArray[np.uint32]
    counter: _Counter
    shard: int | None

    def __call__(self) -> _Damage | None:
        path = self.store.path / self.file.name
        found = np.zeros(len(self.extents.index), dtype=np.uint32)
        whole, position, first = 0, 0, 0
        with missing_is_damage(path), storage_errors(path), path.open("rb", buffering=0) as stream:
            buffer = bytearray(PIECE_NBYTES)
            while count := stream.readinto(buffer):
                piece = memoryview(buffer)[:count]
                whole = crc32c(piece, whole)
                first = self._add(piece, position, first, found)
                position += count
                self.counter.add(count)
        is_whole = whole == self.file.crc32c and position == self.file.nbytes
        return self._wrong_extent(path, found, is_whole) or self._wrong_file(path, is_whole)

    def _add(self, piece: memoryview, position: int, first: int, found: NDArray[np.uint32]) -> int:
        """Go on with the checksums of the extents in a piece; return the first one not done."""
        end = position + len(piece)
        last = int(np.searchsorted(self.extents.offset, end))
        starts = (self.extents.offset[first:last] - position).tolist()
        lengths = self.extents.length[first:last].tolist()
        for at, (start, length) in enumerate(zip(starts, lengths, strict=True), first):
            if start + length > 0:
                found[at] = crc32c(piece[max(start, 0) : start + length], int(found[at]))
        ends = self.extents.offset[first:last] + self.extents.length[first:last]
        unfinished = np.flatnonzero(ends > end)
        return first + int(unfinished[0]) if unfinished.size else last

    def _wrong_extent(
        self, path: Path, found: NDArray[np.uint32], is_whole: bool
    ) -> _Damage | None:
        """Return the first extent that differs, in the order of samples."""
        wrong = self.extents.index[found != self.checksums.reshape(-1)[self.extents.index]]
        if not wrong.size:
            return None
        sample, number = divmod(int(wrong.min()), self.checksums.shape[1])
        extents = self.store.extents(sample)
        extent = extents[number]
        array = array_of_extent(self.store, extent, number, len(extents))
        reason = (
            f"the file is as its manifest says, so {CHECKSUMS_NAME} is damaged"
            if is_whole
            else f"{extent.nbytes} bytes from byte {extent.offset}"
        )
        return _Damage(
            (sample, number),
            f"{path}: checksum of shard {self.shard}, sample {sample}, {array} is wrong "
            f"({reason}); convert to a new folder",
        )

    def _wrong_file(self, path: Path, is_whole: bool) -> _Damage | None:
        if is_whole:
            return None
        where = "" if self.shard is None else f" of shard {self.shard}, outside its samples,"
        message = f"{path}: checksum of the file{where} is wrong; convert to a new folder"
        return _Damage((len(self.store), 0), message)


def _extents_by_file(
    store: Store, samples: range, n_extents: int, names: set[str]
) -> dict[str, _Extents]:
    """Return the extents of some samples by the file they lie in, which must be one of these."""
    files, file, offset, length = _extent_arrays(store, samples)
    index = np.arange(samples.start * n_extents, samples.stop * n_extents)
    by_file = {}
    for number in np.unique(file).tolist():
        path = files[number]
        name = path.relative_to(store.path).as_posix()
        if name not in names:
            raise StoreError(
                f"{path}: holds samples of a shard for which its store's manifest does not list "
                "it; convert to a new folder"
            )
        chosen = np.flatnonzero(file == number)
        chosen = chosen[np.argsort(offset[chosen], kind="stable")]
        by_file[name] = _Extents(offset[chosen], length[chosen], index[chosen])
    return by_file


def _extent_arrays(
    store: Store, samples: range
) -> tuple[Sequence[Path], NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return files, and for each extent of the samples number of its file, offset and length."""
    if isinstance(store, ExtentStore):
        chosen = slice(samples.start, samples.stop)
        table = store.table
        return (
            table.files,
            table.file[chosen].reshape(-1),
            table.offset[chosen].reshape(-1),
            table.length[chosen].reshape(-1),
        )
    numbers: dict[Path, int] = {}
    rows = [
        (numbers.setdefault(extent.file, len(numbers)), extent.offset, extent.nbytes)
        for sample in samples
        for extent in store.extents(sample)
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return list(numbers), columns[:, 0], columns[:, 1], columns[:, 2]


def _in_order(
    groups: Iterator[list[Callable[[], _Damage | None]]], workers: int
) -> Iterator[list[_Damage]]:
    """Yield what the checks of each group found, in order, made by threads a little ahead."""
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="iobench-verify")
    pending: deque[list[Future[_Damage | None]]] = deque()
    try:
        for checks in groups:
            pending.append([pool.submit(check) for check in checks])
            while sum(map(len, pending)) > max(1, workers):
                yield _damages(pending.popleft())
        while pending:
            yield _damages(pending.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _damages(futures: list[Future[_Damage | None]]) -> list[_Damage]:
    return [damage for future in futures if (damage := future.result()) is not None]
