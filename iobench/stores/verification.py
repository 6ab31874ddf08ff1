"""A store against its checksums, and its samples against the source they were made of."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np

from iobench.errors import MissingFileError, OptionError, StoreError
from iobench.files.atomic import is_local, storage_errors
from iobench.files.crc32c import crc32c
from iobench.json_files import open_regular
from iobench.stores.extents import ExtentStore, missing_is_damage
from iobench.stores.finished_store import read_checksums
from iobench.stores.manifest import MANIFEST_NAME, check_document
from iobench.stores.plan import fingerprint, probe_samples

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.files.ranges import FileRange
    from iobench.samples import Sample
    from iobench.stores.contract import Store
    from iobench.stores.manifest import ShardFile

_T = TypeVar("_T")
# As `iobench.datasets.Progress`, which this package does not import.
Progress = Callable[[int, int], None]
MakeSamples = Callable[[Sequence[int]], Iterable["Sample"]]
"""From sample numbers of the dataset to the samples, in that order; a generator is closed when no
more are needed."""

PIECE_NBYTES: Final = 1 << 20
N_NAMED: Final = 3
"""Files named in a sentence."""


def verify_store(store: Store, *, workers: int = 1, progress: Progress | None = None) -> int:
    """Read all files of a store and compare their checksums; return the bytes read."""
    manifest = store.manifest
    check_document(store.path / MANIFEST_NAME)
    listed = [
        (number, file) for number, shard in enumerate(manifest.shards) for file in shard.files
    ]
    _check_listed(store, {file.name for _, file in listed})
    listed += [(-1, file) for file in manifest.metadata]
    total, done, lock = sum(file.nbytes for _, file in listed), 0, threading.Lock()

    def move(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            if progress is not None:
                progress(done, total)

    checks = (lambda file=file: _is_as_written(store.path, file, move) for _, file in listed)
    for (shard, file), is_right in zip(listed, _in_order(checks, workers), strict=False):
        if not is_right:
            raise StoreError(_damage(store, shard, file))
    return done


def _check_listed(store: Store, names: set[str]) -> None:
    for path in store.table.files if isinstance(store, ExtentStore) else ():
        if path.relative_to(store.path).as_posix() not in names:
            raise StoreError(
                f"{path}: its store's manifest does not list it; convert to a new folder"
            )


def _is_as_written(folder: Path, file: ShardFile, move: Callable[[int], None]) -> bool:
    path, buffer = folder / file.name, bytearray(PIECE_NBYTES)
    nbytes = value = 0
    with missing_is_damage(path), storage_errors(path), _opened(path) as stream:
        while nbytes <= file.nbytes and (count := stream.readinto(buffer)):
            value = crc32c(memoryview(buffer)[:count], value)
            nbytes += count
            move(count)
    return (nbytes, value) == (file.nbytes, file.crc32c)


def _opened(path: Path) -> Any:
    """Return a stream of a file's bytes; of nothing that is waited for."""
    return os.fdopen(open_regular(path), "rb", 0) if is_local(path) else path.open("rb")


def _damage(store: Store, shard: int, file: ShardFile) -> str:
    """Return the first damaged sample of a shard in words, or the file where it is none."""
    where = "" if shard < 0 else f" of shard {shard}, outside its samples,"
    if shard >= 0:
        n_extents = len(store.extents(0))
        checksums = read_checksums(store.path, len(store) * n_extents).reshape(-1, n_extents)
        for sample in _samples_of(store, shard):
            data = store.read(store.extents(sample))
            for number, expected in enumerate(checksums[sample].tolist()):
                if crc32c(data[number]) != expected:
                    return wrong_extent(store, sample, number)
    name = store.path / file.name
    return f"{name}: checksum of the file{where} is wrong; convert to a new folder"


def _samples_of(store: Store, shard: int) -> range:
    start = sum(each.n_samples for each in store.manifest.shards[:shard])
    return range(start, start + store.manifest.shards[shard].n_samples)


def wrong_extent(store: Store, sample: int, number: int) -> str:
    """Return in words that a checksum is not that of an extent of a sample."""
    extents = store.extents(sample)
    extent, last = extents[number], sample
    while last + 1 < len(store) and store.extents(last + 1)[number] == extent:
        last += 1  # samples that share it
    which = f"sample {sample}" if last == sample else f"samples {sample} to {last}"
    return (
        f"{extent.file}: checksum of shard {shard_of(store, sample)}, {which}, "
        f"{_arrays_in(store, extent, number, len(extents))} is wrong ({extent.nbytes} bytes from "
        f"byte {extent.offset}); convert to a new folder"
    )


def shard_of(store: Store, sample: int) -> int:
    """Return the number of the shard that holds a sample of the store."""
    ends = np.cumsum([shard.n_samples for shard in store.manifest.shards])
    return int(np.searchsorted(ends, sample, side="right"))


