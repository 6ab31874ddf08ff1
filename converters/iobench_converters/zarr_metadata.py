"""The ``zarr.json`` files of a store: of its group and of each array.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html and
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html. They are written
by us, not by zarr-python: its text differs from version to version, so that a conversion resumed
elsewhere would not end with the same bytes; and no library has to be there to convert. That the
real libraries read them is tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np

from iobench.errors import StoreError
from iobench.stores import (
    SHUFFLES,
    canonical_json,
    decodable_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.coordinates import Coordinate
    from iobench.stores import StoreLabels
    from iobench_converters.zarr_layout import ArrayLayout

METADATA_NAME: Final = "zarr.json"
MAX_METADATA_NBYTES: Final = 1 << 28
NATIVE: Final = ("blosc", "gzip", "zstd")
"""Codecs that Zarr's specification names; others are numcodecs'."""
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}


def array_metadata(
    array: ArrayLayout, labels: StoreLabels, *, shard: Sequence[int]
) -> dict[str, Any]:
    """Return the metadata of an array."""
    dtype = array.dtype
    codecs: list[dict[str, Any]] = [_LITTLE if dtype.itemsize > 1 else {"name": "bytes"}]
    codecs += [
        _described(codec.configuration(dtype.itemsize), dtype) for codec in array.codecs.codecs
    ]
    outer = [n * c for n, c in zip(array.grid, array.chunk, strict=True)]
    sharding = {
        "chunk_shape": [*(1 for _ in shard[1:]), array.n_samples, *array.chunk],
        "codecs": codecs,
        "index_codecs": [_LITTLE, {"name": "crc32c"}],
        "index_location": "end",
    }
    zero: Any = {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(dtype.kind, 0)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [*labels.sample_shape, *array.shape],
        "data_type": dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [*shard, *outer]},
        },
        # A dot keeps an array's shards in one folder.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": zero,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": decodable_attributes(
            {**labels.attributes[array.folder], **_attributes(array)}, np.zeros(1, dtype)
        ),
        "dimension_names": [*labels.sample_dims, *labels.dims[array.folder]],
    }


def _described(values: dict[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return a codec of numcodecs as Zarr knows it."""
    name = values.pop("id")
    if name == "blosc":
        values |= {"shuffle": SHUFFLES[values["shuffle"]], "typesize": dtype.itemsize}
    elif name == "zstd":
        values |= {"checksum": False}
    elif name == "lzma":
        values |= {"format": 1, "check": -1, "filters": None}
    return {"name": name if name in NATIVE else f"numcodecs.{name}", "configuration": values}


def coordinate_metadata(each: Coordinate) -> dict[str, Any]:
    """Return the metadata of the array of a coordinate: one chunk, as it is."""
    shape, kind = each.values.shape, each.values.dtype.kind
    codecs: list[Any] = [{"name": "bytes"} if each.values.dtype.itemsize == 1 else _LITTLE]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "string" if kind == "U" else each.values.dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [max(1, length) for length in shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": {"U": "", "b": False, "f": "NaN"}.get(kind, 0),
        "codecs": [{"name": "vlen-utf8"}] if kind == "U" else codecs,
        "attributes": dict(each.attributes),
        "dimension_names": list(each.dims),
    }


def coordinate_chunk(each: Coordinate) -> tuple[str, bytes]:
    """Return the name of the chunk of a coordinate, from its array's folder, and its bytes."""
    key = ".".join(["c", *("0" for _ in each.dims)])
    if each.values.dtype.kind != "U":
        return key, each.values.tobytes()
    texts = [text.encode("utf-8", "replace") for text in each.values.reshape(-1).tolist()]
    parts = [len(text).to_bytes(4, "little") + text for text in texts]
    return key, len(texts).to_bytes(4, "little") + b"".join(parts)


def group_metadata(
    arrays: Mapping[str, Mapping[str, Any]], *, title: str, attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata of the group, those of its arrays among them ("consolidated").

    ``attributes`` are those of the source, whose title is kept.
    """
    own = {"title": title} if title else {}
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {**own, **attributes, "Conventions": "CF-1.11"},
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": dict(arrays),
        },
    }


class _Configuration(msgspec.Struct):
    chunk_shape: list[Annotated[int, msgspec.Meta(gt=0, lt=1 << 40)]]


class _ChunkGrid(msgspec.Struct):
    configuration: _Configuration


class _Sharded(msgspec.Struct):
    """What is read of the metadata of an array."""

    chunk_grid: _ChunkGrid


def shard_box(file: Path, content: bytes, n_dims: int) -> tuple[int, ...]:
    """Return how many samples a full shard has along each of their dimensions."""
    try:
        shape = msgspec.json.decode(content, type=_Sharded).chunk_grid.configuration.chunk_shape
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(f"{file}: no sharded array ({error}); convert to a new folder") from error
    return tuple(shape[:n_dims])


def to_bytes(metadata: Mapping[str, Any]) -> bytes:
    """Return the one text of these metadata."""
    return canonical_json(metadata).encode()


def _attributes(array: ArrayLayout) -> dict[str, Any]:
    variable = array.variable
    attributes: dict[str, Any] = {"role": variable.role}
    if variable.name != array.folder:
        attributes["long_name"] = variable.name
    if variable.channels:
        attributes["channels"] = list(variable.channels)
    if variable.units:
        attributes["units"] = variable.units
    if (packed := variable.packed) is not None:
        attributes |= {"scale_factor": packed.scale, "add_offset": packed.offset}
    return attributes
