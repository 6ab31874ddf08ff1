"""Which kind a source file is, by its bytes, and the data files that a folder stands for."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.chunks.grib.messages import GRIB
from iobench.chunks.netcdf.file import CLASSIC_MAGIC, HDF5_MAGIC
from iobench.chunks.zarr_store import is_zarr
from iobench.datasets.catalogue import Inspection
from iobench.errors import FileFormatError, IobenchError, OptionError, StorageError
from iobench.files.ranges import open_source_file
from iobench.files.urls import URL, as_path

if TYPE_CHECKING:
    from iobench.datasets.setup_processes import Advance

STORE_MARK = "iobench.json"
"""What the manifest of a store is called."""
DATA_SUFFIXES: Final = {
    **dict.fromkeys((".nc", ".nc4", ".cdf"), "NetCDF"),
    **dict.fromkeys((".grib", ".grib2", ".grb", ".grb2"), "GRIB"),
    ".zarr": "Zarr",
}
"""Of the files, and Zarr stores, that a folder stands for."""
MOST_FOLDERS_DEEP: Final = 4
"""Folders of years, months and days are looked into, a whole home is not."""
FINGERPRINT_NBYTES = 65536
UNPACKERS: Final = {
    b"PK\x03\x04": "unzip", b"\x1f\x8b": "gunzip -k", b"BZh": "bunzip2 -k",
    b"\xfd7zXZ": "unxz -k", b"\x28\xb5\x2f\xfd": "unzstd",
}  # fmt: skip
"""By how files begin."""


def split_group(path: Path | str) -> tuple[Path, str]:
    """Return the file and the group of ``FILE#group``; of a Zarr store, the folder of the group.

    A file whose name has a # goes before.
    """
    whole = as_path(path)
    text = whole.with_secrets() if isinstance(whole, URL) else str(whole)
    base, mark, group = text.rpartition("#")
    if not mark or not group or whole.exists():
        return whole, ""
    file = as_path(base)
    if not is_zarr(file):
        return file, group.strip("/")
    if not is_zarr(file / group):
        raise OptionError(f"{file}: has no group {group!r}; name a folder in it that is one")
    return file / group, ""


def data_files(folder: Path, *, deep: int = MOST_FOLDERS_DEEP, by_bytes: bool = False) -> list[str]:
    """Return the data files in a folder, by name; none where it is a store, or no folder.

    Where there are none, those of its folders; where no name says what a file is, those here or a
    folder below that begin as data do. Without hidden ones, as the shell's ``*.nc``: what macOS or
    a copy under way leaves.
    """
    if not folder.is_dir() or is_zarr(folder) or (folder / STORE_MARK).is_file():
        return []
    try:
        entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror}; name what may be read in it") from error
    kinds = {each: _kind_by_bytes(each) if by_bytes else _kind_by_name(each) for each in entries}
    data = [each for each in entries if kinds[each]]
    counts = Counter(kinds[each] for each in data)
    if len(counts) > 1:
        held = ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items()))
        pattern = re.split(r"[0-9]", data[0].name)[0] + "*"
        if _kind_by_name(data[0]):
            pattern = f"*{data[0].suffix}"
        which = f"{shlex.quote(str(folder))}/{pattern}"
        raise OptionError(f"{folder}: holds files of several formats ({held}); name one: {which}")
    if data or not deep:
        return [str(each) for each in data]
    inside = [
        file for each in entries for file in data_files(each, deep=deep - 1, by_bytes=by_bytes)
    ]
    if inside or by_bytes or deep < MOST_FOLDERS_DEEP:
        return inside
    return data_files(folder, deep=1, by_bytes=True)


def _kind_by_name(path: Path) -> str:
    return DATA_SUFFIXES.get(path.suffix.lower(), "")


def _kind_by_bytes(path: Path) -> str:
    """Return the kind of a file whose name says nothing; none where it is another's."""
    with suppress(IobenchError):
        if is_zarr(path) if path.is_dir() else path.is_file() and path.stat().st_size:
            return file_kind(path)
    return ""


class FileFacts(msgspec.Struct, frozen=True):
    """Facts of a file of any format; the fingerprint is of its beginning and end."""

    kind: str
    nbytes: int
    fingerprint: str


def _facts(path: Path, _: Advance) -> FileFacts:
    kind = file_kind(path)
    if kind == "Zarr":
        return FileFacts(kind, 0, "")
    opened = open_source_file(path)
    size = opened.nbytes
    ends = opened.read_each([0, max(size - FINGERPRINT_NBYTES, 0)], FINGERPRINT_NBYTES)
    return FileFacts(kind, size, hashlib.blake2b(b"".join(ends), digest_size=16).hexdigest())


FACTS: Final = Inspection("facts 1", _facts, (FileFacts,))


def file_kind(path: Path) -> str:
    """Return the kind of a file by its first bytes, of a folder by the metadata in it."""
    if path.is_dir():
        if is_zarr(path):
            return "Zarr"
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
    opened = open_source_file(path)
    head = opened.read_at(0, 512)
    if head[:4] == GRIB:
        return "GRIB"
    if head[:4] in CLASSIC_MAGIC or head[:8] == HDF5_MAGIC:
        return "NetCDF"
    unpacker = next((command for magic, command in UNPACKERS.items() if head.startswith(magic)), "")
    if head[257:262] == b"ustar" or (unpacker and re.search(r"\.tar\.|\.tgz$", path.name)):
        unpacker = "tar -xf"
    if unpacker:
        copied, name = ("copy it here, ", path.name) if isinstance(path, URL) else ("", str(path))
        raise FileFormatError(
            f"{path}: is an archive or compressed; {copied}unpack it with {unpacker} "
            f"{shlex.quote(name)}; then name the Zarr store, or the files, that were in it"
        )
    magic = head[:8]
    beginning = f"it begins with {magic!r}" if magic else "it is empty"
    again = ", or fetch it again" if not magic.strip(b"\0") or magic.lstrip()[:1] == b"<" else ""
    raise FileFormatError(
        f"{path}: is neither GRIB nor NetCDF nor Zarr: {beginning}; leave it out{again}"
    )
