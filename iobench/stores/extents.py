"""The one native reader of all stores: extents of files, read into fresh buffers.

A raw Zarr shard, a TFRecord and an ``.npy`` file are the same thing to a loader: a table of
(file, offset, length).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import (
    FileFormatError,
    MissingFileError,
    StoreError,
)
from iobench.files.atomic import storage_errors
from iobench.files.open_files import STORE_FILE, FileSet
from iobench.files.ranges import FileRange, read_extents
from iobench.samples import is_number_below
from iobench.stores.index_file import read_index
from iobench.stores.rounding import unpack_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.samples import SampleSpec
    from iobench.stores.fields import FieldLayout
    from iobench.stores.manifest import Manifest, Shard


class ExtentTable(msgspec.Struct, frozen=True):
    """Where every sample of a store is."""

    files: tuple[Path, ...]  # the files, by number
    file: NDArray[np.uint32]  # number of the file of each extent
    offset: NDArray[np.int64]
    length: NDArray[np.int64]  # bytes

    @classmethod
    def of_shards(
        cls,
        path: Path,
        shards: Sequence[Shard],
        offsets: Sequence[NDArray[np.int64]],
        length: NDArray[np.int64],
        *,
        file_numbers: Sequence[int] | NDArray[np.int64] = (0,),
    ) -> ExtentTable:
        """Return the table of a store at ``path``.

        Parameters
        ----------
        offsets : sequence of ndarray
            For each shard, where the extents of its samples begin: (samples, extents).
        length : ndarray
            Bytes of the extents of all samples, or of any sample.
        file_numbers : sequence of int
            In which file of its shard each extent of a sample lies.
        """
        numbers = np.asarray(file_numbers, dtype=np.int64)
        n_files, counts = int(numbers.max()) + 1, [shard.n_samples for shard in shards]
        first = np.repeat(np.arange(len(shards)) * n_files, counts)[:, None]
        return cls(
            files=tuple(path / each.name for shard in shards for each in shard.files[:n_files]),
            file=(first + numbers).astype(np.uint32),
            offset=np.concatenate([np.empty((0, len(numbers)), np.int64), *offsets]),
            length=np.broadcast_to(length, (sum(counts), len(numbers))),
        )

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, index: int) -> list[FileRange[Path]]:
        return [
            FileRange(self.files[file], offset, length)
            for file, offset, length in self.places(index)
        ]

    def places(self, index: int) -> Iterator[tuple[int, int, int]]:
        """Return file (its number), offset and length of each extent of a sample."""
        return zip(
            self.file[index].tolist(),
            self.offset[index].tolist(),
            self.length[index].tolist(),
            strict=True,
        )


@contextmanager
def missing_is_damage(path: Path) -> Iterator[None]:
    """Turn a missing file of a store into a StoreError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{path}{STORE_FILE.if_missing}") from error


class ExtentStore:
    """Finished samples on disk, read by sample number. Picklable: files reopen lazily.

    ``store[i]`` is ``decode(read(extents(i)))``; loaders call the two apart to time them.
    """

    codec = "none"  # or what an extent must go through

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        table: ExtentTable,
        decode: Callable[[Sequence[memoryview]], dict[str, NDArray[Any]]],
    ) -> None:
        self.path = path  # the store's folder
        self.manifest = manifest  # where it came from and how it is laid out
        self.spec: SampleSpec = manifest.spec.unpacked  # what each sample is
        self.table = table
        self.decoder: Any = decode
        self._files: FileSet | None = None

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"<{self.manifest.format} store of {len(self)} samples at {self.path}>"

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        return self.decode(self.read(self.extents(index)))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[dict[str, NDArray[Any]]]:
        by_sample = [self.extents(index) for index in indices]  # all asked for at once
        read = iter(self.read([extent for extents in by_sample for extent in extents]))
        return [self.decode([next(read) for _ in extents]) for extents in by_sample]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}

    def extents(self, index: int) -> list[FileRange[Path]]:
        """Return where the sample's bytes are; raise IndexError beyond the last."""
        if not is_number_below(index, len(self), str(self.path)):
            raise IndexError(f"{self.path}: no sample {index}, the store holds {len(self)}")
        return self.table[index]

    def read(self, extents: Sequence[FileRange[Path]]) -> list[memoryview]:
        """Return the bytes of each extent; raise StoreError if a file is shorter."""
        try:
            return read_extents(extents, lambda path: self.files.at(path))
        except (MissingFileError, FileFormatError) as error:  # an object
            raise StoreError(f"{error}; or convert to a new folder") from error

    def decode(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the sample's arrays, views of ``raw`` where the container allows.

        What is packed (`iobench.samples.Packed`) is unpacked.
        """
        try:
            arrays: dict[str, NDArray[Any]] = self.decoder(raw)
        except StoreError as error:
            raise StoreError(f"{self.path}: {error}") from error
        if self.spec is self.manifest.spec:
            return arrays
        return unpack_sample(self.manifest.spec, arrays)

    def fields(self) -> FieldLayout | None:
        """Return where variables lie in the extents, as stored; None where they are encoded.

        Found in the first sample. If that is damaged, nothing is known: reading it will tell.
        """
        fields: Callable[..., FieldLayout | None] | None = getattr(self.decoder, "fields", None)
        if fields is None or not len(self):
            return None
        try:
            return fields(self.read(self.extents(0)))
        except StoreError:
            return None

    @property
    def files(self) -> FileSet:
        """Its files, opened as they are needed; of a local store."""
        if self._files is None:
            self._files = FileSet(self.table.files, self.file_sizes)
        return self._files

    @property
    def file_sizes(self) -> Mapping[Path, int]:
        """Bytes of each file, as the manifest lists them."""
        return {self.path / file.name: file.nbytes for file in self.manifest.files}

    def index(self) -> SampleIndex:
        """Return times, splits, coordinates and attributes of its samples, as a dataset does.

        ``where`` are numbers of the store. Raises StoreError where the file of it is damaged.
        """
        return read_index(self.path, self.manifest)

    def to_xarray(self) -> Any:
        """Return the store as an ``xarray.Dataset`` that reads samples as they are asked for.

        Dimensions, coordinates and attributes are those that the store's source has, times are
        decoded; ``attrs["splits"]`` has the numbers of each split's samples. Raises
        MissingExtraError where xarray is not installed.
        """
        from iobench.stores.xarray_view import store_dataset

        return store_dataset(self)

    def close(self) -> None:
        """Close the files; the store reopens them when used again."""
        if self._files is not None:
            self._files.close()


def open_file_size(path: Path, *, expected: int) -> int:
    """Return the size of a store's file after checking it against the manifest."""
    with missing_is_damage(path), storage_errors(path):
        nbytes = path.stat().st_size
    if nbytes != expected:
        raise StoreError(
            f"{path}: {nbytes} bytes, its store's manifest says {expected}; convert to a new folder"
        )
    return nbytes
