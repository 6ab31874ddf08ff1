"""What the metadata of a Zarr array say: ``.zarray`` of version 2, ``zarr.json`` of version 3.

Sources: the Zarr specifications versions 2 and 3, the codec ``sharding_indexed``, and xarray's
``_ARRAY_DIMENSIONS``. Arrays of what is not covered (chunk grids that are not regular, codecs of
others) are not read.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.chunks.chunk_codecs import CRC32C, SAFE_CODECS, refused_codecs
from iobench.chunks.chunked_variable import ChunkKeys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Layout = dict[str, Any]

MAX_RANK: Final = 32
MAX_NBYTES: Final = 1 << 60
DIMENSIONS: Final = "_ARRAY_DIMENSIONS"
NUMBERS: Final = frozenset((
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64", "complex64", "complex128",
))  # fmt: skip
FIELDS_OF_3: Final = frozenset((
    "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "codecs",
    "fill_value", "attributes", "dimension_names", "storage_transformers",
    "consolidated_metadata",
))  # fmt: skip
FOREIGN: Final = "numcodecs."
MADE_BY_ZARR: Final = SAFE_CODECS | {
    "vlen-utf8", "vlen-bytes", "bytes", "transpose", "sharding_indexed",
}  # fmt: skip
"""What zarr may make of the metadata of a store that is handed to it."""


class StoredArray(msgspec.Struct, frozen=True, eq=False):
    """An array as its metadata describe it."""

    shape: tuple[int, ...]  # may be of length 0
    dims: tuple[str, ...]
    is_named: bool  # whether its dimensions have names of their own
    dtype: str  # of the stored numbers, with byte order; ``""`` where they are no numbers or dates
    fill: Any  # what chunks hold that were never written; None: not said
    where: Layout  # fields of `ChunkedVariable`: how chunks are encoded, where they lie
    attributes: Mapping[str, Any]


class _UnreadError(Exception):
    """What is not read here; the message names it."""


def array_of(metadata: Mapping[str, Any], attributes: Any) -> StoredArray:
    """Return what a ``.zarray`` with its ``.zattrs`` says, or a ``zarr.json``."""
    version = metadata["zarr_format"]
    if version == 3:
        attributes, names = metadata.get("attributes"), metadata.get("dimension_names")
        dtype = _dtype3(metadata["data_type"])
    else:
        names = None
        dtype = _dtype2(metadata["dtype"])
    if version not in (2, 3):
        raise ValueError(f"zarr_format {version!r:.80}")
    if attributes is not None and not isinstance(attributes, dict):
        raise ValueError(f"attributes {attributes!r:.80}, expected an object")
    attributes = dict(attributes or {})
    if version == 2:
        names = attributes.pop(DIMENSIONS, None)
    shape = _lengths(metadata["shape"], np.dtype(dtype).itemsize if dtype else 1)
    is_named = names is not None and None not in names
    dims: Any = names if is_named else [f"dim_{n}" for n in range(len(shape))]
    fill, where = None, {}
    if dtype:
        if (fill := metadata["fill_value"]) is not None:
            fill = _fill(fill, np.dtype(dtype).newbyteorder("="))
        try:
            where = (_layout3 if version == 3 else _layout2)(metadata, dtype, len(shape))
        except _UnreadError as error:
            where = {"only_library": str(error)}
        dtype = where.pop("dtype", dtype)
    return StoredArray(shape, tuple(map(str, dims)), is_named, dtype, fill, where, attributes)


def unsafe_codecs(document: Any) -> list[str]:
    """Return the codecs that zarr would make of a document and that are not known to be safe."""
    left, unsafe = [document], []
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
            for key in ("compressor", "filters", "codecs", "index_codecs"):
                held = each.get(key)
                codecs = held if isinstance(held, list) else [held]
                names = [_named(codec)[0] for codec in codecs if codec is not None]
                unsafe += [n for n in names if n.removeprefix(FOREIGN) not in MADE_BY_ZARR]
    return unsafe


def _named(described: Any) -> tuple[str, Mapping[str, Any]]:
    """Return name and configuration of an extension, which may be spelled as its name alone."""
    if not isinstance(described, dict):
        return str(described), {}
    configuration = described.get("configuration") or {}
    if not isinstance(configuration, dict):
        raise ValueError(f"a configuration {configuration!r:.80}")
    return str(described.get("name", described.get("id"))), configuration


def _lengths(described: Any, itemsize: int, rank: int | None = None) -> tuple[int, ...]:
    """Return the lengths of an array, or of its chunks, of as many axes as that has."""
    if not isinstance(described, list) or len(described) > MAX_RANK:
        raise ValueError(f"lengths {described!r:.80}, expected a list of up to {MAX_RANK}")
    least = 0 if rank is None else 1
    if any(type(length) is not int or length < least for length in described):
        raise ValueError(f"lengths {described!r:.80}, expected whole numbers from {least}")
    if math.prod(filter(None, described)) * itemsize > MAX_NBYTES:
        raise ValueError(f"lengths {described!r:.80}, of more bytes than any store holds")
    if rank not in (None, len(described)):
        raise ValueError(f"chunks {described} of an array with {rank} axes")
    return tuple(described)


def _dtype2(described: Any) -> str:
    """Return the dtype, ``""`` for structures and everything that is no number or date."""
    dtype = np.dtype(described if isinstance(described, str) else "O")
    return dtype.str if dtype.kind in "biufcMm" else ""


def _dtype3(described: Any) -> str:
    name, configuration = _named(described)
    if name in ("numpy.datetime64", "numpy.timedelta64"):
        kind = "M8" if name.endswith("datetime64") else "m8"
        return f"<{kind}[{configuration['scale_factor']}{configuration['unit']}]"
    return np.dtype(name).str if name in NUMBERS else ""


def _fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as a number of ``dtype``."""
    if dtype.kind in "Mm":
        return np.array(np.iinfo("i8").min if value == "NaT" else value, "i8").view(dtype)[()]
    if dtype.kind == "c" and isinstance(value, list):
        real = np.dtype(f"f{dtype.itemsize // 2}")
        return np.array(complex(*(_fill(part, real) for part in value)), dtype)[()]
    if isinstance(value, str) and value.startswith("0x"):
        return np.array(int(value, 16), f"u{dtype.itemsize}").view(dtype)[()]
    if isinstance(value, str) and dtype.kind == "f":
        value = float(value)  # NaN, Infinity
    number = np.array(value)
    usable = not number.ndim and number.dtype.kind in "biufc"
    if usable and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        usable = number.dtype.kind != "c" and limits.min <= value <= limits.max and value % 1 == 0
    if not usable:
        raise ValueError(f"a fill_value {value!r:.80} among numbers of {dtype}")
    return number.astype(dtype)[()]


