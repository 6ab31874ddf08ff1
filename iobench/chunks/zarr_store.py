"""What a Zarr store holds: its metadata read as JSON, whichever zarr is installed.

``.zarray`` of version 2, ``zarr.json`` of version 3. Sources: the Zarr specifications versions 2
and 3, the codec ``sharding_indexed``, and xarray's ``_ARRAY_DIMENSIONS``. Arrays of what is not
covered (chunk grids that are not regular, shards in shards) zarr reads, see `zarr_library`. It
makes whatever codec metadata name, so what it opens is looked at first.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunk_codecs import CRC32C, SAFE_CODECS, refused_codecs
from iobench.chunks.chunked_variable import ChunkedVariable, ChunkKeys
from iobench.chunks.packing import Packing, packing_of
from iobench.chunks.source_file import SourceFile
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError, StorageError
from iobench.files.ranges import forget_source_files
from iobench.files.urls import URL, is_url, range_file
from iobench.json_files import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Layout = dict[str, Any]
    _Array = tuple[ChunkedVariable, dict[str, Any]]  # with its attributes

VERSION3: Final = "zarr.json"
CONSOLIDATED: Final = ".zmetadata"
ARRAY2, GROUP2, ATTRIBUTES2 = ".zarray", ".zgroup", ".zattrs"
WRONG_METADATA: Final = (KeyError, ValueError, TypeError, AttributeError, OverflowError)
MAX_RANK: Final = 32
MAX_NBYTES: Final = 1 << 60
DIMENSIONS: Final = "_ARRAY_DIMENSIONS"
UNNAMED: Final = "dim_{}"
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
    "vlen-utf8", "vlen-bytes", "bytes", "transpose", "sharding_indexed", "pcodec", "zfpy",
}  # fmt: skip
"""What zarr may make of the metadata of a store that is handed to it."""


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a Zarr store: has metadata of version 2 or 3."""
    return any((path / name).is_file() for name in (VERSION3, CONSOLIDATED, GROUP2, ARRAY2))


def inspect_zarr(path: Path) -> SourceFile:
    """Return what the store in folder ``path`` holds: a group with its arrays, or one array."""

    def located(name: str, array: ChunkedVariable) -> ChunkedVariable:
        if not is_url(path) and not (path / name).is_dir():
            raise MissingFileError(
                f"{path}: the folder of array {name!r} is missing, though metadata name it; fetch "
                f"the store again, or, if it was removed, zarr.consolidate_metadata({str(path)!r})"
            )
        return replace(array, folder=range_file(path / name))

    forget_source_files(str(path))
    if not is_zarr(path):
        raise FileFormatError(
            f"{path}: is no Zarr store: there is neither {VERSION3} nor {GROUP2} nor {ARRAY2} in "
            "it; name the folder that holds them"
        )
    zarr_format, documents = _documents(path)
    return described_store(path, zarr_format, documents, located)


def described_store(
    path: Path,
    zarr_format: int,
    documents: Mapping[str, Any],
    located: Callable[[str, ChunkedVariable], ChunkedVariable],
    *,
    kind: str = "Zarr",
) -> SourceFile:
    """Return what a group holds by its metadata, which are documents by path.

    ``located`` returns an array with where its chunks are, by its name in the group.
    """
    text = json.dumps(documents, sort_keys=True)
    arrays, skipped = _arrays(path, zarr_format, documents, located)
    dims = _dimensions(path, arrays, skipped)
    described = {}
    for name, (array, own) in arrays.items():
        if name not in skipped:
            try:
                described[name] = _packed(path, zarr_format, array, own)
            except ValueError as error:
                skipped[name] = str(error)
    if not described and not skipped:
        if isinstance(path, URL) and not path.can_list:
            raise FileFormatError(
                f"{path}: its metadata are not consolidated, and the server lists no folders; run "
                "zarr.consolidate_metadata where the store is written, or copy the store here first"
            )
        raise FileFormatError(f"{path}: no array in this Zarr store; name another folder")
    dates = {n: each for n, each in described.items() if each.packing.stored[1] in "Mm"}
    root = documents[VERSION3].get("attributes") if zarr_format == 3 else documents.get(ATTRIBUTES2)
    return SourceFile(
        path=path,
        kind=kind,
        zarr_format=zarr_format,
        dims=dims,
        variables={name: each for name, each in described.items() if name not in dates},
        coordinates=dates,
        skipped=skipped | dict.fromkeys(dates, "dates, not numbers"),
        attributes=root if isinstance(root, dict) else {},
        described={name: arrays[name][1] for name in described},
        fingerprint=hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
    )


