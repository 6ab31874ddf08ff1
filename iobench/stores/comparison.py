"""A store against its source: samples made again and compared, bit for bit where none is lossy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import MissingFileError, OptionError, StoreError
from iobench.samples import Sample
from iobench.stores.plan import fingerprint, probe_samples
from iobench.stores.verification import shard_of
from iobench.stores.verify_result import Difference, SourceFiles, VerifyResult

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.stores.contract import Store

MakeSamples = Callable[[Sequence[int]], Iterable[Sample]]
"""From sample numbers of the dataset to the samples, in that order; a generator is closed when no
more are needed. See `iobench.datasets.sample_making`."""


def verify_against(
    store: Store,
    index: SampleIndex,
    make: MakeSamples,
    *,
    files: Sequence[Path] = (),
    share: float = 1.0,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyResult:
    """Make the samples of a store again from its source, and compare.

    Source files are compared with the fingerprints in the manifest first; where some are missing
    or changed, the samples say whether that matters.
    """
    if not 0 < share <= 1:
        raise OptionError(f"--share {share}: expected more than 0 and at most 1")
    allowed = _allowed_errors(store)
    _check_same_kind(store, index, allowed)
    sources = _compare_files(store, files)
    chosen = sorted(probe_samples(len(store), math.ceil(len(store) * share)))
    numbers = [store.manifest.samples[position] for position in chosen]
    collected = _Collected(store, index, allowed)
    made = make(numbers)
    try:
        comparisons = _compared(store, chosen, made, allowed, workers)
        for done, (position, found) in enumerate(comparisons, 1):
            collected.add(position, found)
            if progress is not None:
                progress(done, len(chosen))
    finally:
        close = getattr(made, "close", None)
        if close is not None:
            close()
    return collected.result(sources, len(chosen))


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
    if set(store.spec.names) != set(index.spec.names):
        raise StoreError(
            f"{store.path}: holds arrays {', '.join(store.spec.names)}, the source makes "
            f"{', '.join(index.spec.names)}; give the options it was converted with"
        )
    for variable in store.spec:
        source = index.spec[variable.name]
        is_same = variable.dtype == source.dtype or variable.name in allowed
        if variable.shape != source.shape or not is_same:
            raise StoreError(
                f"{store.path}: {variable.name} is {variable.dtype} {variable.shape}, the source "
                f"makes {source.dtype} {source.shape}; give the options it was converted with"
            )
    beyond = max(store.manifest.samples, default=-1)
    if beyond >= len(index):
        raise StoreError(
            f"{store.path}: holds sample {beyond} of its source, which has {len(index)} now"
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
    missing = {key for key in before if key not in now}
    changed = set()
    for key in before.keys() & now.keys():
        try:
            if fingerprint(now[key], whole="blake2b" in before[key]) != before[key]:
                changed.add(key)
        except MissingFileError:
            missing.add(key)
    added = now.keys() - before.keys()
    return SourceFiles(
        len(before),
        *(tuple(name for name, _ in sorted(keys)) for keys in (missing, changed, added)),
    )


def _by_name(named: Sequence[tuple[str, Any]]) -> dict[tuple[str, int], Any]:
    """Return values by name, and by how manieth of that name: folders may hold equal names."""
    counts: dict[str, int] = {}
    found = {}
    for name, value in named:
        counts[name] = counts.get(name, 0) + 1
        found[name, counts[name]] = value
    return found


class _Unequal(msgspec.Struct, frozen=True):
    """What of one array differs: how many values, the first of them, by how much at most."""

    n_values: int
    index: tuple[int, ...]
    stored: str
    source: str
    largest: float


_Found = tuple[int, dict[str, _Unequal], dict[str, float]]
"""Bytes compared, what differs by array, largest differences of lossy arrays."""


def _compared(
    store: Store,
    positions: Sequence[int],
    made: Iterable[Sample],
    allowed: Mapping[str, float],
    workers: int,
) -> Iterator[tuple[int, _Found]]:
    """Yield (position in the store, what was found) in order, compared by threads."""
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="iobench-compare")
    pending: deque[tuple[int, Future[_Found]]] = deque()
    try:
        for position, sample in zip(positions, made, strict=True):
            pending.append((position, pool.submit(_compare, store, position, sample, allowed)))
            if len(pending) > max(1, workers):
                position, future = pending.popleft()
                yield position, future.result()
        for position, future in pending:
            yield position, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compare(store: Store, position: int, source: Sample, allowed: Mapping[str, float]) -> _Found:
    stored = store[position]
    unequal: dict[str, _Unequal] = {}
    lossy: dict[str, float] = {}
    nbytes = 0
    for name in store.spec.names:
        one, other = stored[name], np.asarray(source[name])
        nbytes += one.nbytes
        if name not in allowed and _same_bits(one, other):
            continue
        differs, off = _difference(one, other, allowed.get(name))
        largest = float(np.max(off, where=np.isfinite(off), initial=0.0))
        if name in allowed:
            lossy[name] = largest
        if differs.any():
            first = tuple(np.argwhere(differs)[0].tolist())
            texts = _texts(one[first], other[first])
            unequal[name] = _Unequal(int(differs.sum()), first, *texts, largest)
    return nbytes, unequal, lossy


def _texts(one: Any, other: Any) -> tuple[str, str]:
    """Return two values in words; with their bytes where they only differ in those."""
    texts = str(one), str(other)
    if texts[0] != texts[1]:
        return texts
    return f"{one} (bytes {one.tobytes().hex()})", f"{other} (bytes {other.tobytes().hex()})"


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return bool(np.array_equal(_bits(one), _bits(other)))


def _bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _difference(
    one: NDArray[Any], other: NDArray[Any], allowed: float | None
) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Return which values differ, and all absolute differences; 0 of equal special values."""
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        off = np.asarray(np.abs(one.astype(wide) - other.astype(wide)))
    if allowed is None:
        itemsize = one.dtype.itemsize
        bits = [_bits(array).reshape(*array.shape, itemsize) for array in (one, other)]
        return np.asarray((bits[0] != bits[1]).any(axis=-1)), off
    is_equal = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.asarray(~is_equal & ~(off <= allowed)), off


