"""Members of archives as files to be copied, after a look at where they would be written."""

from __future__ import annotations

import gzip
import re
import tarfile
import threading
import zipfile
import zlib
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final

from iobench.errors import FileFormatError, StorageError
from iobench.files.urls import URL, range_file
from iobench.staging.copying import ListedFile
from iobench.stores.places import MARK_NAME, STAGED_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".zip")
NAME: Final = re.compile(r"[^/\\\0-\x1f]{1,255}(?:/[^/\\\0-\x1f]{1,255}){0,31}")
PIECE_NBYTES: Final = 1 << 22


def is_archive(path: Path) -> bool:
    """Tell an archive by its name."""
    return path.name.lower().endswith(SUFFIXES) and not path.is_dir()


def members_of(archive: Path, below: str) -> list[ListedFile]:
    """Return the files of an archive, which are written below a folder of the copy.

    Raises
    ------
    FileFormatError
        If it is damaged, or has a member that is no file or folder inside: nothing is unpacked.
    StorageError
        If it cannot be read.
    """
    try:
        status = archive.stat()
        version = archive.version() if isinstance(archive, URL) else str(status.st_mtime_ns)
        read = _zipped if archive.name.lower().endswith(".zip") else _tarred
        members = list(read(archive))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{archive}: is cut short or damaged ({error})") from error
    except (StorageError, FileFormatError):
        raise
    except OSError as error:
        raise StorageError(f"{archive}: cannot be read: {error.strerror or error}") from error
    found = []
    for name, nbytes, offset, inflate in members:
        own = {MARK_NAME, STAGED_NAME, "", ".", ".."} & {*name.split("/")}
        if own or not NAME.fullmatch(name):
            raise FileFormatError(
                f"{archive}: its member {name!a} would be written outside of its folder, or over a "
                "file of iobench's; nothing was unpacked"
            )
        told = f"{version} {offset}"
        found.append(
            ListedFile(
                f"{below}{name}", nbytes, told, range_file(archive), offset,
                modified=version, inflate=inflate,
            )
        )  # fmt: skip
    return found


Member = tuple[str, int, int, "Callable[[], Iterator[bytes]] | None"]
"""Name, size, where it begins, and how to get its bytes if that is not in the archive itself."""


def _tarred(archive: Path) -> Iterator[Member]:
    is_plain = archive.name.lower().endswith(".tar")
    packed = None if is_plain else _Gunzipped(archive)
    mode: Any = "r:" if is_plain else "r:gz"
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode=mode) as tar:
        for member in tar:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise FileFormatError(
                    f"{archive}: its member {member.name!a} is a link, a device or a sparse file, "
                    "which are not unpacked"
                )
            place = member.offset_data, member.size
            inflate = None if packed is None else partial(packed.pieces, *place)
            yield member.name.removeprefix("./"), member.size, member.offset_data, inflate
        while packed is not None and tar.fileobj and tar.fileobj.read(PIECE_NBYTES):
            pass  # the checksum of all of it is at its end


class _Gunzipped:
    """A compressed archive that is read from front to back, by one thread at a time."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._raw: IO[bytes] | None = None
        self._lock = threading.Lock()

    def pieces(self, offset: int, nbytes: int) -> Iterator[bytes]:
        """Yield the bytes of a member, in pieces."""
        with self._lock:
            if self._raw is None:
                self._raw = self._archive.open("rb")
                self._stream = gzip.GzipFile(fileobj=self._raw)
            self._stream.seek(offset)
            while nbytes and (piece := self._stream.read(min(nbytes, PIECE_NBYTES))):
                nbytes -= len(piece)
                yield piece

    def __del__(self) -> None:
        if self._raw is not None:
            self._raw.close()


def _zipped(archive: Path) -> Iterator[Member]:
    with archive.open("rb") as raw, zipfile.ZipFile(raw) as packed:
        for member in packed.infolist():
            if member.is_dir():
                continue
            if (member.external_attr >> 28) not in (0, 8) or member.flag_bits & 1:
                raise FileFormatError(
                    f"{archive}: its member {member.filename!a} is a link, a device or encrypted, "
                    "which are not unpacked"
                )
            yield (
                member.filename, member.file_size, member.header_offset,
                partial(_unzipped, archive, member.filename),
            )  # fmt: skip


def _unzipped(archive: Path, name: str) -> Iterator[bytes]:
    with archive.open("rb") as raw, zipfile.ZipFile(raw) as packed, packed.open(name) as stream:
        while piece := stream.read(PIECE_NBYTES):
            yield piece
