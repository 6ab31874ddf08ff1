"""One shard of a container: samples as they lie in its files, written and summed up.

A container says how samples are encoded (`Encode`), and derives its writer from `ShardWriter` where
a file has something before its samples or behind them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from iobench.files.crc32c import crc32c, crc32c_of_file, crc32c_of_rows
from iobench.files.urls import new_file
from iobench.stores.manifest import Shard, ShardFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.stores.value_statistics import ShardMoments

SMALL_NBYTES: Final = 1 << 16
"""Shorter pieces are gathered before they are written."""


class EncodedStack(NamedTuple):
    """Some samples as they lie in the files of a shard."""

    buffers: Sequence[Sequence[Any]]  # for each file of samples, in their order
    checksums: NDArray[np.uint32]  # CRC-32C of each extent: (samples, extents)
    lengths: Sequence[NDArray[np.int64]] = ()  # for each file, of what its index counts


Encode = Callable[[Mapping[str, "NDArray[Any]"]], EncodedStack]
"""Returns samples side by side as they lie in files; threads call it at once."""


class ShardPlan(msgspec.Struct, frozen=True):
    """A shard that is to be written."""

    number: int = 0
    n_samples: int = 1  # those that come, unless a limit of time ends it
    full_n_samples: int = 1  # of a full shard of the store, for indexes with a place for each
    # lengths of the dimensions that the store's samples fill as a grid, the last fastest; a shard
    # is a box of it. Empty where there are not several
    sample_grid: Mapping[str, int] = msgspec.field(default_factory=dict)


class ShardInfo(msgspec.Struct, frozen=True):
    """One finished shard."""

    shard: Shard  # samples and files, as the manifest will list them
    checksums: Sequence[int]  # CRC-32C of the bytes of each extent, sample-major
    moments: ShardMoments = msgspec.field(default_factory=dict)  # for the store's statistics


class ShardWriter:
    """Writes the files of one shard under temporary names; only ``close`` makes them appear."""

    def __init__(self, path: Path, plan: ShardPlan, files: Sequence[str]) -> None:
        self.plan = plan
        self.n_samples = 0
        self.checksums = array("I")
        self.lengths = [array("q") for _ in files]  # what `EncodedStack.lengths` told so far
        self.files: list[ShardFileWriter] = []
        try:
            for name in files:
                self.files.append(ShardFileWriter(path / name, below=path))
        except BaseException:
            self.abort()
            raise

    def begin(self) -> None:
        """Write what is before the first sample."""

    def finish(self) -> None:
        """Write what is behind the last sample."""

    def append(self, stack: EncodedStack) -> None:
        """Write samples; raise StorageError when the disk refuses."""
        if not self.n_samples:
            self.begin()
        self.n_samples += len(stack.checksums)
        for file, buffers in zip(self.files, stack.buffers, strict=False):
            file.write(*buffers)
        self.checksums.frombytes(np.ascontiguousarray(stack.checksums, dtype=np.uintc).tobytes())
        for known, lengths in zip(self.lengths, stack.lengths, strict=False):
            known.frombytes(lengths.tobytes())

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        try:
            if not self.n_samples:
                self.begin()
            self.finish()
            files = tuple(file.commit() for file in self.files)
        except BaseException:
            self.abort()
            raise
        return ShardInfo(Shard(self.n_samples, files), self.checksums)

    def abort(self) -> None:
        """Drop the unfinished shard."""
        for file in self.files:
            file.abort()


def fill_table(
    rows: Mapping[str, NDArray[Any]],
    dtype: np.dtype[Any],
    names: Mapping[str, str] | None = None,
    around: bytes = b"",
) -> NDArray[np.uint8]:
    """Return samples as rows of bytes: variables in fields of a dtype, the same bytes around them.

    ``names`` are the variables by field, where fields are called otherwise.
    """
    n_samples = len(next(iter(rows.values())))
    table = np.zeros((n_samples, dtype.itemsize), dtype=np.uint8)
    if around:
        table[:] = np.frombuffer(around, dtype=np.uint8)
    if dtype.itemsize:
        view = table.reshape(-1).view(dtype)
        for field in dtype.names or ():
            view[field] = rows[field if names is None else names[field]]
    return table


def octets(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, a row each."""
    plain = np.ascontiguousarray(rows)
    return plain.reshape(-1).view(np.uint8).reshape(len(plain), plain[0].nbytes)


def row_checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC-32C of rows of bytes."""
    if rows.shape[1] < SMALL_NBYTES:
        return crc32c_of_rows(rows)
    return np.array([crc32c(row.data) for row in rows], dtype=np.uint32)


def merged(pieces: Iterable[Any]) -> list[Any]:
    """Join neighbouring small buffers: a checksum and a write each would cost more than a copy."""
    result: list[Any] = []
    small: list[Any] = []
    for piece in pieces:
        if len(piece) < SMALL_NBYTES:
            small.append(piece)
            continue
        result += [b"".join(small), piece]
        small = []
    return [*result, b"".join(small)] if small else result


class ShardFileWriter:
    """One file of a shard, under a temporary name until ``commit``."""

    def __init__(self, path: Path, *, below: Path | None = None) -> None:
        self._file = new_file(path, folder=below)
        self._path = path
        self._name = path.relative_to(below or path.parent).as_posix()
        self._crc32c = 0
        self._is_rewritten = False
        self.nbytes = 0

    def write(self, *pieces: Any) -> None:
        """Append buffers of bytes; raise StorageError, resumable, when the file system refuses."""
        for piece in merged(pieces):
            self._file.write(piece)
            self._crc32c = crc32c(piece, self._crc32c)
            self.nbytes += len(piece)

    def rewrite_start(self, data: bytes) -> None:
        """Replace the first bytes, for headers that hold what only the end of a shard knows."""
        self._file.rewind()
        self._file.write(data)
        self._is_rewritten = True

    def commit(self) -> ShardFile:
        """Sync to disk, rename into place and return what the manifest lists."""
        self._file.commit()
        if self._is_rewritten:
            self._crc32c = crc32c_of_file(self._path)
        return ShardFile(self._name, self.nbytes, self._crc32c)

    def abort(self) -> None:
        """Drop the file."""
        self._file.abort()
