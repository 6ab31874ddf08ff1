"""NumPy: plain ``.npy`` files that ``np.load(..., mmap_mode="r")`` opens without iobench.

Where any variable has less than 64 KiB a sample, a sample is one structured record, aligned, in
``shard-00000.npy``; else every variable has a file of its own, ``shard-00000.<variable>.npy``.
Data begin at a multiple of 64 bytes.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    ExtentStore,
    ExtentTable,
    FieldLayout,
    Manifest,
    Shard,
    ShardFile,
    ShardFileWriter,
    ShardInfo,
    Store,
    crc32c,
    open_file_size,
    storage_errors,
)
from iobench_converters.npy_headers import npy_header, read_npy_header
from iobench_converters.record_buffer import RecordBuffer, checksums_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec

__all__ = ["FORMAT", "NumpyFormat", "NumpyWriter", "is_one_record", "record_dtype"]

RECORD_LIMIT_NBYTES: Final = 64 << 10
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,100}")


@dataclass(frozen=True, slots=True)
class NumpyFormat:
    """The format ``numpy``; it has no options."""

    name: str = "numpy"
    version: int = 1

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the shard that does not fit."""
        try:
            dtypes = _file_dtypes(manifest.spec)
        except SampleError as error:
            raise StoreError(f"{path}: its manifest says what it cannot hold: {error}") from error
        files: list[Path] = []
        offsets: list[NDArray[np.int64]] = []
        for shard in manifest.shards:
            if len(shard.files) != len(dtypes):
                raise StoreError(f"{path}: a shard has {len(shard.files)} of {len(dtypes)} files")
            starts = [
                _data_start(path, file, dtype=dtype, n_samples=shard.n_samples)
                for file, dtype in zip(shard.files, dtypes, strict=True)
            ]
            strides = np.array([dtype.itemsize for dtype in dtypes], dtype=np.int64)
            offsets.append(np.arange(shard.n_samples)[:, None] * strides + np.array(starts))
            files += [path / file.name for file in shard.files]
        counts = [shard.n_samples for shard in manifest.shards]
        shape = (sum(counts), len(dtypes))
        first = np.repeat(np.arange(len(counts)) * len(dtypes), counts)[:, None]
        table = ExtentTable(
            files=tuple(files),
            file=(first + np.arange(len(dtypes))).astype(np.uint32),
            offset=np.concatenate(offsets) if offsets else np.empty(shape, dtype=np.int64),
            length=np.broadcast_to(np.array([d.itemsize for d in dtypes], dtype=np.int64), shape),
        )
        return ExtentStore(path, manifest, table=table, decode=ArrayDecoder(manifest.spec))

    def writer(
        self,
        path: Path,
        spec: SampleSpec,
        *,
        shard: int,
        options: Mapping[str, str],
        n_samples: int | None = None,
    ) -> NumpyWriter:
        """Return a writer of shard number ``shard`` of the store at ``path``."""
        if options:
            raise OptionError(f"format numpy has no options, got {sorted(options)[0]!r}")
        return NumpyWriter(path, spec, shard=shard, n_samples=n_samples)


FORMAT: Final = NumpyFormat()


