"""What iobench knows of a Zarr array and of a store: schema, chunks, where their bytes are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.chunks.codec_chain import ChunkCodecs
    from iobench.datasets.packing import Packing

__all__ = [
    "Chunking",
    "Sharding",
    "StoredArray",
    "ZarrStore",
    "ZarrVariable",
    "fill_number",
    "lengths",
]

MAX_RANK = 32
"""Axes of a NumPy array, before its version 2."""

MAX_NBYTES = 1 << 60


def lengths(described: Any, itemsize: int, *, least: int = 0) -> tuple[int, ...]:
    """Return the lengths of an array, or of its chunks, as metadata give them.

    Raises
    ------
    ValueError
        If they are no whole numbers from ``least``, or those of an array that nothing can hold.
    """
    if not isinstance(described, list) or len(described) > MAX_RANK:
        raise ValueError(f"lengths {described!r:.80}, expected a list of up to {MAX_RANK}")
    if any(type(length) is not int or length < least for length in described):
        raise ValueError(f"lengths {described!r:.80}, expected whole numbers from {least}")
    if math.prod(filter(None, described)) * itemsize > MAX_NBYTES:
        raise ValueError(f"lengths {described!r:.80}, of more bytes than any store holds")
    return tuple(described)


def fill_number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as a number of ``dtype``.

    Raises
    ------
    ValueError, TypeError
        If it is no number, or one that the dtype does not have.
    """
    number = np.array(value)
    usable = not number.ndim and number.dtype.kind in "biufc"
    if usable and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        usable = number.dtype.kind != "c" and limits.min <= value <= limits.max and value % 1 == 0
    if not usable:
        raise ValueError(f"a fill_value {value!r:.80} among numbers of {dtype}")
    return number.astype(dtype)[()]


@dataclass(frozen=True, slots=True)
class Sharding:
    """How chunks lie together in a shard, a file of many.

    Parameters
    ----------
    chunks_per_shard : tuple of int
        Along each dimension.
    index_at_end : bool
        Else the index of chunks is the beginning of the file.
    index_checksum : bool
        Whether the index ends with a CRC-32C.
    index_dtype : str
        Of its offsets and lengths.
    """

    chunks_per_shard: tuple[int, ...]
    index_at_end: bool
    index_checksum: bool
    index_dtype: str


@dataclass(frozen=True, slots=True)
class Chunking:
    """How an array is cut into chunks, and what they are called.

    Parameters
    ----------
    codecs : ChunkCodecs
        How to decode a chunk; its ``shape`` is that of a chunk.
    key_prefix, separator, key_of_scalar : str
        A chunk, or shard, is the file ``key_prefix + separator.join(places)``.
    sharding : Sharding or None
        None: every chunk is a file.
    """

    codecs: ChunkCodecs
    key_prefix: str
    separator: str
    key_of_scalar: str
    sharding: Sharding | None = None

    def key(self, place: Sequence[int]) -> str:
        """Return the name of the file of a chunk, or of a shard, by its place in the grid."""
        if not place:
            return self.key_of_scalar
        return self.key_prefix + self.separator.join(map(str, place))


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """An array as its metadata describes it.

    Parameters
    ----------
    shape : tuple of int
        May be of length 0.
    dims : tuple of str or None
        None where the dimensions have no names.
    dtype : str
        Of the stored numbers, with byte order; ``""`` where they are no numbers or dates.
    fill : number or None
        What chunks hold that were never written; None: not said.
    chunking : Chunking or None
        None: only zarr can read it; ``only_zarr`` says why.
    attributes : mapping
        As in the store.
    """

    shape: tuple[int, ...]
    dims: tuple[str, ...] | None
    dtype: str
    fill: Any
    chunking: Chunking | None
    only_zarr: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ZarrVariable:
    """A numeric array of a store: its schema and where its chunks are.

    Parameters
    ----------
    store, name : str
        Path of the store; name of the array in it, that of the folder where the store is the array.
    folder : str
        The folder of its chunks.
    dims, shape : tuple
        In the order of the axes.
    dtype : str
        As stored; ``packing`` may read its bits with another sign.
    packing : Packing
        How stored numbers become numbers.
    fill : number
        What never written chunks hold, as stored.
    chunking : Chunking or None
        None: only zarr can read it; ``only_zarr`` says why.
    only_zarr : str
        See above.
    attributes : mapping
        Those that are texts.
    """

    store: str
    name: str
    folder: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    packing: Packing
    fill: Any
    chunking: Chunking | None
    only_zarr: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class ZarrStore:
    """What a Zarr store holds, without its numbers.

    Parameters
    ----------
    path : Path
        Its folder.
    zarr_format : int
        2 or 3.
    dims : mapping of str to int
        Lengths of all dimensions.
    variables : mapping of str to ZarrVariable
        The numeric arrays of the root group.
    dates : mapping of str to ZarrVariable
        Its arrays of datetime64 and timedelta64.
    skipped : mapping of str to str
        For each array or group left out, why.
    attributes : mapping
        Those of the root group.
    """

    path: Path
    zarr_format: int
    dims: Mapping[str, int]
    variables: Mapping[str, ZarrVariable]
    dates: Mapping[str, ZarrVariable]
    skipped: Mapping[str, str]
    attributes: Mapping[str, Any]
