"""One shard of a container: files written, all of it summed up.

A container derives its writer from `ShardWriter` and says how samples lie in its files.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.files.crc32c import crc32c, crc32c_of_file, crc32c_of_rows
from iobench.files.urls import new_file
from iobench.stores.contract import ShardInfo
from iobench.stores.manifest import Shard, ShardFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec

SMALL_NBYTES: Final = 1 << 16
BUFFER_NBYTES: Final = 1 << 20
"""Short pieces are gathered to this much before they are written."""


class EncodedStack(NamedTuple):
    """Some samples as they lie in the files of a shard."""

    n_samples: int
    buffers: Sequence[Sequence[Any]]  # for each file of samples, in their order
    checksums: NDArray[np.uint32]  # CRC-32C of each extent: (samples, extents)
    lengths: Sequence[NDArray[np.int64]] = ()  # for each file, of what its index counts


Encode = Callable[[Mapping[str, "NDArray[Any]"]], EncodedStack]
"""Returns samples side by side as they lie in files; threads call it at once."""


class RowTable:
    """Samples as rows of bytes: each variable at its place, and the same bytes around them all."""

    def __init__(
        self, dtype: np.dtype[Any], names: Mapping[str, str] | None = None, around: bytes = b""
    ) -> None:
        self._dtype = dtype
        self._names = names or {name: name for name in dtype.names or ()}
        self._around = np.frombuffer(around or bytes(dtype.itemsize), dtype=np.uint8)

    def filled(self, rows: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Return the bytes of samples, a row each."""
        n_samples = len(next(iter(rows.values())))
        table = np.empty((n_samples, self._dtype.itemsize), dtype=np.uint8)
        table[:] = self._around
        if self._dtype.itemsize:
            view = table.reshape(-1).view(self._dtype)
            for field, name in self._names.items():
                view[field] = rows[name]
        return table


class ShardWriter:
    """Writes one shard; a container's writer derives from it. See `iobench.stores.Writer`.

    To override is `write_sample`, where no ``encode`` is given; and `begin`, `wrote` and `finish`
    where a file has something before its samples or behind them.
    """

    def __init__(
        self,
        path: Path,
        spec: SampleSpec,
        *,
        shard: int,
        files: Sequence[str],
        encode: Encode | None = None,
        at_once: int = 1,
    ) -> None:
        self.spec = spec
        self.n_samples = 0
        self.expected = 0  # samples that may come, for files that begin with their number
        self.checksums = array("I")
        self.files: list[ShardFileWriter] = []
        self._shard, self._encode = shard, encode
        self._at_once = at_once  # samples that are encoded together
        self._waiting: list[Sample] = []
        try:
            for name in files:
                self.files.append(ShardFileWriter(path / name, below=path))
        except BaseException:
            self.abort()
            raise

    def begin(self) -> None:
        """Write what is before the first sample."""

    def write_sample(self, sample: Sample) -> None:
        """Write one sample, which has been checked, and add its checksums."""
        raise NotImplementedError

    def wrote(self, stack: EncodedStack) -> None:
        """Take note of samples that were written."""

    def finish(self) -> None:
        """Write what is behind the last sample."""

    def append(self, sample: Sample) -> None:
        """Write one sample; raise SampleError or StorageError."""
        number = self.n_samples + len(self._waiting)
        self.spec.check(sample, where=f"sample {number} of shard {self._shard}")
        if self._encode is not None:
            self._waiting.append({name: sample[name][None].copy() for name in self.spec.names})
            if len(self._waiting) == self._at_once:
                self._append_waiting()
            return
        if not self.n_samples:
            self.begin()
        self.n_samples += 1
        self.write_sample(sample)

    def _append_waiting(self) -> None:
        assert self._encode is not None
        waiting, self._waiting = self._waiting, []
        rows = {name: np.concatenate([each[name] for each in waiting]) for name in waiting[0]}
        self.append_stack(self._encode(rows))

    def append_stack(self, stack: EncodedStack) -> None:
        """Write samples that are encoded."""
        if not self.n_samples:
            self.begin()
        self.n_samples += stack.n_samples
        for file, buffers in zip(self.files, stack.buffers, strict=False):
            file.write(*buffers)
        self.checksums.frombytes(np.ascontiguousarray(stack.checksums, dtype=np.uintc).tobytes())
        self.wrote(stack)

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        try:
            if self._waiting:
                self._append_waiting()
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


def octets(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, a row each."""
    plain = np.ascontiguousarray(rows)
    return plain.reshape(-1).view(np.uint8).reshape(len(plain), plain[0].nbytes)


def row_checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC-32C of rows of bytes."""
    if rows.shape[1] < SMALL_NBYTES:
        return crc32c_of_rows(rows)
    return np.array([crc32c(row.data) for row in rows], dtype=np.uint32)


class ShardFileWriter:
    """One file of a shard, under a temporary name until ``commit``."""

    def __init__(self, path: Path, *, below: Path | None = None) -> None:
        self._file = new_file(path, folder=below)
        self._path = path
        self._name = path.relative_to(below or path.parent).as_posix()
        self._small = memoryview(bytearray(BUFFER_NBYTES))  # one for all: fresh pages cost time
        self._n_small = 0
        self._crc32c = 0
        self._is_rewritten = False
        self.nbytes = 0

    def write(self, *pieces: Any) -> None:
        """Append buffers of bytes; raise StorageError, resumable, when the file system refuses."""
        for piece in pieces:
            nbytes = len(piece)
            end = self._n_small + nbytes
            if nbytes >= SMALL_NBYTES or end > BUFFER_NBYTES:
                self._flush()
                end = nbytes
            if nbytes >= SMALL_NBYTES:
                self._put(piece)
            else:
                self._small[self._n_small : end] = piece
                self._n_small = end
            self.nbytes += nbytes

    def rewrite_start(self, data: bytes) -> None:
        """Replace the first bytes, for headers that hold what only the end of a shard knows."""
        self._flush()
        self._file.rewind()
        self._file.write(data)
        self._is_rewritten = True

    def commit(self) -> ShardFile:
        """Sync to disk, rename into place and return what the manifest lists."""
        self._flush()
        self._file.commit()
        if self._is_rewritten:
            self._crc32c = crc32c_of_file(self._path)
        return ShardFile(self._name, self.nbytes, self._crc32c)

    def abort(self) -> None:
        """Drop the file."""
        self._file.abort()

    def _flush(self) -> None:
        if self._n_small:
            self._put(self._small[: self._n_small])
            self._n_small = 0

    def _put(self, data: Any) -> None:
        self._file.write(data)
        self._crc32c = crc32c(data, self._crc32c)