class NumpyWriter:
    """Writes the files of one shard; see `iobench.stores.Writer`.

    Where as many samples come as were announced, nothing is rewritten at the end.
    """

    def __init__(
        self, path: Path, spec: SampleSpec, *, shard: int, n_samples: int | None = None
    ) -> None:
        self._spec = spec
        self._where = f"shard-{shard:05d}"
        self._announced = n_samples or 0
        self._n_samples = 0
        self._checksums = array("I")
        self._dtypes = _file_dtypes(spec)
        self._records = RecordBuffer(self._dtypes[0]) if is_one_record(spec) else None
        self._files: list[ShardFileWriter] = []
        try:
            for suffix in _file_suffixes(spec):
                file = ShardFileWriter(path / f"{self._where}{suffix}")
                self._files.append(file)
        except BaseException:
            self.abort()
            raise

    def announce(self, n_samples: int) -> None:
        """Say before the first sample how many there will be."""
        self._announced = n_samples

    def append(self, sample: Sample) -> None:
        """Write one sample; raise SampleError or StorageError."""
        self._spec.check(sample, where=f"sample {self._n_samples} of {self._where}")
        if not self._n_samples:
            self._begin()
        self._n_samples += 1
        if self._records is not None:
            self._records.fill(sample)
            if self._records.is_full:
                self._write_records(self._records)
            return
        for file, name in zip(self._files, self._spec.names, strict=True):
            data = np.ascontiguousarray(sample[name]).reshape(-1).view(np.uint8).data
            file.write(data)
            self._checksums.append(crc32c(data))

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        try:
            if not self._n_samples:
                self._begin()
            if self._records is not None:
                self._write_records(self._records)
            if self._n_samples != self._announced:
                for file, dtype in zip(self._files, self._dtypes, strict=True):
                    file.rewrite_start(npy_header(dtype, self._n_samples))
            files = tuple(file.commit() for file in self._files)
        except BaseException:
            self.abort()
            raise
        return ShardInfo(Shard(self._n_samples, files), self._checksums)

    def _begin(self) -> None:
        for file, dtype in zip(self._files, self._dtypes, strict=True):
            file.write(npy_header(dtype, self._announced))

    def abort(self) -> None:
        """Drop the unfinished shard."""
        for file in self._files:
            file.abort()

    def _write_records(self, records: RecordBuffer) -> None:
        self._checksums.frombytes(checksums_of(records.octets).tobytes())
        self._files[0].write(records.octets.reshape(-1).data)
        records.clear()


@dataclass(frozen=True, slots=True)
class ArrayDecoder:
    """Turns the bytes of one sample into its arrays; they are views."""

    spec: SampleSpec

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise StoreError where the bytes are not those of a sample."""
        dtypes = _file_dtypes(self.spec)
        if [len(data) for data in raw] != [dtype.itemsize for dtype in dtypes]:
            raise StoreError("the bytes are not those of one sample")
        if is_one_record(self.spec):
            record = np.frombuffer(raw[0], dtype=dtypes[0])
            return {variable.name: record[variable.name][0, ...] for variable in self.spec}
        return {
            variable.name: np.frombuffer(data, dtype=variable.dtype).reshape(variable.shape)
            for variable, data in zip(self.spec, raw, strict=True)
        }

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout | None:
        """Return where the arrays lie; `iobench.stores.FieldDecoder`."""
        return FieldLayout.of_views(raw, self(raw), is_tagged=False)


def is_one_record(spec: SampleSpec) -> bool:
    """Return whether a sample is one structured record rather than one file per variable."""
    return any(variable.nbytes < RECORD_LIMIT_NBYTES for variable in spec)


def record_dtype(spec: SampleSpec) -> np.dtype[Any]:
    """Return the structured dtype of one sample, aligned."""
    return np.dtype([(v.name, v.dtype, v.shape) for v in spec], align=True)


def _file_dtypes(spec: SampleSpec) -> list[np.dtype[Any]]:
    """Return for each file of a shard what one sample is in it; raise SampleError if too large."""
    try:
        if is_one_record(spec):
            return [record_dtype(spec)]
        return [np.dtype((variable.dtype, variable.shape)) for variable in spec]
    except ValueError as error:  # NumPy counts the bytes of a dtype in 31 bits
        raise SampleError(
            f"a sample of {spec.nbytes} bytes does not fit the format numpy, whose arrays hold "
            "less than 2 GiB each; choose --format zarr"
        ) from error


def _file_suffixes(spec: SampleSpec) -> list[str]:
    if is_one_record(spec):
        return [".npy"]
    names = [name if _PLAIN.fullmatch(name) else "" for name in spec.names]
    folded = [name.casefold() for name in names]  # some file systems do not tell T from t
    return [
        f".{name}.npy" if name and folded.count(name.casefold()) == 1 else f".variable-{number}.npy"
        for number, name in enumerate(names)
    ]


def _data_start(path: Path, file: ShardFile, *, dtype: np.dtype[Any], n_samples: int) -> int:
    """Return where the data of an ``.npy`` file begin, after checking that it is as written."""
    name = path / file.name
    nbytes = open_file_size(name, expected=file.nbytes)
    with storage_errors(name), name.open("rb") as stream:
        start = read_npy_header(stream, name, dtype=dtype, n_samples=n_samples)
    if start + n_samples * dtype.itemsize != nbytes:
        raise StoreError(f"{name}: {nbytes} bytes do not hold {n_samples} samples")
    return start
