"""A store against its checksums, and its samples against the source they were made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import StoreError
from iobench.files.crc32c import crc32c, crc32c_of_file
from iobench.stores.extents import missing_is_damage, open_file_size
from iobench.stores.finished_store import read_checksums
from iobench.stores.manifest import MANIFEST_NAME, check_document

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.samples import Sample
    from iobench.stores.contract import Store
    from iobench.stores.manifest import ShardFile

# As `iobench.datasets.Progress`, which this package does not import.
Progress = Callable[[int, int], None]
MakeSamples = Callable[[Sequence[int]], Generator["Sample", None, None]]
"""From sample numbers of the dataset to the samples, in that order."""


def verify_store(store: Store, *, workers: int = 1, progress: Progress | None = None) -> int:
    """Read all files of a store and compare their checksums; return the bytes read."""
    manifest = store.manifest
    check_document(store.path / MANIFEST_NAME)
    shard_of_file = {
        file.name: number for number, shard in enumerate(manifest.shards) for file in shard.files
    }
    for path in store.table.files:
        if path.relative_to(store.path).as_posix() not in shard_of_file:
            raise StoreError(
                f"{path}: its store's manifest does not list it; convert to a new folder"
            )
    total, done, lock = sum(file.nbytes for file in manifest.files), 0, threading.Lock()

    def is_as_written(file: ShardFile) -> bool:
        nonlocal done
        path = store.path / file.name
        nbytes = open_file_size(path, expected=file.nbytes)
        with missing_is_damage(path):
            value = crc32c_of_file(path)
        with lock:
            done += nbytes
            if progress is not None:
                progress(done, total)
        return value == file.crc32c

    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="iobench-verify")
    try:
        for file, is_right in zip(
            manifest.files, pool.map(is_as_written, manifest.files), strict=True
        ):
            if not is_right:
                raise StoreError(_damage(store, file.name, shard_of_file.get(file.name)))
    finally:
        pool.shutdown(cancel_futures=True)
    return done


def _damage(store: Store, name: str, shard: int | None) -> str:
    """Raise StoreError for the first damaged sample of a shard; else return the file in words."""
    where = "" if shard is None else f" of shard {shard}, outside its samples,"
    if shard is not None:
        checks = ExtentChecks(store)
        ends = np.cumsum([each.n_samples for each in store.manifest.shards])
        for sample in range(ends[shard] - store.manifest.shards[shard].n_samples, ends[shard]):
            for number, data in enumerate(store.read(store.extents(sample))):
                checks.compare([sample], number, [data])
    return f"{store.path / name}: checksum of the file{where} is wrong; convert to a new folder"


class ExtentChecks:
    """The checksums that were written with a store, one for each extent."""

    def __init__(self, store: Store) -> None:
        self._store = store
        n_extents = len(store.extents(0)) if len(store) else 1
        checksums = read_checksums(store.path, len(store) * n_extents)
        self._known: NDArray[np.uint32] = checksums.reshape(len(store), n_extents)

    def compare(
        self, samples: Sequence[int] | NDArray[np.int64], number: int, *parts: Iterable[Any]
    ) -> None:
        """Raise StoreError unless an extent is as written; ``parts`` of it are by sample."""
        checksums = [0] * len(samples)
        for part in parts:
            checksums = list(map(crc32c, part, checksums))
        wrong = np.flatnonzero(np.array(checksums) != self._known[samples, number])
        if wrong.size:
            raise StoreError(_wrong_extent(self._store, int(samples[wrong[0]]), number))


def _wrong_extent(store: Store, sample: int, number: int) -> str:
    """Return in words that a checksum is not that of an extent of a sample."""
    extent, last = store.extents(sample)[number], sample
    while last + 1 < len(store) and store.extents(last + 1)[number] == extent:
        last += 1  # samples that share it
    which = f"sample {sample}" if last == sample else f"samples {sample} to {last}"
    return (
        f"{extent.file}: checksum of shard {_shard_of(store, sample)}, {which}, is wrong "
        f"({extent.nbytes} bytes from byte {extent.offset}); convert to a new folder"
    )


def _shard_of(store: Store, sample: int) -> int:
    ends = np.cumsum([shard.n_samples for shard in store.manifest.shards])
    return int(np.searchsorted(ends, sample, side="right"))


# ---- samples against their source


def verify_against(
    store: Store, index: SampleIndex, make: MakeSamples, progress: Progress | None = None
) -> None:
    """Make samples of a store again from its source; raise StoreError for the first other value.

    Those of lossy variables may be off by the largest error that the manifest says; others are
    compared bit for bit.
    """
    try:
        lossy = store.manifest.lossy.items()
        allowed = {name: float(errors["max_absolute_error"]) for name, errors in lossy}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{store.path}: its manifest's lossy errors are damaged") from error
    _check_same_kind(store, index, allowed)
    numbers = list(map(int, store.manifest.samples))
    with closing(make(numbers)) as samples:
        for place, (number, source) in enumerate(zip(numbers, samples, strict=True)):
            stored = store[place]
            for name in store.spec.names:
                made = np.asarray(source[name])
                if said := _difference(name, stored[name], made, allowed.get(name)):
                    names = index.coordinate
                    named = f" ({names[number]})" if number < len(names) else ""
                    raise StoreError(
                        f"{store.path}: not as its source: shard {_shard_of(store, place)}, sample "
                        f"{place}, which is {number} of the source{named}: {said}"
                    )
            if progress is not None:
                progress(place + 1, len(numbers))


def _difference(
    name: str, stored: NDArray[Any], source: NDArray[Any], allowed: float | None
) -> str:
    """Return in words the first two values that differ; empty where none do."""
    one, other = _octets(stored), _octets(source)
    if allowed is None:
        differs = (one != other).any(axis=-1)
    else:
        with np.errstate(all="ignore"):
            off = np.abs(stored.astype(np.float64) - source.astype(np.float64))
        is_same = (stored == source) | (np.isnan(stored) & np.isnan(source))
        differs = ~is_same & ~(off <= allowed)
    if not differs.any():
        return ""
    first = tuple(np.argwhere(differs)[0].tolist())
    texts = [str(stored[first]), str(source[first])]
    if texts[0] == texts[1]:  # they differ in bits that are not printed
        octets = (one[first], other[first])
        texts = [f"{texts[0]} (bytes {each.tobytes().hex()})" for each in octets]
    return f"{name}{list(first) or ''} is {texts[0]}, in the source {texts[1]}"


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


def _octets(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array along one more dimension."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)
