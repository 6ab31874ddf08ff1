"""What is in source files, whichever container: kind, variables, what they say, whole values.

What was found out about a file is kept, see `iobench.datasets.catalogue`; of Zarr stores, whose
metadata are read as they are, nothing is.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.chunks.boxes import index_box, read_box, read_stored_box
from iobench.chunks.grib.field_cubes import GribIndex, inspect_messages, joined_index
from iobench.chunks.grib.messages import GRIB, load_eccodes
from iobench.chunks.icechunk_store import ICECHUNK, inspect_icechunk, is_icechunk
from iobench.chunks.netcdf.file import (
    CLASSIC_MAGIC,
    HDF5_MAGIC,
    NOT_KEPT,
    Description,
    decoded_texts,
    describe_netcdf,
    inspect_netcdf,
)
from iobench.chunks.npz_files import inspect_npz
from iobench.chunks.packing import unpack
from iobench.chunks.source_file import SourceFile
from iobench.chunks.table_files import ARROW, PARQUET, inspect_table
from iobench.chunks.zarr_references import REFERENCES, inspect_references, is_references
from iobench.chunks.zarr_store import inspect_zarr, is_zarr
from iobench.coordinates import json_attributes
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.contract import no_progress
from iobench.datasets.plain_loop import open_plainly
from iobench.datasets.positions import FileCoordinates
from iobench.errors import FileFormatError, IobenchError, OptionError, StorageError
from iobench.files.ranges import open_source_file
from iobench.files.urls import URL, as_path, range_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.datasets.contract import Progress

STORE_MARK = "iobench.json"  # what the manifest of a store is called
DATA_SUFFIXES: Final = {
    **dict.fromkeys((".nc", ".nc4", ".cdf", ".h5", ".hdf5"), "NetCDF"),
    **dict.fromkeys((".grib", ".grib2", ".grb", ".grb2"), "GRIB"),
    **dict.fromkeys((".parquet", ".pq"), "Parquet"),
    **dict.fromkeys((".arrow", ".feather"), "Arrow"),
    ".npz": "npz",
    ".zarr": "Zarr",
}
"""Of the files, and Zarr stores, that a folder stands for."""
IN_GROUPS: Final = {
    "NetCDF": inspect_netcdf,
    ICECHUNK: inspect_icechunk,
    REFERENCES: inspect_references,
}
"""How files are inspected of which a group may be meant."""
WHOLE: Final = {
    "Arrow": inspect_table,
    "Parquet": inspect_table,
    "Zarr": inspect_zarr,
    "npz": inspect_npz,
}
"""How others are."""
FIRST_BYTES: Final = {
    GRIB: "GRIB",
    HDF5_MAGIC: "NetCDF",
    PARQUET: "Parquet",
    b"PK\x03\x04": "npz",
    b"{": REFERENCES,
    **dict.fromkeys(CLASSIC_MAGIC, "NetCDF"),
    **dict.fromkeys(ARROW, "Arrow"),
}
MOST_FOLDERS_DEEP: Final = 4
"""Folders of years, months and days are looked into, a whole home is not."""
TEXTS: Final = "not numeric"  # how the reason begins why arrays of texts are left out
GRIB_INDEX_VERSION: Final = 5


# ---- which files, and of which kind


def split_group(path: Path | str) -> tuple[Path, str]:
    """Return file and group of ``FILE#group``, unless that is there; of Zarr the group's folder."""
    whole = as_path(path)
    text = whole.with_secrets() if isinstance(whole, URL) else str(whole)
    base, mark, group = text.rpartition("#")
    if not mark or not group or whole.exists():
        return whole, ""
    file = as_path(base)
    if not is_zarr(file) or is_references(file):
        return file, group.strip("/")
    if not is_zarr(file / group):
        raise OptionError(f"{file}: has no group {group!r}; name a folder in it that is one")
    return file / group, ""