def _arrays_in(store: Store, extent: FileRange[Path], number: int, n_extents: int) -> str:
    names = store.manifest.spec.names
    if n_extents == len(names):
        return f"array {names[number]!r}"
    folder = extent.file.relative_to(store.path).parts[0]
    if folder in names:  # Zarr keeps an array in a folder of its own, several chunks a sample
        return f"array {folder!r}, chunk {number}"
    return f"one of its arrays {', '.join(names)}, which are stored together"


def _in_order(tasks: Iterable[Callable[[], _T]], workers: int) -> Iterator[_T]:
    """Yield what tasks return, in their order, done by threads a little ahead."""
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="iobench-verify")
    pending: deque[Future[_T]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(task))
            if len(pending) > max(1, workers):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# ---- samples against their source


class Difference(msgspec.Struct, frozen=True):
    """One value of a store that is not that of its source."""

    shard: int
    sample: int  # where it is in the store
    source_sample: int  # which sample of the dataset it is
    coordinate: str  # that sample's name (a date), empty where it has none
    array: str
    index: tuple[int, ...]  # position in the array
    stored: str
    source: str  # the two values, as NumPy prints them

    def __str__(self) -> str:
        named = f" ({self.coordinate})" if self.coordinate else ""
        return (
            f"shard {self.shard}, sample {self.sample}, which is {self.source_sample} of the "
            f"source{named}: {self.array}{list(self.index) or ''} is {self.stored}, in the source "
            f"{self.source}"
        )