def _keys(
    prefix: str, separator: Any, scalar: str, sharding: Mapping[str, Any] | None = None
) -> ChunkKeys:
    if separator not in (".", "/"):
        raise ValueError(f"a separator {separator!r:.80} of chunk keys")
    return ChunkKeys(prefix and prefix + separator, separator, scalar, **(sharding or {}))


def _layout2(metadata: Mapping[str, Any], dtype: str, rank: int) -> Layout:
    applied = [*(metadata.get("filters") or []), metadata["compressor"]]
    configurations = [each for each in applied if each is not None]
    if unknown := refused_codecs(configurations):
        raise _UnreadError(f"codec {', '.join(unknown)}")
    order = metadata["order"]
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r:.80}")
    return {
        "chunk": _lengths(metadata["chunks"], np.dtype(dtype).itemsize, rank),
        "codecs": tuple(json.dumps(each, sort_keys=True) for each in configurations),
        "axes": () if order == "C" or rank < 2 else tuple(reversed(range(rank))),
        "keys": _keys("", metadata.get("dimension_separator") or ".", "0"),
    }


def _layout3(metadata: Mapping[str, Any], dtype: str, rank: int) -> Layout:
    for name, value in metadata.items():
        optional = isinstance(value, dict) and value.get("must_understand") is False
        if name not in FIELDS_OF_3 and not optional:
            raise _UnreadError(f"field {name}")
    if metadata.get("storage_transformers"):
        raise _UnreadError("storage transformers")
    itemsize = np.dtype(dtype).itemsize
    grid, configuration = _named(metadata["chunk_grid"])
    if grid != "regular":
        raise _UnreadError(f"chunk grid {grid}")
    chunk = _lengths(configuration["chunk_shape"], itemsize, rank)
    described = metadata["codecs"]
    sharding: Layout = {}
    if len(described) == 1 and _named(described[0])[0] == "sharding_indexed":
        configuration = _named(described[0])[1]
        shard, chunk = chunk, _lengths(configuration["chunk_shape"], itemsize, rank)
        if any(m % n for m, n in zip(shard, chunk, strict=True)):
            raise ValueError(f"shards of {list(shard)} cannot be cut into chunks of {list(chunk)}")
        counts = tuple(m // n for m, n in zip(shard, chunk, strict=True))
        of_index = _encoding(configuration["index_codecs"], "<u8", rank + 1)
        if of_index not in (("<u8", (), ()), ("<u8", (), (CRC32C,))):
            raise _UnreadError("a shard index with codecs of its own")
        location = configuration.get("index_location", "end")
        if location not in ("start", "end"):
            raise ValueError(f"index_location {location!r:.80}")
        sharding = {"chunks_per_shard": counts, "index_at_end": location == "end"}
        sharding["index_checksum"] = bool(of_index[2])
        described = configuration["codecs"]
    encoding, configuration = _named(metadata["chunk_key_encoding"])
    if encoding == "default":
        keys = _keys("c", configuration.get("separator", "/"), "c", sharding)
    elif encoding == "v2":
        keys = _keys("", configuration.get("separator", "."), "0", sharding)
    else:
        raise _UnreadError(f"chunk key encoding {encoding}")
    stored, axes, codecs = _encoding(described, dtype, rank)
    return {"dtype": stored, "chunk": chunk, "codecs": codecs, "axes": axes, "keys": keys}


def _encoding(
    described: Sequence[Any], dtype: str, rank: int
) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Return the dtype with its byte order, the order of axes, empty for C order, and codecs."""
    in_order = axes = tuple(range(rank))
    stored, is_bytes = np.dtype(dtype), False
    codecs: list[str] = []
    for name, configuration in map(_named, described):
        if name == "transpose" and not is_bytes and not codecs:
            order = tuple(configuration["order"])
            if tuple(sorted(order)) != in_order:
                raise ValueError(f"transpose {order} of {rank} axes")
            axes = tuple(axes[axis] for axis in order)
        elif name == "bytes" and not is_bytes:
            is_bytes = True
            if {"little": "<", "big": ">"}[configuration.get("endian", "little")] == ">":
                stored = stored.newbyteorder(">")
                if codecs:
                    raise _UnreadError("codecs of numbers before big-endian bytes")
        else:
            codecs.append(_codec(name, configuration, is_bytes=is_bytes))
    if not is_bytes:
        raise _UnreadError("codec none")
    return stored.str, () if axes == in_order else axes, tuple(codecs)


def _codec(name: str, configuration: Mapping[str, Any], *, is_bytes: bool) -> str:
    """Return a codec of version 3 as numcodecs has it."""
    if name == "crc32c" and is_bytes:
        return CRC32C
    if name in ("blosc", "gzip", "zstd") and is_bytes:
        return json.dumps({"id": name})  # decoding needs no more: the bytes say the rest
    made = {**configuration, "id": name.removeprefix(FOREIGN)}
    if not name.startswith(FOREIGN) or refused_codecs([made]):
        raise _UnreadError(f"codec {name}")
    return json.dumps(made, sort_keys=True)