def data_files(folder: Path, *, deep: int = MOST_FOLDERS_DEEP, by_bytes: bool = False) -> list[str]:
    """Return the data files in a folder, by name; none where it is a store, or no folder.

    Where there are none, those of its folders; where no name says what a file is, those here or a
    folder below that begin as data do.
    """
    is_store = is_zarr(folder) or is_icechunk(folder) or (folder / STORE_MARK).is_file()
    if is_store or not folder.is_dir():
        return []
    try:
        entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}; name what may be read in it") from error
    kind_of = _kind_by_bytes if by_bytes else _kind_by_name
    kinds = {str(each): kind for each in entries if (kind := kind_of(each))}
    if len(set(kinds.values())) > 1:
        held = ", ".join(f"{n:,} {kind}" for kind, n in sorted(Counter(kinds.values()).items()))
        first = Path(next(iter(kinds)))
        pattern = (
            f"*{first.suffix}" if _kind_by_name(first) else f"{re.split('[0-9]', first.name)[0]}*"
        )
        which = f"{shlex.quote(str(folder))}/{pattern}"
        raise OptionError(f"{folder}: holds files of several formats ({held}); name one: {which}")
    if kinds or not deep:
        return list(kinds)
    inside = [
        file for each in entries for file in data_files(each, deep=deep - 1, by_bytes=by_bytes)
    ]
    if inside or by_bytes or deep < MOST_FOLDERS_DEEP:
        return inside
    return data_files(folder, deep=1, by_bytes=True)


def _kind_by_name(path: Path) -> str:
    return DATA_SUFFIXES.get(path.suffix.lower(), "")


def _kind_by_bytes(path: Path) -> str:
    with suppress(IobenchError):  # it is another's
        if is_zarr(path) if path.is_dir() else path.is_file() and path.stat().st_size:
            kind = file_kind(path)
            return kind if kind != REFERENCES else ""  # of JSON that may be anything
    return ""


def file_kind(path: Path) -> str:
    """Return the kind of a file by its first bytes, of a folder by the metadata in it."""
    if path.is_dir():
        if is_zarr(path):
            return REFERENCES if is_references(path) else "Zarr"
        if is_icechunk(path):
            return ICECHUNK
        if (path / STORE_MARK).is_file():
            raise FileFormatError(
                f"{path}: is a store of finished samples, no source; name what it was made of, or "
                f"it itself: iobench profile {shlex.quote(str(path))}, "
                f"iobench.loader({str(path)!r}, 8)"
            )
        raise FileFormatError(
            f"{path}: is a folder without Zarr metadata, and no file in it is GRIB or NetCDF; name "
            "a folder that holds some, or the files themselves"
        )
    magic = open_source_file(path).read_at(0, 8)
    for first, kind in FIRST_BYTES.items():
        if magic.startswith(first) and (kind != "npz" or path.name.endswith(".npz")):
            return kind
    beginning = f"it begins with {magic!r}" if magic else "it is empty"
    raise FileFormatError(
        f"{path}: is neither GRIB nor NetCDF nor Zarr, nor a table, .npz or references: "
        f"{beginning}; unpack archives first, leave other files out, or fetch it again"
    )


# ---- what is in them


def index_grib(
    files: Sequence[Path], *, cache_dir: Path, progress: Progress = no_progress
) -> GribIndex:
    """Index GRIB files; an index is built once per file and kept."""
    version = load_eccodes().codes_get_api_version()
    name = f"grib {GRIB_INDEX_VERSION}, ecCodes {version}"
    inspection = Inspection(name, inspect_messages, GribIndex)
    return joined_index(catalogued(files, inspection, cache_dir=cache_dir, progress=progress))


def inspect_files(
    files: Sequence[Path],
    *,
    cache_dir: Path,
    progress: Progress = no_progress,
    group: str = "",
    kind: str = "NetCDF",
) -> list[SourceFile]:
    """Return what each file or store but GRIB holds: as kept, else found out now and kept."""
    if kind not in IN_GROUPS and group:
        raise FileFormatError(f"{files[0]}: has no group {group!r}: {kind} has none")
    inspect = WHOLE.get(kind) or functools.partial(IN_GROUPS[kind], group=group)
    inspection = Inspection(f"{kind} 10 {group}", inspect, SourceFile)
    return catalogued(files, inspection, cache_dir=cache_dir, progress=progress)


def describe_source(file: SourceFile) -> Description:
    """Return what a file says of itself: attributes and texts; of merged ones the first's first."""
    parts = {each.path: each for each in (file, *file.others.values())}
    return functools.reduce(
        lambda one, other: Description(
            one.attributes, {**other.variables, **one.variables}, {**other.texts, **one.texts}
        ),
        map(_describe, parts.values()),
    )


