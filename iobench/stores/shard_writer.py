"""One shard of a container: small samples gathered, files written, all of it summed up.

A container derives its writer from `ShardWriter` and says how a sample lies in its files.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.files.atomic import new_file
from iobench.files.crc32c import crc32c, crc32c_of_file, crc32c_of_rows
from iobench.stores.contract import ShardInfo
from iobench.stores.manifest import Shard, ShardFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec

SMALL_NBYTES: Final = 1 << 16
BUFFER_NBYTES: Final = 1 << 20
"""What is gathered before it is written: more than this would leave the processor's cache."""


class Gatherer:
    """Small samples side by side, so that what a file is written in costs little for each.

    A sample is a row of one table, or of several where a container keeps its arrays apart.
    """

    def __init__(
        self,
        dtypes: Sequence[np.dtype[Any]],
        *,
        names: Mapping[str, str] | None = None,
        around: bytes = b"",
    ) -> None:
        self.n_rows = max(1, BUFFER_NBYTES // max(1, sum(dtype.itemsize for dtype in dtypes)))
        tables: list[NDArray[Any]] = [np.zeros(self.n_rows, dtype=dtype) for dtype in dtypes]
        self._octets = [
            table.view(np.uint8).reshape(self.n_rows, table.dtype.itemsize) for table in tables
        ]
        if around:
            self._octets[0][:] = np.frombuffer(around, dtype=np.uint8)
        self._fields = [
            (names[field] if names else field, table[field])
            for table in tables
            for field in table.dtype.names or ()
        ]
        self.n_samples = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no place left."""
        return self.n_samples == self.n_rows

    def octets(self, table: int = 0) -> NDArray[np.uint8]:
        """Return the bytes of the gathered rows of a table, one row each."""
        return self._octets[table][: self.n_samples]

    def fill(self, sample: Sample) -> None:
        """Copy the arrays of a sample, which has been checked, into the next row."""
        at = self.n_samples
        for name, values in self._fields:
            values[at] = sample[name]
        self.n_samples = at + 1

    def fill_rows(self, rows: Mapping[str, NDArray[Any]], start: int) -> int:
        """Copy samples from ``start`` on into the next rows, as they have place; return the end."""
        at, n_samples = self.n_samples, len(next(iter(rows.values())))
        stop = min(n_samples, start + self.n_rows - at)
        for name, values in self._fields:
            values[at : at + stop - start] = rows[name][start:stop]
        self.n_samples = at + stop - start
        return stop

    def clear(self) -> None:
        """Begin anew; the memory is used again."""
        self.n_samples = 0


class ShardWriter:
    """Writes one shard; a container's writer derives from it. See `iobench.stores.Writer`.

    To override are `write_sample`, or, for a writer that gathers small samples,
    `write_gathered`; `write_variable` where `is_by_variable`; and `begin` and `finish` where a
    file has something before its samples or behind them.
    """

    def __init__(
        self,
        path: Path,
        spec: SampleSpec,
        *,
        shard: int,
        files: Sequence[str],
        gatherer: Gatherer | None = None,
    ) -> None:
        self.spec = spec
        self.n_samples = 0
        self.checksums = array("I")
        self.files: list[ShardFileWriter] = []
        self._shard = shard
        self._gatherer = gatherer
        self._apart: dict[int, NDArray[np.uint32]] = {}
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

    def write_gathered(self, gatherer: Gatherer) -> Gatherer:
        """Write the gathered samples, and add their checksums; return where to gather the next.

        Nothing is gathered there: as a rule it is the same one, cleared.
        """
        raise NotImplementedError

    is_by_variable = False
    """Whether each variable has a file of its own, so that samples may come so."""

    def write_variable(self, number: int, rows: NDArray[Any]) -> NDArray[np.uint32]:
        """Write one variable of samples, by its number; return the checksum of each."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is behind the last sample."""

    def append(self, sample: Sample) -> None:
        """Write one sample; raise SampleError or StorageError."""
        self.spec.check(sample, where=f"sample {self.n_samples} of shard {self._shard}")
        if not self.n_samples:
            self.begin()
        self.n_samples += 1
        if self._gatherer is None:
            self.write_sample(sample)
            return
        self._gatherer.fill(sample)
        if self._gatherer.is_full:
            self._gatherer = self.write_gathered(self._gatherer)

    def append_rows(self, samples: Sequence[Sample], rows: Mapping[str, NDArray[Any]]) -> None:
        """Write samples whose arrays lie side by side, too, as `append` would write each."""
        if self._gatherer is None or not self.spec.are_rows(rows):
            for sample in samples:
                self.append(sample)
            return
        if not self.n_samples:
            self.begin()
        done = 0
        while done < len(samples):
            start, done = done, self._gatherer.fill_rows(rows, done)
            self.n_samples += done - start
            if self._gatherer.is_full:
                self._gatherer = self.write_gathered(self._gatherer)

    def append_variable(self, name: str, rows: NDArray[Any]) -> None:
        """Write one variable of samples, which is as it should be; they count with the last one."""
        if not self.n_samples and not self._apart:
            self.begin()
        if self._gatherer is not None and self._gatherer.n_samples:
            self._gatherer = self.write_gathered(self._gatherer)
        number = self.spec.names.index(name)
        self._apart[number] = self.write_variable(number, rows)
        if len(self._apart) == len(self.spec):
            by_variable = [self._apart[each] for each in range(len(self.spec))]
            self._apart = {}
            self.n_samples += len(rows)
            self.checksums.frombytes(np.stack(by_variable, axis=1).tobytes())

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        try:
            if not self.n_samples:
                self.begin()
            if self._gatherer is not None and self._gatherer.n_samples:
                self._gatherer = self.write_gathered(self._gatherer)
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


class ShardFileWriter:
    """One file of a shard, under a temporary name until ``commit``."""

    def __init__(self, path: Path, *, below: Path | None = None) -> None:
        self._file = new_file(path, resumable=True, folder=below)
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

    def write_rows(self, rows: NDArray[Any]) -> NDArray[np.uint32]:
        """Append the rows of an array; return the checksum of each."""
        found = np.empty(len(rows), dtype=np.uint32)
        nbytes = rows[0].nbytes
        if nbytes < SMALL_NBYTES:
            step = max(1, BUFFER_NBYTES // nbytes)
            for start in range(0, len(rows), step):
                # Side by side they may only be now, while the processor's cache has them.
                some = np.ascontiguousarray(rows[start : start + step])
                octets = some.reshape(-1).view(np.uint8).reshape(len(some), -1)
                self.write(octets.reshape(-1).data)
                found[start : start + step] = crc32c_of_rows(octets)
            return found
        for number, row in enumerate(rows.reshape(-1).view(np.uint8).reshape(len(rows), -1)):
            found[number] = crc32c(row.data)
            self.write(row.data)
        return found

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
            kept = self._file.kept()
            self._crc32c = crc32c_of_file(self._path) if kept is None else crc32c(kept)
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