class _Collected:
    """What was found, added up in the order of samples."""

    def __init__(self, store: Store, index: SampleIndex, allowed: Mapping[str, float]) -> None:
        self._store = store
        self._index = index
        self._allowed = allowed
        self._nbytes = 0
        self._n_samples = 0
        self._first: Difference | None = None
        self._differing: dict[str, int] = {}
        self._largest: dict[str, float] = {}

    def add(self, position: int, found: _Found) -> None:
        nbytes, unequal, lossy = found
        self._nbytes += nbytes
        self._n_samples += bool(unequal)
        largest = lossy | {name: one.largest for name, one in unequal.items()}
        for name, value in largest.items():
            self._largest[name] = max(value, self._largest.get(name, 0.0))
        for name, one in unequal.items():
            self._differing[name] = self._differing.get(name, 0) + one.n_values
            if self._first is None:
                self._first = self._at(position, name, one)

    def _at(self, position: int, name: str, one: _Unequal) -> Difference:
        number = self._store.manifest.samples[position]
        names = self._index.coordinate
        return Difference(
            shard=shard_of(self._store, position),
            sample=position,
            number=number,
            coordinate=str(names[number]) if number < len(names) else "",
            array=name,
            index=one.index,
            stored=one.stored,
            source=one.source,
        )

    def result(self, files: SourceFiles, n_compared: int) -> VerifyResult:
        return VerifyResult(
            files=files,
            n_samples=len(self._store),
            n_compared=n_compared,
            nbytes=self._nbytes,
            allowed=self._allowed,
            first=self._first,
            n_values=sum(self._differing.values()),
            n_differing_samples=self._n_samples,
            differing=self._differing,
            largest=self._largest,
        )