def _describe(file: SourceFile) -> Description:
    if file.kind == "NetCDF":
        return describe_netcdf(file.path, file.group)
    described, texts = dict(file.described), {}
    names = [name for name, why in file.skipped.items() if why == TEXTS]
    if names and _has_texts(file):  # which zarr decodes
        with open_plainly(str(file.path)) as opened:
            for name in names:
                own = opened.variables[name]
                texts[name], described[name] = decoded_texts(own.dims, own.values), own.attrs
    attributes = {n: json_attributes(own, without=NOT_KEPT) for n, own in described.items()}
    return Description(json_attributes(file.attributes), attributes, texts)


def _has_texts(file: SourceFile) -> bool:
    return file.kind == "NetCDF" or (file.kind == "Zarr" and not isinstance(file.path, URL))


def whole_variable(file: SourceFile, name: str) -> NDArray[Any]:
    """Return a whole variable of a file, decoded; texts too."""
    if name in file.skipped and name not in file.coordinates:
        texts = _describe(file).texts
        return texts[name][1] if name in texts else np.array("")
    variable = file.numbers[name]
    packing = variable.packing
    if variable.values is not None:
        return unpack(variable.values.astype(packing.stored), packing)
    box = index_box(range_file(file.path), variable)
    if file.kind == "NetCDF":
        return read_box(box)
    # Without the fill value: zarr's default of 0 is a time like any other.
    values = read_stored_box(box)
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if packing.scale is None and packing.offset is None:
        return values.astype(values.dtype.newbyteorder("="), copy=False)
    return unpack(values, replace(packing, fill_values=()))


def whole_variables(
    files: Sequence[SourceFile],
    names: Sequence[str],
    *,
    cache_dir: Path,
    digest: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> dict[str, list[NDArray[Any] | None]]:
    """Return what each file has of variables, by name: as kept, else read now and kept.

    None where a file lacks one. ``cache_dir`` is where they are kept; ``digest`` returns what is
    kept instead of the values.
    """
    if not files or not names:
        return {name: [] for name in names}
    if any(file.others for file in files):
        merged: dict[str, list[NDArray[Any] | None]] = {}
        for name in names:
            held = [replace(file.holder(name), others={}) for file in files]
            merged |= whole_variables(held, [name], cache_dir=cache_dir, digest=digest)
        return merged
    by_path = {file.path: file for file in files}

    def read(path: Path) -> dict[str, NDArray[Any] | None]:
        file, values = by_path[path], dict[str, Any]()
        for name in names:
            is_text = file.skipped.get(name, "").startswith(TEXTS) and _has_texts(file)
            own = whole_variable(file, name) if name in file.numbers or is_text else None
            values[name] = own if own is None or digest is None else digest(own)
        return values

    if files[0].kind == "NetCDF":
        what = f"netcdf {'digests 3' if digest else 'values 2'} #{files[0].group} {' '.join(names)}"
        inspection = Inspection(what, read, dict[str, Any], in_processes=False)
        outcomes = catalogued(list(by_path), inspection, cache_dir=cache_dir)
    else:
        outcomes = list(map(read, by_path))
    known = dict(zip(by_path, outcomes, strict=True))
    return {name: [known[file.path][name] for file in files] for name in names}


def coordinates_along(files: Sequence[SourceFile], dim: str, *, cache_dir: Path) -> FileCoordinates:
    """Return the coordinate of files along a dimension, or the indices where one has none."""
    variables = [_coordinate(file, dim) for file in files]
    name = next((each.name for each in variables if each is not None), dim)
    some = [file for file, own in zip(files, variables, strict=True) if own is not None]
    values = iter(whole_variables(some, [name], cache_dir=cache_dir)[name])
    stored = [
        np.arange(file.dims[dim]) if own is None else np.asarray(next(values)).reshape(-1)
        for file, own in zip(files, variables, strict=True)
    ]
    units, calendars = (
        [None if each is None else each.attributes.get(key, "") for each in variables]
        for key in ("units", "calendar")
    )
    return FileCoordinates(stored, units, calendars)


def _coordinate(file: SourceFile, dim: str) -> ChunkedVariable | None:
    """Return the coordinate of a dimension; of GRIB the times that fields are of, and tops."""
    numbers = file.numbers
    if file.kind == "GRIB":
        for name in ("valid_time", f"{dim}_top"):
            if name in numbers and numbers[name].dims == (dim,):
                return numbers[name]
    variable = numbers.get(dim)
    is_one = variable is not None and not variable.dims and file.dims.get(dim) == 1
    return variable if variable is not None and (is_one or variable.dims == (dim,)) else None
