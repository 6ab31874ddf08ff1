"""Objects behind URLs: what fsspec offers of them, in the words that readers and stores need.

Paths here are those of the fsspec file system, ``bucket/key``; times are the server's. Of S3, where
s3fs says less than the protocol: conditions on what is there, the server's time, unfinished uploads
(https://docs.aws.amazon.com/AmazonS3/latest/API/ of PutObject, ListObjectsV2,
ListMultipartUploads).
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from itertools import starmap
from typing import TYPE_CHECKING, Any

from iobench.errors import StorageError
from iobench.files.filesystems import S3, open_filesystem, remote_errors
from iobench.files.object_filling import Filling, fill_from_s3
from iobench.masking import shown_url

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from iobench.files.urls import URL

__all__ = ["TEMPORARY_SUFFIX", "ObjectStat", "Objects", "RangeReader", "objects_at"]

TEMPORARY_SUFFIX = ".iobench-tmp"
"""How an unfinished file ends; nothing with this ending is ever read."""
AT_ONCE = 64
"""Requests under way: enough to hide what one takes, and no burden to a server."""
N_THREADS = 4
MAX_REMOVED = 1000
AHEAD_NBYTES = 8 << 20
SMALL_NBYTES = 1 << 16
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
"""Where file systems of fsspec tell when something was written."""
_ETAGS = ("ETag", "etag", "e_tag")
_CONDITIONAL = {*S3, "gs", "gcs", "az", "abfs", "abfss"}
"""Servers that may be asked to write only what is not there."""
_CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """Size, and when it was written last in ns of its server's clock (0 where it does not tell).

    Named as `os.stat_result` names them; ``kind`` is ``"file"`` or ``"directory"``, ``etag`` what
    the server calls this version of it, if it does.
    """

    st_size: int
    st_mtime_ns: int
    kind: str = "file"
    etag: str = ""


class Objects:
    """The objects of one fsspec file system, in one process; safe from several threads.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
        As `open_filesystem` returns it.
    protocol : str
        ``s3``, ``gs``, ``https``, ...
    around : tuple of str
        What stands before and after a path in the URL of an object: ``s3://``, and what a chain
        of file systems ends in.
    """

    def __init__(self, fs: Any, protocol: str, around: tuple[str, str]) -> None:
        self.fs = fs
        self._around = around
        self.is_s3 = protocol in S3
        self._is_async = isinstance(fs, import_module("fsspec.asyn").AsyncFileSystem)
        self._keeps_conditions: bool | None = None if protocol in _CONDITIONAL else False
        self._threads: ThreadPoolExecutor | None = None

    @property
    def threads(self) -> ThreadPoolExecutor:
        """A few threads that send parts; made when first needed."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="iobench-upload")
        return self._threads

    def errors(self, path: str) -> AbstractContextManager[None]:
        """Turn what goes wrong with an object into a StorageError that names it."""
        return remote_errors(self.shown(path))

    def shown(self, path: str) -> str:
        """Return a path as the URL it is of."""
        before, after = self._around
        return shown_url(path if "://" in path else f"{before}{path.lstrip('/')}{after}")

    def read(self, path: str) -> bytes:
        """Return all bytes of an object."""
        with self.errors(path):
            return bytes(self.fs.cat_file(path))

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return all bytes of several objects, asked for at once; None of those not there."""
        every = [None] * len(paths)
        with self.errors(paths[0]):
            found = self.fs.cat_ranges(list(paths), every, every, on_error="return")
        self._raise_first(
            paths, [None if isinstance(one, FileNotFoundError) else one for one in found]
        )
        return [None if isinstance(one, FileNotFoundError) else one for one in found]

    def ranges(
        self,
        paths: Sequence[str],
        starts: Sequence[int],
        ends: Sequence[int],
        in_flight: int = AT_ONCE,
    ) -> list[bytes]:
        """Return ranges of objects, asked for at once; short where an object ends before.

        No more than ``in_flight`` are under way, where the file system does several at all.
        """
        if not paths:
            return []
        more = {"batch_size": in_flight} if self._is_async else {}
        with self.errors(paths[0]):
            try:
                found = self.fs.cat_ranges(
                    list(paths), list(starts), list(ends), on_error="return", **more
                )
            except FileNotFoundError as error:  # of an archive that the files are in
                found = [error] * len(paths)
        self._raise_first(paths, found)
        for path, start, end, one in zip(paths, starts, ends, found, strict=True):
            self._check_length(path, len(one), end - start)
        return list(found)

    def fill(
        self,
        paths: Sequence[str],
        starts: Sequence[int],
        targets: Sequence[Sequence[memoryview]],
        in_flight: int = AT_ONCE,
    ) -> list[int]:
        """Read ranges of objects into memory that lies in pieces; return the bytes of each."""
        ends = [start + sum(map(len, views)) for start, views in zip(starts, targets, strict=True)]
        jobs = list(zip(paths, starts, ends, targets, strict=True))
        found: list[Any]
        if self._is_async:

            async def fill_all() -> list[Any]:
                room = asyncio.Semaphore(max(1, in_flight))

                async def fill_one(path: str, start: int, end: int, views: Any) -> int:
                    if start == end:  # HTTP has no way to ask for nothing
                        return 0
                    async with room:
                        if self.is_s3:
                            return await fill_from_s3(self.fs, path, start, end, views)
                        return _scatter(await self.fs._cat_file(path, start=start, end=end), views)

                return await asyncio.gather(*starmap(fill_one, jobs), return_exceptions=True)

            found = import_module("fsspec.asyn").sync(self.fs.loop, fill_all)
        else:
            found = []
            for path, start, end, views in jobs:
                try:
                    with self.errors(path):
                        data = self.fs.cat_file(path, start=start, end=end)
                    found.append(_scatter(data, views))
                except FileNotFoundError as error:
                    found.append(error)
        self._raise_first(paths, found)
        for (path, start, end, _), count in zip(jobs, found, strict=True):
            self._check_length(path, count, end - start)
        return found

    def _check_length(self, path: str, nbytes: int, wanted: int) -> None:
        if nbytes > wanted:
            raise StorageError(
                f"{self.shown(path)}: asked for {wanted} bytes, got {nbytes}: the server hands "
                "out files only whole; copy the file here first"
            )

    def _raise_first(self, paths: Sequence[str], found: Sequence[object]) -> None:
        for path, one in zip(paths, found, strict=True):
            with self.errors(path):
                if isinstance(one, FileNotFoundError):
                    raise FileNotFoundError(
                        errno.ENOENT, "no such object", self.shown(path)
                    ) from None
                if isinstance(one, BaseException):
                    raise one

    def stat(self, path: str) -> ObjectStat:
        """Return what is there; raise FileNotFoundError if that is nothing."""
        with self.errors(path):
            try:
                return _stat(self.fs.info(path))
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, "no such object", self.shown(path)) from None

    def list_folder(self, path: str) -> dict[str, ObjectStat]:
        """Return what is directly in a folder, by name."""
        with self.errors(path), suppress(FileNotFoundError):
            return {
                str(info["name"]).rstrip("/").rpartition("/")[2]: _stat(info)
                for info in self.fs.ls(path, detail=True)
                if info["name"].rstrip("/") != path.rstrip("/")
            }
        return {}

    def find(self, prefix: str) -> dict[str, ObjectStat]:
        """Return all objects whose path begins with a prefix, sorted."""
        folder, _, name = prefix.rpartition("/")
        more = {"prefix": name} if self.is_s3 and name else {}
        with self.errors(prefix):
            try:
                found = self.fs.find(folder, detail=True, **more)
            except FileNotFoundError:
                found = {}
        if self.is_s3 and not found:
            self._check_bucket(prefix)
        return {
            path: _stat(info)
            for path, info in sorted(found.items())
            if path.startswith(prefix) and info["type"] == "file"
        }

    def time_ns_at(self, prefix: str) -> int:
        """Return what time it is for the server: that of an object just written there.

        S3 says it with any answer.
        """
        if self.is_s3:
            answer = self._check_bucket(prefix)
            said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
            if said is not None:
                return int(parsedate_to_datetime(said).timestamp() * 1e9)
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
            except FileNotFoundError:  # a file system with folders, behind a URL
                self.make_folder(path)
                self.fs.pipe_file(path, data)

    def make_folder(self, path: str) -> None:
        """Make the folder of an object, where the file system has some; never a bucket."""
        if self.is_s3:
            self._check_bucket(path)
            return
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; tell whether it was written.

        Where the store takes no conditions, somebody may come in between; see `is_exclusive`.
        """
        if self._put_new(path, data):
            return True
        if not self.is_exclusive(path):
            return False
        try:  # the answer to a first try may have been lost: then it is ours that is there
            return self.read(path) == data
        except FileNotFoundError:
            return False

    def is_exclusive(self, path: str) -> bool:
        """Whether `create` is atomic: a store that takes a trial twice keeps no conditions."""
        if self._keeps_conditions is None:
            trial = f"{path.rpartition('/')[0]}/.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
            try:
                self._keeps_conditions = self._put_new(trial, b"1") and not self._put_new(
                    trial, b"2"
                )
            except StorageError as error:
                if error.errno != errno.ENOSYS:
                    raise
                self._keeps_conditions = False
            finally:
                self.remove([trial])
        return self._keeps_conditions

    def touch(self, path: str) -> None:
        """Renew the time of an object; raise FileNotFoundError if it is gone or another's."""
        etag = self.stat(path).etag
        data = self.read(path)
        if not self.is_s3:
            self.put(path, data)
            return
        bucket, key, _ = self.fs.split_path(path)
        try:
            with self.errors(path):
                self.fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfMatch=etag)
        except StorageError as error:
            if error.errno == errno.ENOSYS:  # without it: whoever takes over is seen by check()
                self.put(path, data)
                return
            raise FileNotFoundError(errno.ENOENT, "taken over", self.shown(path)) from error

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, those that are there."""
        at_once = MAX_REMOVED if self.is_s3 else 1
        for start in range(0, len(paths), at_once):
            some = list(paths[start : start + at_once])
            with self.errors(some[0]), suppress(FileNotFoundError):
                self.fs.rm_file(some[0]) if len(some) == 1 else self.fs.rm(some)

    def drop_uploads(self, prefix: str) -> None:
        """Drop what others began to upload to paths that begin with a prefix; S3 keeps it."""
        if not self.is_s3:
            return
        bucket, key, _ = self.fs.split_path(prefix)
        answer: dict[str, Any] = {"IsTruncated": True}
        while answer.get("IsTruncated"):
            markers = {
                name: answer[f"Next{name}"]
                for name in ("KeyMarker", "UploadIdMarker")
                if answer.get(f"Next{name}")
            }
            with self.errors(prefix):
                answer = self.fs.call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=key, **markers
                )
                for one in answer.get("Uploads", ()):
                    with suppress(FileNotFoundError):
                        self.fs.abort_mpu(bucket, one["Key"], one["UploadId"])

    def _put_new(self, path: str, data: bytes) -> bool:
        with self.errors(path):
            try:
                self.fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                answer: Any = getattr(error.__cause__, "response", {})
                if str(answer.get("Error", {}).get("Code", "")) not in _CONFLICTS:
                    raise
                return False
        return True

    def _check_bucket(self, path: str) -> dict[str, Any]:
        """Ask for one name of a bucket, and return the answer."""
        bucket = path.partition("/")[0]
        with self.errors(bucket):
            try:
                answer: dict[str, Any] = self.fs.call_s3(
                    "list_objects_v2", Bucket=bucket, MaxKeys=1
                )
            except FileNotFoundError as error:
                raise StorageError(
                    f"{self.shown(bucket)}: there is no such bucket; make it, or name another one"
                ) from error
        return answer


def _scatter(data: bytes, views: Sequence[memoryview]) -> int:
    filling = Filling(views)
    filling.write(data)
    return filling.nbytes


_known: dict[tuple[int, int], Objects] = {}


def objects_at(url: URL) -> tuple[Objects, str]:
    """Return the objects behind a URL, of this process, and the path in them.

    Raises
    ------
    MissingExtraError, OptionError
        As `open_filesystem` does.
    """
    fs, path = open_filesystem(url)
    key = (os.getpid(), id(fs))
    if key not in _known:
        before, _, after = url.with_secrets().partition(path.strip("/") or "\0")
        _known[key] = Objects(fs, url.protocol, (before, after))
    return _known[key], path


class RangeReader(io.RawIOBase):
    """An object as a stream of bytes.

    What is read from front to back is asked for in ranges that grow to 8 MiB, so that neither
    a header costs much nor a whole file many requests.
    """

    def __init__(self, objects: Objects, path: str, nbytes: int) -> None:
        super().__init__()
        self._objects = objects
        self._path = path
        self._nbytes = nbytes
        self._at = 0
        self._start = 0
        self._held = memoryview(b"")
        self._ahead = SMALL_NBYTES // 4

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        )
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return how many bytes, 0 at the end."""
        view = memoryview(buffer)
        done = 0
        while done < len(view):  # to the end of it: who reads a header takes less for damage
            if not self._start <= self._at < self._start + len(self._held):
                self._fetch(len(view) - done)
            begin = self._at - self._start
            some = self._held[begin : begin + len(view) - done]
            if not len(some):
                break
            view[done : done + len(some)] = some
            self._at += len(some)
            done += len(some)
        return done

    def _fetch(self, wanted: int) -> None:
        is_next = self._at == self._start + len(self._held)
        self._ahead = min(AHEAD_NBYTES, 4 * self._ahead) if is_next else SMALL_NBYTES
        end = min(self._nbytes, self._at + max(wanted, self._ahead))
        found = b""
        if end > self._at:
            (found,) = self._objects.ranges([self._path], [self._at], [end])
        self._start, self._held = self._at, memoryview(found)


def _stat(info: dict[str, Any]) -> ObjectStat:
    value = next((info[name] for name in _TIMES if info.get(name)), 0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        value = value.timestamp()
    etag = next((str(info[name]) for name in _ETAGS if info.get(name)), "")
    return ObjectStat(int(info.get("size") or 0), int(value * 1e9), str(info["type"]), etag)
