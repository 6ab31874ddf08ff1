"""What a Zarr store holds: its metadata read as JSON, whichever zarr is installed.

Arrays with codecs, grids or layouts of version 3 that are not undone here are not read.
zarr makes whatever codec metadata name, so a store that it opens whole is looked at first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.packing import Packing, packing_of
from iobench.chunks.source_file import SourceFile
from iobench.chunks.zarr_metadata import StoredArray, array_of, unsafe_codecs
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError, StorageError
from iobench.files.ranges import forget_source_files
from iobench.files.urls import URL, is_url, range_file
from iobench.json_files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping


VERSION3: Final = "zarr.json"
CONSOLIDATED: Final = ".zmetadata"
ARRAY2, GROUP2, ATTRIBUTES2 = ".zarray", ".zgroup", ".zattrs"
LARGE_NBYTES, LARGE_LENGTH = 1 << 32, 1 << 22
"""Of an array, or along one of its axes: from there on chunks are counted before it is believed."""
SPARSE: Final = 64
"""How many times the numbers of its chunks an array may have: the others were never written."""
WRONG_METADATA: Final = (KeyError, ValueError, TypeError, AttributeError, OverflowError)


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a Zarr store: has metadata of version 2 or 3."""
    return any((path / name).is_file() for name in (VERSION3, CONSOLIDATED, GROUP2, ARRAY2))


def inspect_zarr(path: Path) -> SourceFile:
    """Return what the store in folder ``path`` holds: a group with its arrays, or one array."""
    forget_source_files(str(path))
    if not is_zarr(path):
        raise FileFormatError(
            f"{path}: is no Zarr store: there is neither {VERSION3} nor {GROUP2} nor {ARRAY2} in "
            "it; name the folder that holds them"
        )
    zarr_format, documents = _documents(path)
    text = json.dumps(documents, sort_keys=True)
    arrays, skipped = _arrays(path, zarr_format, documents)
    dims = _dimensions(path, arrays, skipped)
    described = {}
    for name, array in arrays.items():
        if name not in skipped:
            try:
                described[name] = _variable(path, zarr_format, name, array)
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
        kind="Zarr",
        zarr_format=zarr_format,
        dims=dims,
        variables={name: each for name, each in described.items() if name not in dates},
        coordinates=dates,
        skipped=skipped | dict.fromkeys(dates, "dates, not numbers"),
        attributes=root if isinstance(root, dict) else {},
        described={name: arrays[name].attributes for name in described},
        fingerprint=hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
    )


