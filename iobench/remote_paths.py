"""Paths of files that are reached by a URL: ``s3://bucket/x.nc`` and whatever else fsspec opens.

A source file may lie anywhere. What has to know where is here, and in `iobench.remote`; all others
hold a path and ask it for its size, its name or what is in the folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, cast

from iobench.remote import is_url, open_filesystem, protocol_of, remote_errors, shown_url

if TYPE_CHECKING:
    # Signatures say Path; to a type checker this is one.
    _Base = Path
else:
    # At run time it is none: what is missing here fails, and never asks the local disk.
    _Base = object

__all__ = ["RemotePath", "RemoteStream", "source_path"]

LOCAL_PROTOCOLS: Final = ("file", "local")
MODIFIED_KEYS: Final = ("LastModified", "last_modified", "mtime", "modified", "updated")
ETAG_KEYS: Final = ("ETag", "etag", "e_tag")
"""Where fsspec's file systems say when a file was written, and which version of it this is."""


class RemotePath(_Base):
    """A URL with the face of a path: enough of it for files that are only read.

    Immutable, hashable, picklable; opens nothing by itself.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/x.nc``.
    found : mapping, optional
        What the file system has just said of it; asked anew each time without. Not in copies
        through pickle.
    """

    __slots__ = ("_found", "_url")

    def __init__(self, url: str, found: Mapping[str, Any] | None = None) -> None:
        self._url, self._found = url, found

    def __str__(self) -> str:
        return self._url

    def __fspath__(self) -> str:
        return self._url

    def __format__(self, spec: str) -> str:
        return format(shown_url(self._url), spec)  # what is said to people has no signature

    def __repr__(self) -> str:
        return f"RemotePath({shown_url(self._url)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._url == other._url

    def __lt__(self, other: RemotePath) -> bool:  # type: ignore[override]
        return self._url.split("/") < other._url.split("/")  # as paths: by their parts

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[type[RemotePath], tuple[str]]:
        return RemotePath, (self._url,)

    def __truediv__(self, key: str | os.PathLike[str]) -> RemotePath:
        name = os.fspath(key).strip("/")
        return RemotePath(f"{self._url.rstrip('/')}/{name}") if name else self

    @property
    def name(self) -> str:
        """What follows the last slash, without the query of a web page's address."""
        return shown_url(self._url).rstrip("/").rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without what follows its last dot."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> RemotePath:
        """The URL up to its last slash; of the root itself, the same."""
        protocol, mark, rest = self._url.rpartition("://")
        above = rest.rstrip("/").rpartition("/")[0]
        return RemotePath(f"{protocol}{mark}{above}") if above else self

    @property
    def parents(self) -> Sequence[RemotePath]:
        """All of them, the nearest first."""
        found: list[RemotePath] = []
        path = self
        while path.parent != path:
            path = path.parent
            found.append(path)
        return found

    def relative_to(self, other: RemotePath) -> PurePosixPath:  # type: ignore[override]
        """Return what leads from another to it."""
        return PurePosixPath(self._url).relative_to(PurePosixPath(other._url))

    def absolute(self) -> RemotePath:
        """Return it: a URL is absolute."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """Return it: links are not seen through a URL."""
        return self

    def is_symlink(self) -> bool:
        """Return False."""
        return False

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether there is anything."""
        return self._kind() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        return self._kind() == "file"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder: whether there is anything below it."""
        return self._kind() == "directory"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return kind, size and time of modification; all else is 0.

        Raises
        ------
        FileNotFoundError
            If there is nothing.
        StorageError
            If it cannot be reached.
        """
        found = self._info()
        kind = stat.S_IFDIR if found["type"] == "directory" else stat.S_IFREG
        modified_ns = self._modified_ns(found)
        return os.stat_result(
            (kind | 0o444, 0, 0, 0, 0, 0, int(found.get("size") or 0), 0, modified_ns // 10**9, 0),
            {"st_mtime_ns": modified_ns, "st_mtime": modified_ns / 1e9},
        )

    def looked_up(self) -> RemotePath:
        """Return it as it is now: what it says of itself costs no further requests.

        Raises
        ------
        FileNotFoundError
            If there is nothing.
        StorageError
            If it cannot be reached.
        """
        return RemotePath(self._url, self._info())

    def version(self) -> str:
        """Return what changes when the file is written anew: its ETag, else when that was."""
        found = self._info()
        for key in ETAG_KEYS:
            if found.get(key):
                return str(found[key])
        return str(self._modified_ns(found))

    def state_number(self) -> int:
        """Return a number that changes with the file, or with any file in the folder.

        It is made of names, sizes and versions; 52 bits, so that JSON keeps it.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in [self] if self.is_file() else sorted(self.rglob("*")):
            digest.update(f"{path} {path.stat().st_size} {path.version()}\n".encode())
        return int.from_bytes(digest.digest(), "big") >> 12

    def open(  # type: ignore[override]
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open it for reading bytes; each read is a request of its own.

        Raises
        ------
        ValueError
            For any other mode than ``"rb"``.
        """
        if mode != "rb":
            raise ValueError(f"{self}: is opened to read bytes only, asked for {mode!r}")
        return cast(IO[Any], RemoteStream(self))

    def read_bytes(self) -> bytes:
        """Return the content.

        Raises
        ------
        FileNotFoundError
            If there is nothing.
        StorageError
            If it cannot be reached.
        """
        with remote_errors(self._url):
            filesystem, inside = open_filesystem(self._url)
            content: bytes = filesystem.cat_file(inside)
            return content

    def read_ranges(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places before its end, asked for side by side."""
        with remote_errors(self._url):
            filesystem, inside = open_filesystem(self._url)
            ends = [offset + nbytes for offset in offsets]
            content: list[bytes] = filesystem.cat_ranges(
                [inside] * len(ends), list(offsets), ends, on_error="raise"
            )
            return content

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """Yield what is in the folder."""
        with remote_errors(self._url):
            filesystem, inside = open_filesystem(self._url)
            listed = filesystem.ls(inside, detail=True)
        for found in listed:
            name = str(found["name"]).rstrip("/").rpartition("/")[2]
            if found["name"].rstrip("/") != inside.rstrip("/"):
                yield self._with(name, found)

    def rglob(self, pattern: str, **_: Any) -> Generator[RemotePath, None, None]:
        """Yield all files below the folder, after one look; ``pattern`` has to be ``"*"``."""
        if pattern != "*":
            raise ValueError(f"{self}: is listed whole, asked for {pattern!r}")
        with remote_errors(self._url):
            filesystem, inside = open_filesystem(self._url)
            listed = filesystem.find(inside, detail=True)
        for name, found in sorted(listed.items()):
            yield self._with(name.removeprefix(inside.rstrip("/")).lstrip("/"), found)

    def _with(self, name: str, found: Mapping[str, Any]) -> RemotePath:
        return RemotePath(str(self / name), found)

    def _kind(self) -> str | None:
        try:
            return str(self._info()["type"])
        except FileNotFoundError:
            return None

    def _info(self) -> Mapping[str, Any]:
        """Return what the file system says of it: now, unless a listing has just told."""
        if self._found is not None:
            return self._found
        with remote_errors(self._url):
            filesystem, inside = open_filesystem(self._url)
            found: Mapping[str, Any] = filesystem.info(inside)
            return found

    def _modified_ns(self, found: Mapping[str, Any]) -> int:
        for key in MODIFIED_KEYS:
            if found.get(key):
                return _nanoseconds(found[key])
        if found["type"] == "directory":
            return 0
        try:
            with remote_errors(self._url):
                filesystem, inside = open_filesystem(self._url)
                return _nanoseconds(filesystem.modified(inside))
        except NotImplementedError:  # nobody knows: sizes have to do
            return 0


class RemoteStream(io.RawIOBase):
    """A remote file to be read from any place, without a copy of more than was asked for."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._nbytes = path.stat().st_size
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._nbytes}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from here on, as far as the file goes."""
        length = max(0, min(len(buffer), self._nbytes - self._place))
        if length:
            content = self._path.read_ranges([self._place], length)[0]
            length = len(content)
            buffer[:length] = content
        self._place += length
        return length


def source_path(text: str | os.PathLike[str]) -> Path:
    """Return the path of a source: of a URL a `RemotePath`, but for local files spelled as URLs."""
    if isinstance(text, RemotePath):
        return text
    spelled = os.fspath(text)
    if not is_url(spelled):
        return Path(spelled)
    if protocol_of(spelled) in LOCAL_PROTOCOLS and "::" not in spelled:
        return Path(spelled.partition("://")[2])
    return RemotePath(spelled)


def _nanoseconds(time: Any) -> int:
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, datetime):
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        since: timedelta = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000
    return round(float(time) * 1e9)
