"""What a Zarr store holds: its metadata read as JSON, whichever zarr is installed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.boxes import places_touched
from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.packing import Packing, packing_of
from iobench.chunks.zarr_arrays.metadata import (
    StoredArray,
    array_of_version2,
    attributes_of,
    check_safe2,
)
from iobench.chunks.zarr_arrays.version3 import array_of_version3, check_safe3
from iobench.errors import (
    FileFormatError,
    MissingExtraError,
    MissingFileError,
    StorageError,
)
from iobench.files.ranges import forget_source_files
from iobench.files.urls import URL, is_url, range_file
from iobench.json_files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.chunks.boxes import Box

VERSION3 = "zarr.json"
CONSOLIDATED = ".zmetadata"
ARRAY2, GROUP2, ATTRIBUTES2 = ".zarray", ".zgroup", ".zattrs"
LARGE_NBYTES, LARGE_LENGTH = 1 << 32, 1 << 22
"""Of an array, or along one of its axes: from there on chunks are counted before it is believed."""

SPARSE = 64
"""How many times the numbers of its chunks an array may have: the others were never written."""
_Documents = dict[str, Any]
"""Metadata by the path it has, or would have, inside the store."""


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


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a Zarr store: has metadata of version 2 or 3."""
    return any((path / name).is_file() for name in (VERSION3, CONSOLIDATED, GROUP2, ARRAY2))


def inspect_zarr(path: Path) -> ZarrStore:
    """Return what the store in folder ``path`` holds: a group with its arrays, or one array.

    Consolidated metadata is used where there is any, as zarr and xarray do.
    """
    forget_source_files(str(path))
    if (path / VERSION3).is_file():
        return _inspected(path, 3, _documents3(path))
    if is_zarr(path):
        return _inspected(path, 2, _documents2(path))
    raise FileFormatError(
        f"{path}: is no Zarr store: there is neither {VERSION3} nor {GROUP2} nor {ARRAY2} in it; "
        "name the folder that holds them"
    )


def check_for_library(path: Path) -> None:
    """Check all metadata of a local store that is about to be opened whole, by xarray and zarr.

    Whatever they might read: files and consolidated metadata, of both versions.
    """
    if path.suffix in (".n5", ".zip"):  # zarr 2 goes by the name, and reads other files
        raise FileFormatError(f"{path}: is opened as something else by zarr; rename the folder")
    for folder in (path, *_folders(path)):
        for name in (ARRAY2, CONSOLIDATED, VERSION3):
            if (folder / name).exists():
                _check_document(folder / name, "", _json(folder / name))


def _check_document(file: Path, name: str, document: Any) -> None:
    """Check one document, and those that it holds of the arrays below."""
    try:
        if file.name == ARRAY2:
            check_safe2(document)
        elif file.name == VERSION3 and document["node_type"] == "array":
            check_safe3(document)
        held = document if file.name == CONSOLIDATED else document.get("consolidated_metadata")
        for key, value in held["metadata"].items() if held else ():
            if file.name == VERSION3 or key.endswith(ARRAY2):
                kind = VERSION3 if file.name == VERSION3 else ARRAY2
                _check_document(file.with_name(kind), key, value)
    except FileFormatError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise FileFormatError(
            f"{file}{f', {name}' if name else ''}: is not handed to zarr: {error}; read it without "
            "--pipeline upstream, or fetch the store again"
        ) from error


