"""How the variables of a sample become arrays of a Zarr group: options, names, ``zarr.json``.

A leading dimension ``sample`` is added; a chunk spans one sample, or ``chunk-samples``. One array
per variable. Source: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html and
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html. The metadata are
written by us, not by zarr-python: its text differs from version to version, so that a conversion
resumed elsewhere would not end with the same bytes; and no library has to be there to convert. That
the real libraries read them is tested.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    MOST_NBYTES,
    NO_CODECS,
    SHUFFLES,
    ChunkedArray,
    CodecChain,
    decodable_attributes,
    is_local,
    parse_codecs,
    parse_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.coordinates import Coordinate
    from iobench.samples import SampleSpec
    from iobench.stores import StoreLabels

CODEC: Final = "codec"
INNER_CHUNK: Final = "inner-chunk"
CHUNK_SAMPLES: Final = "chunk-samples"
_WHOLE = re.compile(r"[1-9][0-9]{0,17}")
MAX_FOLDER_NBYTES: Final = 200
"""Of a folder's name; file systems take 255."""
_TAKEN = re.compile(r"(iobench|zarr)\..*|variable-[0-9]+|\..*|__.*", re.IGNORECASE)
"""Names beside the arrays' folders (``zarr.json``, the manifest, claims), our own of arrays, hidden
ones, and those that Zarr reserves."""
NATIVE: Final = ("blosc", "gzip", "zstd")
"""Codecs that Zarr's specification names; others are numcodecs'."""
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}
_ONE_BYTE: Final = {"name": "bytes"}


@dataclass(frozen=True, slots=True)
class ZarrOptions:
    """The format's options."""

    codecs: CodecChain = NO_CODECS  # of each chunk
    # longest chunk along a dimension of the variables; whole dimensions by default
    inner_chunk: Mapping[str, int] = field(default_factory=dict)
    chunk_samples: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ZarrOptions:
        """Return what ``codec=...``, ``inner-chunk=y=256,x=256``, ``chunk-samples=8`` say."""
        if unknown := sorted(set(options) - {CODEC, INNER_CHUNK, CHUNK_SAMPLES}):
            raise OptionError(
                f"format zarr: {unknown[0]!r} is no option; there are codec=NAME:PARAMETER=VALUE,"
                "..., inner-chunk=DIM=LENGTH,..., chunk-samples=N"
            )
        number, text = options.get(CHUNK_SAMPLES, "1"), options.get(INNER_CHUNK, "")
        if not _WHOLE.fullmatch(number):
            raise OptionError(f"format zarr: chunk-samples={number}: expected a number from 1")
        lengths: dict[str, int] = {}
        for part in text.split(",") if text else ():
            name, _, length = part.partition("=")
            if not name or name in lengths or not _WHOLE.fullmatch(length):
                raise OptionError(
                    f"format zarr: inner-chunk={text}: expected dimensions and lengths from 1, as "
                    "inner-chunk=y=256,x=256"
                )
            lengths[name] = int(length)
        return cls(parse_codecs(options.get(CODEC, "none")), lengths, int(number))


def plan_arrays(spec: SampleSpec, options: ZarrOptions) -> tuple[ChunkedArray, ...]:
    """Return the arrays that hold the samples of a spec."""
    known = {name for variable in spec for name in variable.dims}
    if unknown := sorted(set(options.inner_chunk) - known):
        raise OptionError(
            f"format zarr: inner-chunk={unknown[0]}=...: no variable has that dimension, there "
            f"are {', '.join(sorted(known))}"
        )
    arrays, extent = [], 0
    for number, variable in enumerate(spec):
        if not variable.nbytes:
            raise SampleError(
                f"variable {variable.name!r} of shape {variable.shape} has no values, for which "
                "Zarr has no chunks; choose the format numpy"
            )
        if np.dtype(variable.dtype).itemsize // (1 + (variable.dtype[1] == "c")) > 8:
            raise SampleError(
                f"variable {variable.name!r}: Zarr has no dtype {variable.dtype}; choose --format "
                "numpy"
            )
        folder = variable.name if _is_usable(variable.name) else f"variable-{number}"
        chunk = tuple(
            min(length, options.inner_chunk.get(name, length))
            for length, name in zip(variable.shape, variable.dims, strict=True)
        )
        array = ChunkedArray(variable, chunk, folder, options.chunk_samples, options.codecs, extent)
        if options.codecs.codecs and array.chunk_nbytes > MOST_NBYTES:
            raise OptionError(
                f"format zarr: a chunk of {array.chunk_nbytes} bytes of {folder} is more than "
                "codecs take; choose codec=none, or a smaller inner-chunk or chunk-samples"
            )
        arrays.append(array)
        extent = array.extents.stop
    return tuple(arrays)


