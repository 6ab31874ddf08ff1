"""What metadata say of a Zarr array: numbers that are checked, and all of version 2.

Source: the Zarr storage specification version 2; ``_ARRAY_DIMENSIONS`` is xarray's addition.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.chunk_codecs import TEXT_CODECS, refused_codecs
from iobench.chunks.chunked_variable import ChunkKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RANK = 32
"""Axes of a NumPy array, before its version 2."""

MAX_NBYTES = 1 << 60
DIMENSIONS = "_ARRAY_DIMENSIONS"
SPECIAL_FILLS: dict[Any, Any] = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


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


def dims_of(names: Any, rank: int) -> tuple[str, ...]:
    """Return the names of dimensions, of those that have none by their number."""
    return tuple(f"dim_{n}" for n in range(rank)) if names is None else tuple(map(str, names))


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
    dims: tuple[str, ...]
    is_named: bool  # whether its dimensions have names of their own
    dtype: str  # of the stored numbers, with byte order; ``""`` where they are no numbers or dates
    fill: Any  # what chunks hold that were never written; None: not said
    where: dict[str, Any]  # fields of `ChunkedVariable`: how chunks are encoded, where they lie
    attributes: Mapping[str, Any]  # as in the store


def array_of_version2(metadata: Mapping[str, Any], attributes: Mapping[str, Any]) -> StoredArray:
    """Return what a ``.zarray`` and a ``.zattrs`` say."""
    if metadata["zarr_format"] != 2:
        raise ValueError(f"zarr_format {metadata['zarr_format']} in a .zarray")
    dtype = _dtype(metadata["dtype"])
    shape = lengths(metadata["shape"], np.dtype(dtype).itemsize if dtype else 1)
    names = attributes.get(DIMENSIONS)
    return StoredArray(
        shape=shape,
        dims=dims_of(names, len(shape)),
        is_named=names is not None,
        dtype=dtype,
        fill=_fill(metadata["fill_value"], dtype),
        where=_chunking(metadata, dtype, len(shape)) if dtype else {},
        attributes={name: value for name, value in attributes.items() if name != DIMENSIONS},
    )


def check_safe2(metadata: Mapping[str, Any]) -> None:
    """Check what zarr would make of a ``.zarray`` before it does; raises as that of version 3."""
    described = [*(metadata.get("filters") or []), metadata.get("compressor")]
    applied = [each for each in described if each is not None]
    texts = any(each["id"] in TEXT_CODECS for each in applied)
    if "O" in str(metadata["dtype"]) and not texts:
        raise ValueError(f"objects, dtype {metadata['dtype']!r:.80}")
    if refused := refused_codecs([each for each in applied if each["id"] not in TEXT_CODECS]):
        raise ValueError(f"codec {', '.join(refused)}")


def _dtype(described: Any) -> str:
    """Return the dtype, ``""`` for structures and everything that is no number or date."""
    if not isinstance(described, str):
        return ""
    dtype = np.dtype(described)
    return dtype.str if dtype.kind in "biufcMm" else ""


def _fill(value: Any, dtype: str) -> Any:
    if value is None or not dtype:
        return None
    if isinstance(value, str) and value in SPECIAL_FILLS:
        value = SPECIAL_FILLS[value]
    if np.dtype(dtype).kind in "Mm":
        return np.array(value, dtype="i8").view(np.dtype(dtype).newbyteorder("="))[()]
    if isinstance(value, list):
        parts: list[Any] = [SPECIAL_FILLS.get(part, part) for part in value]
        value = complex(*parts)
    return fill_number(value, np.dtype(dtype).newbyteorder("="))


def _chunking(metadata: Mapping[str, Any], dtype: str, rank: int) -> dict[str, Any]:
    """Return how the array is cut, or the codecs that are not made here."""
    applied = [*(metadata.get("filters") or []), metadata["compressor"]]
    configurations = [each for each in applied if each is not None]
    if unknown := refused_codecs(configurations):
        return {"only_library": f"codec {', '.join(unknown)}"}
    chunk = lengths(metadata["chunks"], np.dtype(dtype).itemsize, least=1)
    if len(chunk) != rank:
        raise ValueError(f"chunks {list(chunk)} of an array with {rank} axes")
    order = metadata["order"]
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r}")
    separator = metadata.get("dimension_separator") or "."
    if separator not in (".", "/"):
        raise ValueError(f"dimension_separator {separator!r}")
    return {
        "chunk": chunk,
        "codecs": tuple(json.dumps(each, sort_keys=True) for each in configurations),
        "axes": () if order == "C" or rank < 2 else tuple(reversed(range(rank))),
        "keys": ChunkKeys("", separator, "0"),
    }
