"""Objects of a store elsewhere: what fsspec offers of it, in the words that stores need.

Paths here are those of the fsspec file system, ``bucket/key``; times are the server's.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from iobench.remote import open_filesystem, protocol_of, remote_errors, shown_url
from iobench.stores.atomic import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["FIRST_NBYTES", "ObjectStat", "Objects", "Upload", "objects_at"]

FIRST_NBYTES = 5 << 20
"""Of an upload, held back until its end: the least a part of S3 may have."""
N_THREADS = 4
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
"""Where file systems of fsspec tell when something was written."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """Size, and when it was written last in ns of its server's clock (0 where it does not tell).

    Named as `os.stat_result` names them.
    """

    st_size: int
    st_mtime_ns: int


class Upload(Protocol):
    """Bytes on their way to an object, which appears with ``complete`` and not before."""

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        ...

    def rewind(self) -> None:
        """Go back to the first byte."""
        ...

    def seal(self) -> None:
        """Send what is left; then all is there and nothing to be seen."""
        ...

    def complete(self) -> None:
        """Make the object appear."""
        ...

    def abort(self) -> None:
        """Drop it, unless it was completed."""
        ...

    def crc32c(self, before: int) -> int:
        """Return the CRC-32C of all bytes, given what it was before the first were rewritten."""
        ...


class Objects:
    """The objects of one fsspec file system, in one process; safe from several threads.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
        As `open_filesystem` returns it.
    scheme : str
        What addresses begin with, ``s3://``.
    """

    def __init__(self, fs: Any, scheme: str) -> None:
        self.fs = fs
        self._scheme = scheme
        self._threads: ThreadPoolExecutor | None = None

    @property
    def threads(self) -> ThreadPoolExecutor:
        """A few threads that send parts; made when first needed."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="iobench-upload")
        return self._threads

    def errors(self, path: str) -> AbstractContextManager[None]:
        """Turn what goes wrong with an object into a StorageError that names it."""
        return remote_errors(self._scheme + path.lstrip("/"))

    def shown(self, path: str) -> str:
        """Return a path as the address it is of."""
        return shown_url(self._scheme + path.lstrip("/"))

    def read(self, path: str) -> bytes:
        """Return all bytes of an object."""
        with self.errors(path):
            return bytes(self.fs.cat_file(path))

    def ranges(
        self, paths: Sequence[str], starts: Sequence[int], ends: Sequence[int], **more: int
    ) -> list[bytes]:
        """Return stretches of objects, asked for at once; short where an object ends before."""
        if not paths:
            return []
        with self.errors(paths[0]):
            found = self.fs.cat_ranges(
                list(paths), list(starts), list(ends), on_error="return", **more
            )
        self.raise_first(paths, found)
        return [bytes(one) for one in found]

    def raise_first(self, paths: Sequence[str], found: Sequence[object]) -> None:
        """Raise the first error among what came of each path, if there is one."""
        for path, one in zip(paths, found, strict=True):
            with self.errors(path):
                if isinstance(one, FileNotFoundError):
                    raise FileNotFoundError(2, "no such object", self.shown(path)) from None
                if isinstance(one, BaseException):
                    raise one

    def fill(
        self,
        paths: Sequence[str],
        starts: Sequence[int],
        targets: Sequence[Sequence[memoryview]],
        in_flight: int,
    ) -> list[int]:
        """Read stretches of objects into memory that lies in pieces; return the bytes of each.

        No more than ``in_flight`` are under way at once, where the file system does several at
        all. Fewer bytes than there is memory: the object ends there.
        """
        ends = [start + sum(map(len, views)) for start, views in zip(starts, targets, strict=True)]
        more = {"batch_size": in_flight} if getattr(self.fs, "async_impl", False) else {}
        found = self.ranges(paths, starts, ends, **more)
        return [_scattered(data, views) for data, views in zip(found, targets, strict=True)]

    def stat(self, path: str) -> ObjectStat:
        """Return size and time of an object; raise FileNotFoundError if there is none."""
        with self.errors(path):
            try:
                info = self.fs.info(path)
            except FileNotFoundError:
                info = {"type": "directory"}
            if info["type"] != "file":
                raise FileNotFoundError(2, "no such object", self.shown(path))
            return _stat(info)

    def find(self, prefix: str) -> dict[str, ObjectStat]:
        """Return all objects whose path begins with a prefix, sorted."""
        with self.errors(prefix):
            try:
                found = self.fs.find(prefix.rpartition("/")[0], detail=True)
            except FileNotFoundError:
                return {}
        return {
            path: _stat(info)
            for path, info in sorted(found.items())
            if path.startswith(prefix) and info["type"] == "file"
        }

    def any_below(self, prefix: str) -> bool:
        """Whether there is an object whose path begins with a prefix."""
        return bool(self.find(prefix))

    def time_ns_at(self, prefix: str) -> int:
        """Return what time it is for the server: that of an object just written there."""
        path = f"{prefix}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        self.put(path, b"")
        try:
            return self.stat(path).st_mtime_ns
        finally:
            self.remove([path])

    def put(self, path: str, data: bytes) -> None:
        """Write an object, which appears as a whole."""
        with self.errors(path):
            try:
                self.fs.pipe_file(path, data)
            except FileNotFoundError:  # a file system with folders, behind an address
                self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.fs.pipe_file(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; tell whether it was written."""
        with self.errors(path):
            try:
                self.fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
        return True

    def is_exclusive(self, path: str) -> bool:
        """Whether `create` is atomic, as far as fsspec tells."""
        return False

    def touch(self, path: str) -> None:
        """Renew the time of an object; raise FileNotFoundError if it is gone."""
        self.put(path, self.read(path))

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, those that are there."""
        for path in paths:
            with self.errors(path):
                try:
                    self.fs.rm_file(path)
                except FileNotFoundError:
                    continue

    def upload(self, path: str, room: str | None, begins: Callable[[], None]) -> Upload:
        """Return an upload to an object.

        Parameters
        ----------
        path : str
            Where it shall appear.
        room : str, optional
            Where it may lie until then.
        begins : callable
            Called before anything is there that an abort would have to find.
        """
        from iobench.stores.remote.streamed_uploads import StreamedUpload

        temporary = room or f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        return StreamedUpload(self, path, temporary)

    def abort_uploads(self, prefix: str) -> int:
        """Drop what others began to upload to paths that begin with a prefix; return how many."""
        return 0


_known: dict[tuple[int, int], Objects] = {}


def objects_at(url: str) -> tuple[Objects, str]:
    """Return the objects behind an address, of this process, and the path in them.

    Raises
    ------
    MissingExtraError, OptionError
        As `iobench.remote.open_filesystem` does.
    """
    fs, path = open_filesystem(url)
    key = (os.getpid(), id(fs))
    if key not in _known:
        scheme = url[: -len(path.lstrip("/"))] if path.strip("/") else url
        if protocol_of(url) in {"s3", "s3a"}:
            from iobench.stores.remote.s3_objects import S3Objects

            _known[key] = S3Objects(fs, scheme)
        else:
            _known[key] = Objects(fs, scheme)
    return _known[key], path


def _scattered(data: bytes, views: Sequence[memoryview]) -> int:
    """Copy bytes to memory that lies in pieces; return how many."""
    done = 0
    for view in views:
        some = data[done : done + len(view)] if done or len(view) < len(data) else data
        view[: len(some)] = some
        done += len(some)
    return done


def _stat(info: dict[str, Any]) -> ObjectStat:
    value = next((info[name] for name in _TIMES if info.get(name)), 0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        value = value.timestamp()
    return ObjectStat(int(info.get("size") or 0), int(value * 1e9))