# ---- names


def _is_usable(name: str) -> bool:
    """Tell whether a name can be a node's and a folder's, the same on every file system."""
    is_plain = name.isprintable() and name.strip() == name and not _TAKEN.fullmatch(name)
    is_part = bool(name) and not any(part in name for part in ("/", "\\", "::"))
    is_same = unicodedata.normalize("NFC", name) == name  # some file systems compose letters
    return is_plain and is_part and is_same and len(name.encode()) <= MAX_FOLDER_NBYTES


def is_free(name: str, arrays: Sequence[ChunkedArray]) -> bool:
    """Return whether an array beside these can be called so, on any file system."""
    folders = {array.folder.casefold() for array in arrays}
    return _is_usable(name) and name.casefold() not in folders


def check_folders(path: Path, arrays: Sequence[ChunkedArray]) -> None:
    """Raise StoreError where the file system has one folder for names that differ by case."""
    for one, other in combinations([array.folder for array in arrays], 2):
        is_near = one.casefold() == other.casefold() and is_local(path)
        if is_near and (path / one).samefile(path / other):
            raise StoreError(
                f"{path}: its file system has one folder for {one!r} and {other!r}; convert to one "
                "that tells them apart, or each by itself with --variables"
            )


# ---- zarr.json


def array_metadata(
    array: ChunkedArray, labels: StoreLabels, *, shard: Sequence[int]
) -> dict[str, Any]:
    """Return the metadata of an array, of whose samples a full shard is such a box."""
    dtype, variable = array.dtype, array.variable
    sharding = {
        "chunk_shape": [*(1 for _ in shard[1:]), array.n_samples, *array.chunk],
        "codecs": [
            _LITTLE if dtype.itemsize > 1 else _ONE_BYTE,
            *(_described(each, dtype) for each in array.codecs.configurations(dtype.itemsize)),
        ],
        "index_codecs": [_LITTLE, {"name": "crc32c"}],
        "index_location": "end",
    }
    zero: Any = {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(dtype.kind, 0)
    attributes = {**labels.attributes[array.folder], "role": variable.role}
    if variable.name != array.folder:
        attributes["long_name"] = variable.name
    if variable.channels:
        attributes["channels"] = list(variable.channels)
    if variable.units:
        attributes["units"] = variable.units
    if (packed := variable.packed) is not None:
        attributes |= {"scale_factor": packed.scale, "add_offset": packed.offset}
    return _described_array(
        [*labels.sample_shape, *array.shape],
        dtype.name,
        [*shard, *(n * c for n, c in zip(array.grid, array.chunk, strict=True))],
        zero,
        [{"name": "sharding_indexed", "configuration": sharding}],
        decodable_attributes(attributes, np.zeros(1, dtype)),
        [*labels.sample_dims, *labels.dims[array.folder]],
    )


def coordinate_metadata(each: Coordinate) -> dict[str, Any]:
    """Return the metadata of the array of a coordinate: one chunk, as it is."""
    dtype, shape = each.values.dtype, each.values.shape
    plain = _LITTLE if dtype.itemsize > 1 else _ONE_BYTE
    return _described_array(
        list(shape),
        "string" if dtype.kind == "U" else dtype.name,
        [max(1, length) for length in shape],
        {"U": "", "b": False, "f": "NaN"}.get(dtype.kind, 0),
        [{"name": "vlen-utf8"} if dtype.kind == "U" else plain],
        dict(each.attributes),
        list(each.dims),
    )


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


def shard_box(file: Path, content: bytes, n_dims: int) -> tuple[int, ...]:
    """Return how many samples a full shard has along each of their dimensions."""
    try:
        values = parse_json(content)
        box = tuple(map(int, values["chunk_grid"]["configuration"]["chunk_shape"][:n_dims]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{file}: no sharded array ({error}); convert to a new folder") from error
    if len(box) < n_dims or not all(0 < length < 1 << 40 for length in box):
        raise StoreError(f"{file}: shards of {box} samples; convert to a new folder")
    return box


def _described_array(
    shape: list[int],
    data_type: str,
    chunk: list[int],
    fill_value: Any,
    codecs: list[Any],
    attributes: dict[str, Any],
    dims: list[str],
) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        # A dot keeps an array's shards in one folder.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": attributes,
        "dimension_names": dims,
    }


def _described(values: dict[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return a codec of numcodecs as Zarr knows it."""
    name = values.pop("id")
    if name == "blosc":
        values |= {"shuffle": SHUFFLES[values["shuffle"]], "typesize": dtype.itemsize}
    elif name == "zstd":
        values |= {"checksum": False}
    return {"name": name if name in NATIVE else f"numcodecs.{name}", "configuration": values}