class SourceFiles(msgspec.Struct, frozen=True):
    """How the source files compare with the fingerprints in the manifest, by file name."""

    n_known: int  # fingerprints in the manifest; of none nothing is known
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether all files are those the store was made of, as far as known."""
        return not (self.missing or self.changed or self.added)

    def __str__(self) -> str:
        kinds = (("missing", self.missing), ("changed", self.changed), ("added", self.added))
        listed = [
            f"{len(names)} {kind} ({', '.join(names[:N_NAMED])}{', ...' * (len(names) > N_NAMED)})"
            for kind, names in kinds
            if names
        ]
        return f"source files: {', '.join(listed) or 'all as they were'}"


class StoreComparison(msgspec.Struct):
    """What comparing samples of a store with its source finds."""

    files: SourceFiles
    n_samples: int
    n_compared: int  # samples that were made again
    # largest absolute error of each lossy array, by the manifest; the others are compared bit for
    # bit
    allowed: Mapping[str, float]
    nbytes: int = 0  # of the arrays compared, as readers of the store get them
    first: Difference | None = None  # in the order of samples, arrays and positions
    n_values: int = 0
    n_differing_samples: int = 0
    differing: dict[str, int] = msgspec.field(default_factory=dict)  # values by array
    # largest difference of two finite values by array, where there is one or the array is lossy
    largest: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether every value compared is that of the source, or within its allowed error."""
        return self.first is None

    def __str__(self) -> str:
        of = "all" if self.n_compared == self.n_samples else f"{self.n_compared} of"
        if self.first is None:
            return f"{of} {self.n_samples} samples are as the source has them"
        largest = ", ".join(
            f"{name} {count} by up to {self.largest[name]:.6g}"
            for name, count in self.differing.items()
        )
        return (
            f"{self.first}; values that differ: {self.n_values}, in {self.n_differing_samples} of "
            f"{self.n_compared} samples ({largest})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {"same": self.same, **values}


def verify_against(
    store: Store,
    index: SampleIndex,
    make: MakeSamples,
    *,
    files: Sequence[Path] = (),
    share: float = 1.0,
    workers: int = 1,
    progress: Progress | None = None,
) -> StoreComparison:
    """Make samples of a store again from its source, and compare them.

    Source files are compared with the fingerprints in the manifest first; where some are missing
    or changed, the samples say whether that matters.
    """
    if not 0 < share <= 1:
        raise OptionError(f"--share {share}: expected more than 0 and at most 1")
    allowed = _allowed_errors(store)
    _check_same_kind(store, index, allowed)
    chosen = sorted(probe_samples(len(store), math.ceil(len(store) * share)))
    comparison = StoreComparison(_compare_files(store, files), len(store), len(chosen), allowed)
    source_samples = make([int(store.manifest.samples[position]) for position in chosen])
    tasks = (
        lambda position=position, sample=sample: _compare(store, position, sample, allowed)
        for position, sample in zip(chosen, source_samples, strict=True)
    )
    try:
        for done, (position, arrays) in enumerate(
            zip(chosen, _in_order(tasks, workers), strict=True), 1
        ):
            _add(comparison, store, index, position, arrays)
            if progress is not None:
                progress(done, len(chosen))
    finally:
        close = getattr(source_samples, "close", None)
        if close is not None:
            close()
    return comparison


def _allowed_errors(store: Store) -> dict[str, float]:
    try:
        return {
            name: float(errors["max_absolute_error"])
            for name, errors in store.manifest.lossy.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{store.path}: its manifest's lossy errors are damaged") from error


def _check_same_kind(store: Store, index: SampleIndex, allowed: Mapping[str, float]) -> None:
    """Raise StoreError where no sample of the store can equal one of the source."""
    remedy = "give the options it was converted with"
    if set(store.spec.names) != set(index.spec.names):
        raise StoreError(
            f"{store.path}: holds arrays {', '.join(store.spec.names)}, the source makes "
            f"{', '.join(index.spec.names)}; {remedy}"
        )
    for one in store.spec:
        source = index.spec[one.name]
        is_same = one.dtype == source.dtype or one.name in allowed
        if one.shape != source.shape or not is_same:
            raise StoreError(
                f"{store.path}: {one.name} is {one.dtype} {one.shape}, the source makes "
                f"{source.dtype} {source.shape}; {remedy}"
            )
    last = int(np.max(store.manifest.samples, initial=-1))
    if last >= len(index):
        raise StoreError(
            f"{store.path}: holds sample {last} of its source, which has {len(index)} now"
        )


def _compare_files(store: Store, files: Sequence[Path]) -> SourceFiles:
    known = store.manifest.provenance.get("fingerprints", [])
    try:
        before = _by_name([(str(entry["name"]), entry) for entry in known])
    except (KeyError, TypeError) as error:
        raise StoreError(f"{store.path}: its manifest's fingerprints are damaged") from error
    if not before:
        return SourceFiles(0)
    now = _by_name([(file.name, file) for file in files])
    missing, changed, added = before.keys() - now.keys(), set(), now.keys() - before.keys()
    for key in before.keys() & now.keys():
        try:
            if fingerprint(now[key], whole="blake2b" in before[key]) != before[key]:
                changed.add(key)
        except MissingFileError:
            missing.add(key)
    names = (tuple(name for name, _ in sorted(keys)) for keys in (missing, changed, added))
    return SourceFiles(len(before), *names)


def _by_name(named: Sequence[tuple[str, _T]]) -> dict[tuple[str, int], _T]:
    """Return values by name and how many of that name came before: folders may repeat names."""
    counts: dict[str, int] = {}
    numbered = {}
    for name, value in named:
        counts[name] = counts.get(name, 0) + 1
        numbered[name, counts[name]] = value
    return numbered


class _Array(msgspec.Struct, frozen=True):
    """How an array of one sample compares with that of its source."""

    nbytes: int
    n_values: int = 0  # that differ
    index: tuple[int, ...] = ()
    texts: tuple[str, str] = ("", "")  # the first two values that differ
    largest: float | None = None


def _compare(
    store: Store, position: int, source: Sample, allowed: Mapping[str, float]
) -> dict[str, _Array]:
    stored = store[position]
    return {
        name: _compare_arrays(stored[name], np.asarray(source[name]), allowed.get(name))
        for name in store.spec.names
    }


def _compare_arrays(one: NDArray[Any], other: NDArray[Any], allowed: float | None) -> _Array:
    if allowed is None and np.array_equal(_octets(one), _octets(other)):
        return _Array(one.nbytes)
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        off = np.asarray(np.abs(one.astype(wide) - other.astype(wide)))
    if allowed is None:
        differs = (_octets(one) != _octets(other)).any(axis=-1)
    else:
        differs = ~((one == other) | (np.isnan(one) & np.isnan(other))) & ~(off <= allowed)
    largest = float(np.max(off, where=np.isfinite(off), initial=0.0))
    if not differs.any():
        return _Array(one.nbytes, largest=largest)
    first = tuple(np.argwhere(differs)[0].tolist())
    texts = str(one[first]), str(other[first])
    if texts[0] == texts[1]:  # they differ in bits that are not printed
        octets = one[first].tobytes().hex(), other[first].tobytes().hex()
        texts = f"{texts[0]} (bytes {octets[0]})", f"{texts[1]} (bytes {octets[1]})"
    return _Array(one.nbytes, int(differs.sum()), first, texts, largest)


def _octets(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array along one more dimension."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def _add(
    comparison: StoreComparison,
    store: Store,
    index: SampleIndex,
    position: int,
    arrays: Mapping[str, _Array],
) -> None:
    comparison.n_differing_samples += any(each.n_values for each in arrays.values())
    for name, each in arrays.items():
        comparison.nbytes += each.nbytes
        comparison.n_values += each.n_values
        if each.largest is not None:
            comparison.largest[name] = max(each.largest, comparison.largest.get(name, 0.0))
        if each.n_values:
            comparison.differing[name] = comparison.differing.get(name, 0) + each.n_values
        if each.n_values and comparison.first is None:
            number = int(store.manifest.samples[position])
            names = index.coordinate
            name_of_sample = str(names[number]) if number < len(names) else ""
            comparison.first = Difference(
                shard_of(store, position), position, number, name_of_sample, name, each.index,
                *each.texts,
            )  # fmt: skip