def _documents(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the version of a store, and its metadata by path: consolidated where they are."""
    documents: dict[str, Any] = {}
    zarr_format = 3 if (path / VERSION3).is_file() else 2
    if zarr_format == 3:
        documents[VERSION3] = read_document(path / VERSION3)
        if held := documents[VERSION3].pop("consolidated_metadata", None):
            members = _members(path / VERSION3, held)
            return 3, documents | {f"{name}/{VERSION3}": each for name, each in members.items()}
        has_arrays = documents[VERSION3].get("node_type") == "group"
    elif (path / CONSOLIDATED).is_file():
        return 2, _members(path / CONSOLIDATED, read_document(path / CONSOLIDATED))
    else:
        has_arrays = not (path / ARRAY2).is_file()
    # The folders in an array hold chunks, thousands of them.
    folders = _folders(path) if has_arrays else []
    for prefix in ("", *(f"{folder.name}/" for folder in folders)):
        for name in (VERSION3,) if zarr_format == 3 else (ARRAY2, GROUP2, ATTRIBUTES2):
            if prefix + name not in documents and (path / prefix / name).is_file():
                documents[prefix + name] = read_document(path / prefix / name)
    return zarr_format, documents


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be listed: {error.strerror}") from error


def read_document(path: Path) -> dict[str, Any]:
    """Return metadata in a file, which are a JSON object."""
    try:
        content = read_json(path)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: is no JSON: {error}; fetch the store again") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: is no JSON object; fetch the store again")
    return content


def _members(path: Path, consolidated: Any) -> dict[str, Any]:
    members = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(members, dict):
        raise FileFormatError(
            f"{path}: has no consolidated metadata; consolidate them again: "
            f"zarr.consolidate_metadata({str(path.parent)!r})"
        )
    return dict(members)


def _arrays(
    path: Path,
    zarr_format: int,
    documents: Mapping[str, Any],
    located: Callable[[str, ChunkedVariable], ChunkedVariable],
) -> tuple[dict[str, _Array], dict[str, str]]:
    """Return the arrays of numbers and dates by name, and why each other one is left out."""
    arrays: dict[str, _Array] = {}
    skipped: dict[str, str] = {}
    file_of_array = VERSION3 if zarr_format == 3 else ARRAY2
    for key, document in sorted(documents.items()):
        name, _, file = key.rpartition("/")
        try:
            is_array = file == file_of_array
            if is_array and zarr_format == 3:
                is_array = document["node_type"] == "array"
            if not is_array:
                if name and file in (GROUP2, VERSION3):
                    skipped.setdefault(f"{name}/", f"a group, named as FILE#{name}")
                continue
            attributes = documents.get(f"{name}/{ATTRIBUTES2}" if name else ATTRIBUTES2)
            array, own = _array_of({"zarr_format": zarr_format, **document}, attributes)
        except WRONG_METADATA as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else f"has {error}"
            raise FileFormatError(
                f"{path / key}: is not metadata of Zarr version {zarr_format}: it {reason}; "
                "fetch the store again"
            ) from error
        if name in (".", "..") or (is_url(path) and "::" in name):  # `::` chains addresses
            raise FileFormatError(
                f"{path}: names an array {name!r}, which would lie elsewhere; fetch the store again"
            )
        if "/" in name:
            group = name.rpartition("/")[0]
            skipped[f"{group}/"] = f"a group, named as FILE#{group}"
        elif array is None:
            skipped[name] = "not numeric"
        else:
            named = name or path.stem
            arrays[named] = located(name, replace(array, name=named)), own
    return arrays, skipped


def _dimensions(
    path: Path, arrays: Mapping[str, _Array], skipped: dict[str, str]
) -> dict[str, int]:
    """Return the lengths of all dimensions; arrays whose unnamed ones do not fit are skipped."""
    dims: dict[str, int] = {}
    for name, (array, _) in arrays.items():
        if len(array.dims) != len(array.shape):
            raise FileFormatError(
                f"{path}: array {name!r} of shape {list(array.shape)} names {len(array.dims)} "
                "dimensions; name one for each axis, or fetch the store again"
            )
        lengths = dict(zip(array.dims, array.shape, strict=True))
        other = [dim for dim, length in lengths.items() if dims.get(dim, length) != length]
        if not other:
            dims |= lengths
        elif array.dims[0] == UNNAMED.format(0):
            skipped[name] = f"its {other[0]}, which has no name, is {lengths[other[0]]} long"
        else:
            raise FileFormatError(
                f"{path}: dimension {other[0]} is {lengths[other[0]]} long in array {name!r} and "
                f"{dims[other[0]]} in others; write it again without the wrong array: "
                f"xarray.open_zarr({str(path)!r}, drop_variables=NAME).to_zarr(NEW)"
            )
    return dims


def _packed(
    path: Path, zarr_format: int, array: ChunkedVariable, attributes: dict[str, Any]
) -> ChunkedVariable:
    """Return an array with the packing by which xarray would decode it.

    To xarray the ``fill_value`` of version 2 is ``_FillValue``, that of version 3 is not.
    """
    dtype, packing = np.dtype(array.packing.stored), array.packing
    if zarr_format == 2 and array.fill is not None:
        attributes = {**attributes, "_FillValue": array.fill}
    if dtype.kind in "iuf":
        try:
            packing = packing_of(dtype, attributes)
        except MissingExtraError as error:
            raise MissingExtraError(
                f"{path}: array {array.name!r} is packed, which needs xarray", extra="zarr"
            ) from error
    fill = np.zeros(1, dtype.newbyteorder("="))[0] if array.fill is None else array.fill
    return replace(array, packing=packing, fill=fill)


def check_for_library(path: Path) -> None:
    """Check all metadata of a local store that is about to be opened whole, by xarray and zarr."""
    for folder in (path, *_folders(path)):
        check_folder(folder)


def check_folder(folder: Path) -> None:
    """Check the metadata in a folder that zarr is about to open."""
    if folder.name.endswith((".n5", ".zip")):  # zarr 2 goes by the name, and reads other files
        raise FileFormatError(f"{folder}: is opened as something else by zarr; rename the folder")
    for file in (folder / name for name in (ARRAY2, CONSOLIDATED, VERSION3)):
        if not file.exists():
            continue
        try:
            unsafe = ", ".join(f"codec {name}" for name in unsafe_codecs(read_document(file)))
        except WRONG_METADATA as error:
            unsafe = str(error)
        if unsafe:
            raise FileFormatError(
                f"{file}: is not handed to zarr: {unsafe}; read it without --pipeline "
                "upstream, or fetch the store again"
            )


# -- the metadata of an array ---------------------------------------------------------------------


class _UnreadError(Exception):
    """What is not read here; the message names it."""


class _ForZarrError(_UnreadError):
    """What is not taken apart here, but zarr reads."""


def _array_of(
    metadata: Mapping[str, Any], attributes: Any
) -> tuple[ChunkedVariable | None, dict[str, Any]]:
    """Return what a ``.zarray`` with its ``.zattrs`` says, or a ``zarr.json``, and attributes."""
    version = metadata["zarr_format"]
    if version not in (2, 3):
        raise ValueError(f"zarr_format {version!r:.80}")
    attributes = metadata.get("attributes") if version == 3 else attributes
    if attributes is not None and not isinstance(attributes, dict):
        raise ValueError(f"attributes {attributes!r:.80}, expected an object")
    attributes = dict(attributes or {})
    if version == 3:
        names, dtype = metadata.get("dimension_names"), _dtype3(metadata["data_type"])
    else:
        names, dtype = attributes.pop(DIMENSIONS, None), _dtype2(metadata["dtype"])
    shape = _lengths(metadata["shape"], np.dtype(dtype).itemsize if dtype else 1)
    if not dtype:
        return None, attributes
    is_named = names is not None and None not in names
    dims: Any = map(str, names or ()) if is_named else map(UNNAMED.format, range(len(shape)))
    if (fill := metadata["fill_value"]) is not None:
        fill = _fill(fill, np.dtype(dtype).newbyteorder("="))
    try:
        where = (_layout3 if version == 3 else _layout2)(metadata, dtype, len(shape))
    except _UnreadError as error:
        where = {"why_unread": str(error)}
        if isinstance(error, _ForZarrError) and not unsafe_codecs(metadata):
            where = {"library": "zarr", "chunk": _chunk_for_library(metadata, shape)}
    stored = where.pop("dtype", dtype)
    packing = Packing(stored, np.dtype(stored).newbyteorder("<").str)
    texts = {key: text for key, text in attributes.items() if isinstance(text, str)}
    return ChunkedVariable("", tuple(dims), shape, packing, fill, texts, **where), attributes


def _chunk_for_library(metadata: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return of which lengths parts of an array are asked for that is not taken apart here."""
    if metadata["zarr_format"] == 2:
        return _lengths(metadata["chunks"], 1, len(shape))
    configuration = _named(metadata["chunk_grid"])[1]
    for name, own in map(_named, metadata["codecs"][:1]):
        configuration = own if name == "sharding_indexed" else configuration
    if "chunk_shape" in configuration:
        return _lengths(configuration["chunk_shape"], 1, len(shape))
    longest = []  # of chunks of several lengths: a number, or a list of them and of (length, times)
    for length, edges in zip(shape, configuration["chunk_shapes"], strict=True):
        each = [edges] if isinstance(edges, int) else edges
        most = max(edge if isinstance(edge, int) else edge[0] for edge in each)
        longest.append(max(1, min(most, length)))
    return tuple(longest)


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
        raise _ForZarrError(f"codec {', '.join(unknown)}")
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
        raise _ForZarrError(f"chunk grid {grid}")
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
            raise _ForZarrError("a shard index with codecs of its own")
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
                    raise _ForZarrError("codecs of numbers before big-endian bytes")
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
        raise _ForZarrError(f"codec {name}")
    return json.dumps(made, sort_keys=True)
