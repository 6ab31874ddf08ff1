"""What metadata say of a Zarr array and of a store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable

MAX_RANK = 32
"""Axes of a NumPy array, before its version 2."""

MAX_NBYTES = 1 << 60


def lengths(described: Any, itemsize: int, *, least: int = 0) -> tuple[int, ...]:
    """Return the lengths of an array, or of its chunks, as metadata give them."""
    if not isinstance(described, list) or len(described) > MAX_RANK:
        raise ValueError(f"lengths {described!r:.80}, expected a list of up to {MAX_RANK}")
    if any(type(length) is not int or length < least for length in described):
        raise ValueError(f"lengths {described!r:.80}, expected whole numbers from {least}")
    if math.prod(filter(None, described)) * itemsize > MAX_NBYTES:
        raise ValueError(f"lengths {described!r:.80}, of more bytes than any store holds")
    return tuple(described)


def attributes_of(described: Any) -> dict[str, Any]:
    """Return attributes as metadata give them."""
    if described is not None and not isinstance(described, dict):
        raise ValueError(f"attributes {described!r:.80}, expected an object")
    return described or {}


def fill_number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as a number of ``dtype``."""
    number = np.array(value)
    usable = not number.ndim and number.dtype.kind in "biufc"
    if usable and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        usable = number.dtype.kind != "c" and limits.min <= value <= limits.max and value % 1 == 0
    if not usable:
        raise ValueError(f"a fill_value {value!r:.80} among numbers of {dtype}")
    return number.astype(dtype)[()]


class StoredArray(msgspec.Struct, frozen=True, eq=False):
    """An array as its metadata describes it."""

    shape: tuple[int, ...]  # may be of length 0
    dims: tuple[str, ...] | None  # None where the dimensions have no names
    dtype: str  # of the stored numbers, with byte order; ``""`` where they are no numbers or dates
    fill: Any  # what chunks hold that were never written; None: not said
    where: dict[str, Any]  # fields of `ChunkedVariable`: how chunks are encoded, where they lie
    attributes: Mapping[str, Any]  # as in the store


class ZarrStore(msgspec.Struct, frozen=True, eq=False):
    """What a Zarr store holds, without its numbers."""

    path: Path  # its folder
    zarr_format: int  # 2 or 3
    dims: Mapping[str, int]  # lengths of all dimensions
    variables: Mapping[str, ChunkedVariable]  # the numeric arrays of the root group
    dates: Mapping[str, ChunkedVariable]  # its arrays of datetime64 and timedelta64
    skipped: Mapping[str, str]  # for each array or group left out, why
    attributes: Mapping[str, Any]  # those of the root group
    # all attributes of each of ``variables`` and ``dates``
    described: Mapping[str, Mapping[str, Any]]
    # the stores that hold arrays, by name, where several were merged
    others: Mapping[str, ZarrStore] = msgspec.field(default_factory=dict)