def metadata_fingerprint(store: ZarrStore) -> str:
    """Return a digest of all metadata of a store: changes with its schema, length and codecs."""
    documents = (_documents3 if store.zarr_format == 3 else _documents2)(store.path)
    text = json.dumps(documents, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _documents2(path: Path) -> _Documents:
    if (path / CONSOLIDATED).is_file():
        return dict(_part(path / CONSOLIDATED, "metadata"))
    documents = {}
    # The folders in an array hold chunks, thousands of them.
    folders = [] if (path / ARRAY2).is_file() else _folders(path)
    for prefix in ("", *(f"{folder.name}/" for folder in folders)):
        for name in (ARRAY2, GROUP2, ATTRIBUTES2):
            if (path / prefix / name).is_file():
                documents[prefix + name] = _json(path / prefix / name)
    return documents


def _documents3(path: Path) -> _Documents:
    root = _json(path / VERSION3)
    documents = {VERSION3: {key: root[key] for key in root if key != "consolidated_metadata"}}
    if root.get("consolidated_metadata"):
        members = _part(path / VERSION3, "consolidated_metadata", "metadata")
        return documents | {f"{name}/{VERSION3}": value for name, value in members.items()}
    if root.get("node_type") == "group":
        for folder in _folders(path):
            if (folder / VERSION3).is_file():
                documents[f"{folder.name}/{VERSION3}"] = _json(folder / VERSION3)
    return documents


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be listed: {error.strerror}") from error


def _json(path: Path) -> dict[str, Any]:
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


def _part(path: Path, *keys: str) -> dict[str, Any]:
    part: Any = _json(path)
    for key in keys:
        part = part.get(key) if isinstance(part, dict) else None
    if not isinstance(part, dict):
        raise FileFormatError(
            f"{path}: has no {'.'.join(keys)}; consolidate its metadata again: "
            f"zarr.consolidate_metadata({str(path.parent)!r})"
        )
    return part


def _inspected(path: Path, zarr_format: int, documents: _Documents) -> ZarrStore:
    file_of_array = VERSION3 if zarr_format == 3 else ARRAY2
    skipped = {}
    arrays: dict[str, StoredArray] = {}
    folders = {}
    for name, array in _arrays(path, zarr_format, documents):
        if name in (".", "..") or (is_url(path) and "::" in name):  # `::` chains addresses
            raise FileFormatError(
                f"{path}: names an array {name!r}, which would lie elsewhere; fetch the store again"
            )
        if "/" in name:
            group = name.rpartition("/")[0]
            skipped[f"{group}/"] = f"a group, named as FILE#{group}"
        elif not array.dtype:
            skipped[name] = "not numeric"
        elif not is_url(path) and not (path / name).is_dir():
            raise MissingFileError(
                f"{path}: the folder of array {name!r} is missing, though metadata name it; fetch "
                f"the store again, or, if it was removed, zarr.consolidate_metadata({str(path)!r})"
            )
        else:
            arrays[name or path.stem] = array
            folders[name or path.stem] = range_file(path / name)
    for key, document in documents.items():  # groups that are not looked into
        group, _, file = key.rpartition("/")
        if group and (file == GROUP2 or document.get("node_type") == "group"):
            skipped.setdefault(f"{group}/", f"a group, named as FILE#{group}")
    dims = _dimensions(path, arrays, skipped)
    described = {}
    for name, array in arrays.items():
        if name in skipped:
            continue
        try:
            described[name] = _variable(path, zarr_format, name, folders[name], array)
        except ValueError as error:
            skipped[name] = str(error)
    is_date = {name: np.dtype(each.packing.stored).kind in "Mm" for name, each in described.items()}
    variables = {name: each for name, each in described.items() if not is_date[name]}
    dates = {name: each for name, each in described.items() if is_date[name]}
    skipped |= dict.fromkeys(dates, "dates, not numbers")
    if not described and not skipped:
        if isinstance(path, URL) and not path.can_list:
            raise FileFormatError(
                f"{path}: its metadata are not consolidated, and the server lists no folders; run "
                "zarr.consolidate_metadata where the store is written, or copy the store here first"
            )
        raise FileFormatError(
            f"{path}: no array in this Zarr store: no {file_of_array} below it; name another folder"
        )
    root = documents[VERSION3].get("attributes") if zarr_format == 3 else documents.get(ATTRIBUTES2)
    return ZarrStore(
        path=path,
        zarr_format=zarr_format,
        dims=dims,
        variables=variables,
        dates=dates,
        skipped=skipped,
        attributes=root if isinstance(root, dict) else {},
        described={name: arrays[name].attributes for name in described},
    )


def _arrays(
    path: Path, zarr_format: int, documents: _Documents
) -> Iterator[tuple[str, StoredArray]]:
    """Yield name and schema of each array, by name; ``""`` is the store itself."""
    file_of_array = VERSION3 if zarr_format == 3 else ARRAY2
    for key, metadata in sorted(documents.items()):
        prefix = key.removesuffix(file_of_array)
        if not key.endswith(file_of_array):
            continue
        try:
            if zarr_format == 2:
                attributes = attributes_of(documents.get(prefix + ATTRIBUTES2))
                yield prefix.rstrip("/"), array_of_version2(metadata, attributes)
            elif metadata["node_type"] == "array":
                yield prefix.rstrip("/"), array_of_version3(metadata)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else f"has {error}"
            raise FileFormatError(
                f"{path / key}: is not metadata of Zarr version {zarr_format}: it {reason}; "
                "fetch the store again"
            ) from error


def _dimensions(
    path: Path, arrays: Mapping[str, StoredArray], skipped: dict[str, str]
) -> dict[str, int]:
    """Return the lengths of all dimensions; arrays whose unnamed ones do not fit are skipped."""
    dims: dict[str, int] = {}
    for name, array in arrays.items():
        if len(array.dims) != len(array.shape):
            raise FileFormatError(
                f"{path}: array {name!r} of shape {list(array.shape)} names {len(array.dims)} "
                "dimensions; name one for each axis, or fetch the store again"
            )
        lengths = dict(zip(array.dims, array.shape, strict=True))
        other = [dim for dim, length in lengths.items() if dims.get(dim, length) != length]
        if not other:
            dims |= lengths
        elif not array.is_named:
            skipped[name] = f"its {other[0]}, which has no name, is {lengths[other[0]]} long"
        else:
            zarr_format = 3 if (path / VERSION3).is_file() else 2
            raise FileFormatError(
                f"{path}: dimension {other[0]} is {lengths[other[0]]} long in array {name!r} and "
                f"{dims[other[0]]} in others; write it again without the wrong array: xarray."
                f"open_zarr({str(path)!r}, drop_variables=NAME).to_zarr(NEW, {zarr_format=})"
            )
    return dims


def _variable(
    path: Path, zarr_format: int, name: str, folder: str, array: StoredArray
) -> ChunkedVariable:
    """Return an array as a variable, with the packing by which xarray would decode it.

    To xarray the ``fill_value`` of version 2 is ``_FillValue``, that of version 3 is not.
    """
    dtype, attributes = np.dtype(array.dtype), array.attributes
    packing = Packing(stored=array.dtype, dtype=dtype.newbyteorder("<").str)
    if zarr_format == 2 and array.fill is not None:
        attributes = {**attributes, "_FillValue": array.fill}
    if dtype.kind in "iuf":
        try:
            packing = packing_of(dtype, attributes)
        except MissingExtraError as error:
            raise MissingExtraError(
                f"{path}: array {name!r} is packed, which needs xarray: pip install 'iobench[zarr]'"
            ) from error
    zero = np.zeros((), dtype.newbyteorder("="))[()]
    return ChunkedVariable(
        name=name,
        dims=array.dims,
        shape=array.shape,
        packing=packing,
        fill=zero if array.fill is None else array.fill,
        attributes={key: text for key, text in array.attributes.items() if isinstance(text, str)},
        folder=folder,
        **array.where,
    )


def check_held(store: Path, variable: ChunkedVariable) -> None:
    """Refuse an array whose metadata claim far more numbers than its chunks can hold.

    Lengths are what memory is asked for: a shape of a billion times is a few bytes of JSON. Nothing
    is counted of small arrays, nor of stores elsewhere, whose chunks it takes minutes to list.
    """
    keys = variable.keys
    if keys is None or is_url(variable.folder) or not variable.shape:
        return
    itemsize = np.dtype(variable.packing.stored).itemsize
    n_numbers = math.prod(variable.shape)
    if n_numbers * itemsize <= LARGE_NBYTES and max(variable.shape) <= LARGE_LENGTH:
        return
    counts = keys.chunks_per_shard or (1,) * len(variable.shape)
    chunk = [n * m for n, m in zip(variable.chunk, counts, strict=True)]
    in_a_file = math.prod(map(min, chunk, variable.shape))
    needed = -(-n_numbers // (SPARSE * in_a_file))
    n_files = 0
    for _, _, files in os.walk(variable.folder):
        n_files += sum(not name.startswith((".z", "zarr.json")) for name in files)
        if n_files >= needed:
            return
    raise FileFormatError(
        f"{store}: array {variable.name!r} claims the shape {list(variable.shape)}, and "
        f"its {n_files} chunks of {chunk} hold less than one in {SPARSE} of that; fetch the store "
        "again, or leave the array out with --variables"
    )


def missing_keys(boxes: Sequence[Box]) -> list[str | None]:
    """Return for each box of one variable the first of its files that is not there, or None.

    One listing of the array's folder where all its chunks lie in it.
    """
    variable = boxes[0].variable
    keys = variable.keys
    assert keys is not None
    nested = "/" in keys.file_key([0] * len(variable.shape))
    present = set() if nested else {entry.name for entry in os.scandir(variable.folder)}
    absent_keys: list[str | None] = []
    for box in boxes:
        places = places_touched(variable.chunk, box.start, box.stop)
        keys_of_box = dict.fromkeys(map(keys.file_key, places))
        if nested:
            absent = [key for key in keys_of_box if not Path(variable.folder, key).exists()]
        else:
            absent = [key for key in keys_of_box if key not in present]
        absent_keys.append(absent[0] if absent else None)
    return absent_keys
