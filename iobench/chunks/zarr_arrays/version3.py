"""Metadata of Zarr version 3: ``zarr.json``, sharding included.

Source: the Zarr core specification version 3 and its codec ``sharding_indexed``. What it does not
cover (chunk grids that are not regular, codecs of others, storage transformers) is left to zarr.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.chunk_codecs import CRC32C, MAX_CODECS, TEXT_CODECS, refused_codecs
from iobench.chunks.chunked_variable import ChunkKeys
from iobench.chunks.zarr_arrays.metadata import (
    StoredArray,
    attributes_of,
    dims_of,
    fill_number,
    lengths,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KNOWN_FIELDS = {
    "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "codecs",
    "fill_value", "attributes", "dimension_names", "storage_transformers",
    "consolidated_metadata",
}  # fmt: skip
COMPRESSORS = ("blosc", "gzip", "zstd")
FOREIGN = "numcodecs."
FOREIGN_BYTES = ("blosc", "zstd", "gzip", "zlib", "bz2", "lzma", "lz4", "shuffle")
"""Of those called ``numcodecs.NAME``, the ones that turn bytes into bytes."""
TEXTS = ("string", "fixed_length_utf32", "null_terminated_bytes", "raw_bytes")
NUMBERS = {
    "bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "i2", "uint16": "u2", "int32": "i4",
    "uint32": "u4", "int64": "i8", "uint64": "u8", "float16": "f2", "float32": "f4",
    "float64": "f8", "complex64": "c8", "complex128": "c16",
}  # fmt: skip


class _OnlyZarrError(Exception):
    """Something that this reader leaves to zarr; the message names it."""


def array_of_version3(metadata: Mapping[str, Any]) -> StoredArray:
    """Return what the ``zarr.json`` of an array says."""
    dtype = _dtype(metadata["data_type"])
    shape = lengths(metadata["shape"], np.dtype(dtype).itemsize if dtype else 1)
    where: dict[str, Any] = {}
    stored = dtype
    if dtype:
        try:
            stored, where = _chunking(metadata, dtype, shape)
        except _OnlyZarrError as error:
            where = {"only_library": str(error)}
    names = metadata.get("dimension_names") or [None] * len(shape)
    is_named = all(name is not None for name in names)
    return StoredArray(
        shape=shape,
        dims=dims_of(names if is_named else None, len(shape)),
        is_named=is_named,
        dtype=stored,
        fill=_fill(metadata["fill_value"], dtype) if dtype else None,
        where=where,
        attributes=attributes_of(metadata.get("attributes")),
    )


def check_safe3(metadata: Mapping[str, Any]) -> None:
    """Check what zarr would make of a ``zarr.json`` before it does, by codecs that we know."""
    if _named(metadata["data_type"])[0] not in TEXTS and not _dtype(metadata["data_type"]):
        raise ValueError(f"data type {metadata['data_type']!r:.80}")
    described = list(metadata["codecs"])
    for number, codec in enumerate(described):  # grows by what shards hold, which JSON bounds
        name, configuration = _named(codec)
        if name == "sharding_indexed":
            described += [*configuration["codecs"], *configuration["index_codecs"]]
        elif name.startswith(FOREIGN):
            if refused_codecs([{**configuration, "id": name.removeprefix(FOREIGN)}]):
                raise ValueError(f"codec {name}")
        elif name not in (*COMPRESSORS, *TEXT_CODECS, "bytes", "transpose", "crc32c"):
            raise ValueError(f"codec {name}")
        if number > MAX_CODECS:
            raise ValueError(f"more than {MAX_CODECS} codecs")


def _named(codec: Any) -> tuple[str, Mapping[str, Any]]:
    """Return name and configuration of an extension, which may be spelled as its name alone."""
    if isinstance(codec, str):
        return codec, {}
    return codec["name"], codec.get("configuration") or {}


def _dtype(described: Any) -> str:
    name, configuration = _named(described)
    if name in ("numpy.datetime64", "numpy.timedelta64"):
        kind = "M8" if name.endswith("datetime64") else "m8"
        return f"<{kind}[{configuration['scale_factor']}{configuration['unit']}]"
    known = NUMBERS.get(name, "")
    return np.dtype(known).str if known else ""


def _fill(value: Any, dtype: str) -> Any:
    numbers = np.dtype(dtype)
    if numbers.kind in "Mm":
        integer = np.iinfo("i8").min if value == "NaT" else value
        return np.array(integer, dtype="i8").view(numbers)[()]
    if numbers.kind == "c":
        real = np.dtype(f"f{numbers.itemsize // 2}")
        return np.array(complex(*(_fill(part, real.str) for part in value)), dtype=numbers)[()]
    if isinstance(value, str) and value.startswith("0x"):
        unsigned = np.array(int(value, 16), dtype=f"u{numbers.itemsize}")
        return unsigned.view(numbers)[()]
    if isinstance(value, str) and numbers.kind == "f":
        value = float(value)  # NaN, Infinity
    return fill_number(value, numbers)


def _chunking(
    metadata: Mapping[str, Any], dtype: str, shape: tuple[int, ...]
) -> tuple[str, dict[str, Any]]:
    """Return the dtype with its byte order, and how the array is cut."""
    for name, value in metadata.items():
        optional = isinstance(value, dict) and value.get("must_understand") is False
        if name not in KNOWN_FIELDS and not optional:
            raise _OnlyZarrError(f"field {name}")
    if metadata.get("storage_transformers"):
        raise _OnlyZarrError("storage transformers")
    grid, configuration = _named(metadata["chunk_grid"])
    if grid != "regular":
        raise _OnlyZarrError(f"chunk grid {grid}")
    chunk = lengths(configuration["chunk_shape"], np.dtype(dtype).itemsize, least=1)
    if len(chunk) != len(shape):
        raise ValueError(f"chunk_shape {list(chunk)} of an array of shape {list(shape)}")
    encoding, configuration = _named(metadata["chunk_key_encoding"])
    if encoding not in ("default", "v2"):
        raise _OnlyZarrError(f"chunk key encoding {encoding}")
    separator = configuration.get("separator", "/" if encoding == "default" else ".")
    if separator not in (".", "/"):
        raise ValueError(f"separator {separator!r} in chunk_key_encoding")
    keys = {"prefix": "", "separator": separator, "scalar_key": "0"}
    if encoding == "default":
        keys |= {"prefix": f"c{separator}", "scalar_key": "c"}
    described = metadata["codecs"]
    sharding: dict[str, Any] = {}
    if len(described) == 1 and _named(described[0])[0] == "sharding_indexed":
        configuration = _named(described[0])[1]
        chunk, sharding = _sharding(configuration, dtype, chunk)
        described = configuration["codecs"]
    stored, axes, codecs = _codecs(described, dtype, len(chunk))
    return stored, {
        "chunk": chunk, "codecs": codecs, "axes": axes, "keys": ChunkKeys(**keys, **sharding),
    }  # fmt: skip


def _codecs(
    described: Sequence[Any], dtype: str, rank: int
) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """Return the dtype with its byte order, the order of axes, empty for C order, and codecs."""
    in_order = axes = tuple(range(rank))
    place = 0
    while place < len(described) and _named(described[place])[0] == "transpose":
        order = _named(described[place])[1]["order"]
        spelled = {"C": in_order, "F": in_order[::-1]}
        order = spelled.get(order, ()) if isinstance(order, str) else tuple(order)
        if tuple(sorted(order)) != in_order:
            raise ValueError(f"transpose {order} of {rank} axes")
        axes = tuple(axes[axis] for axis in order)
        place += 1
    name, configuration = _named(described[place]) if place < len(described) else ("none", {})
    if name == "sharding_indexed":
        raise _OnlyZarrError("sharding with codecs around it")
    if name != "bytes":
        raise _OnlyZarrError(f"codec {name}")
    stored = np.dtype(dtype)
    if {"little": "<", "big": ">"}[configuration.get("endian", "little")] == ">":
        stored = stored.newbyteorder(">")
    applied = tuple(_applied(*_named(codec)) for codec in described[place + 1 :])
    return stored.str, () if axes == in_order else axes, applied


def _applied(name: str, configuration: Mapping[str, Any]) -> str:
    if name == "crc32c":
        return CRC32C
    if name in COMPRESSORS:
        return json.dumps({"id": name})  # decoding needs no more: the bytes say the rest
    ours = {**configuration, "id": name.removeprefix(FOREIGN)}
    if name.startswith(FOREIGN) and ours["id"] in FOREIGN_BYTES and not refused_codecs([ours]):
        return json.dumps(ours, sort_keys=True)
    raise _OnlyZarrError(f"codec {name}")


def _sharding(
    configuration: Mapping[str, Any], dtype: str, shard: tuple[int, ...]
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the shape of the chunks in a shard, and fields of `ChunkKeys`."""
    chunk = lengths(configuration["chunk_shape"], np.dtype(dtype).itemsize, least=1)
    if len(chunk) != len(shard) or any(m % n for m, n in zip(shard, chunk, strict=True)):
        raise ValueError(f"shards of {list(shard)} cannot be cut into chunks of {list(chunk)}")
    counts = tuple(m // n for m, n in zip(shard, chunk, strict=True))
    stored, axes, codecs = _codecs(configuration["index_codecs"], "<u8", len(counts) + 1)
    if axes or codecs not in ((), (CRC32C,)):
        raise _OnlyZarrError("a shard index with codecs of its own")
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise ValueError(f"index_location {location!r}")
    return chunk, {
        "chunks_per_shard": counts,
        "index_at_end": location == "end",
        "index_checksum": bool(codecs),
        "index_dtype": stored,
    }