def _documents(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the version of a store, and its metadata by the path they have, or would have, in it.

    Consolidated metadata are used where there are any, as zarr and xarray do.
    """
    documents: dict[str, Any] = {}
    zarr_format = 3 if (path / VERSION3).is_file() else 2
    if zarr_format == 3:
        documents[VERSION3] = _json(path / VERSION3)
        if held := documents[VERSION3].pop("consolidated_metadata", None):
            members = _members(path / VERSION3, held)
            return 3, documents | {f"{name}/{VERSION3}": each for name, each in members.items()}
        has_arrays = documents[VERSION3].get("node_type") == "group"
    elif (path / CONSOLIDATED).is_file():
        return 2, _members(path / CONSOLIDATED, _json(path / CONSOLIDATED))
    else:
        has_arrays = not (path / ARRAY2).is_file()
    # The folders in an array hold chunks, thousands of them.
    folders = _folders(path) if has_arrays else []
    for prefix in ("", *(f"{folder.name}/" for folder in folders)):
        for name in (VERSION3,) if zarr_format == 3 else (ARRAY2, GROUP2, ATTRIBUTES2):
            if prefix + name not in documents and (path / prefix / name).is_file():
                documents[prefix + name] = _json(path / prefix / name)
    return zarr_format, documents


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


def _members(path: Path, consolidated: Any) -> dict[str, Any]:
    members = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(members, dict):
        raise FileFormatError(
            f"{path}: has no consolidated metadata; consolidate them again: "
            f"zarr.consolidate_metadata({str(path.parent)!r})"
        )
    return dict(members)


def _arrays(
    path: Path, zarr_format: int, documents: Mapping[str, Any]
) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Return the arrays of numbers and dates by name, and why each other one is left out."""
    arrays: dict[str, StoredArray] = {}
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
            array = array_of({"zarr_format": zarr_format, **document}, attributes)
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
        elif not array.dtype:
            skipped[name] = "not numeric"
        elif not is_url(path) and not (path / name).is_dir():
            raise MissingFileError(
                f"{path}: the folder of array {name!r} is missing, though metadata name it; fetch "
                f"the store again, or, if it was removed, zarr.consolidate_metadata({str(path)!r})"
            )
        else:
            array.where["folder"] = range_file(path / name)
            arrays[name or path.stem] = array
    return arrays, skipped


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
            raise FileFormatError(
                f"{path}: dimension {other[0]} is {lengths[other[0]]} long in array {name!r} and "
                f"{dims[other[0]]} in others; write it again without the wrong array: "
                f"xarray.open_zarr({str(path)!r}, drop_variables=NAME).to_zarr(NEW)"
            )
    return dims


def _variable(path: Path, zarr_format: int, name: str, array: StoredArray) -> ChunkedVariable:
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
    return ChunkedVariable(
        name=name,
        dims=array.dims,
        shape=array.shape,
        packing=packing,
        fill=np.zeros(1, dtype.newbyteorder("="))[0] if array.fill is None else array.fill,
        attributes={key: text for key, text in array.attributes.items() if isinstance(text, str)},
        **array.where,
    )


def check_held(store: Path, variable: ChunkedVariable) -> None:
    """Refuse an array that is not read here, or claims far more numbers than its chunks can hold.

    Lengths are what memory is asked for: a shape of a billion times is a few bytes of JSON. Nothing
    is counted of small arrays, nor of stores elsewhere, whose chunks it takes minutes to list.
    """
    if variable.only_library:
        raise FileFormatError(
            f"{store}: array {variable.name!r} ({variable.only_library}) cannot be read: only "
            "codecs that are known to be safe are made; leave the array out with --variables, or "
            "write it with another codec: xarray.open_zarr(OLD).to_zarr(NEW)"
        )
    shape, keys = variable.shape, variable.keys
    n_numbers = math.prod(shape)
    is_large = n_numbers * np.dtype(variable.packing.stored).itemsize > LARGE_NBYTES
    if keys is None or is_url(variable.folder) or not is_large | (max(shape) > LARGE_LENGTH):
        return
    counts = keys.chunks_per_shard or (1,) * len(shape)
    chunk = [n * m for n, m in zip(variable.chunk, counts, strict=True)]
    needed = -(-n_numbers // (SPARSE * math.prod(map(min, chunk, shape))))
    n_files = 0
    for _, _, files in os.walk(variable.folder):
        n_files += sum(not name.startswith((".z", VERSION3)) for name in files)
        if n_files >= needed:
            return
    raise FileFormatError(
        f"{store}: array {variable.name!r} claims the shape {list(shape)}, and its {n_files} "
        f"chunks of {chunk} hold less than one in {SPARSE} of that; fetch the store again, or "
        "leave the array out with --variables"
    )


def check_for_library(path: Path) -> None:
    """Check all metadata of a local store that is about to be opened whole, by xarray and zarr."""
    if path.suffix in (".n5", ".zip"):  # zarr 2 goes by the name, and reads other files
        raise FileFormatError(f"{path}: is opened as something else by zarr; rename the folder")
    for folder in (path, *_folders(path)):
        for file in (folder / name for name in (ARRAY2, CONSOLIDATED, VERSION3)):
            if not file.exists():
                continue
            try:
                unsafe = ", ".join(f"codec {name}" for name in unsafe_codecs(_json(file)))
            except WRONG_METADATA as error:
                unsafe = str(error)
            if unsafe:
                raise FileFormatError(
                    f"{file}: is not handed to zarr: {unsafe}; read it without --pipeline "
                    "upstream, or fetch the store again"
                )
