"""What a store is: finished samples in a standard container, one contiguous extent per array.

Containers themselves (TFRecord, NumPy, Zarr) are formats, found by name through the entry-point
group ``iobench.formats``; see ``converters/README.md`` for how to write one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from iobench.samples import Sample, SampleSpec
from iobench.stores.manifest import Manifest

__all__ = ["Extent", "Format", "ShardInfo", "Store", "Writer"]


@dataclass(frozen=True, slots=True)
class Extent:
    """A contiguous stretch of a file: bytes ``offset`` to ``offset + length``."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One finished shard, as the writer leaves it.

    Parameters
    ----------
    name : str
        File name inside the store.
    n_samples : int
        Samples it holds.
    nbytes : int
        Size of the file.
    crc32c : int
        CRC-32C of the whole file.
    extents : sequence of (offset, length)
        Sample-major: ``n_samples`` times the number of extents per sample.
    checksums : sequence of int
        CRC-32C of the bytes of each extent, in the same order.
    """

    name: str
    n_samples: int
    nbytes: int
    crc32c: int
    extents: Sequence[tuple[int, int]]
    checksums: Sequence[int]


class Writer(Protocol):
    """Writes one shard under a temporary name; only ``close`` makes it appear."""

    def append(self, sample: Sample) -> None:
        """Write one sample; raise StorageError when the disk refuses."""
        ...

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        ...

    def abort(self) -> None:
        """Drop the unfinished shard."""
        ...


class Store(Protocol):
    """Finished samples on disk, read by sample number. Picklable: files reopen lazily.

    ``store[i]`` is ``decode(read(extents(i)))``; loaders call the two apart to time them.

    Attributes
    ----------
    path : Path
        The store's folder.
    spec : SampleSpec
        What each sample is.
    manifest : Manifest
        Where it came from and how it is laid out.
    codec : str
        ``"none"``, or the name of the compressor an extent must go through.
    """

    path: Path
    spec: SampleSpec
    manifest: Manifest
    codec: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]: ...

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, NDArray[Any]]]: ...

    def extents(self, index: int) -> list[Extent]:
        """Return where the sample's bytes are."""
        ...

    def read(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return the bytes of each extent; raise StoreError if a file is shorter."""
        ...

    def decode(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the sample's arrays from the bytes of its extents."""
        ...

    def close(self) -> None:
        """Close the files; the store reopens them when used again."""
        ...


class Format(Protocol):
    """A standard container, writer and reader."""

    name: str
    suffix: str
    """How a shard's file name ends, with the dot."""

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the shard that does not fit."""
        ...

    def writer(self, path: Path, spec: SampleSpec, *, shard: int, options: Mapping[str, str]) -> Writer:
        """Return a writer of shard number ``shard`` of the store at ``path``."""
        ...
