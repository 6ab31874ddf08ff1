"""Objects behind URLs: what fsspec and obstore offer, in the words that readers and stores need.

Paths here are ``bucket/key``, of the web whole URLs; times are the server's. Of S3, where
s3fs says less than the protocol: conditions on what is there, the server's time, unfinished uploads
(https://docs.aws.amazon.com/AmazonS3/latest/API/ of PutObject, ListObjectsV2,
ListMultipartUploads).
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import starmap
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from iobench.errors import FileFormatError, StorageError
from iobench.files.filesystems import S3, open_bucket, open_filesystem, remote_errors
from iobench.files.object_requests import (
    gather,
    is_answer,
    is_refused,
    read_range,
    read_state,
    web_place,
)
from iobench.masking import shown_url

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from iobench.files.urls import URL

TEMPORARY_SUFFIX = ".iobench-tmp"
"""How an unfinished file ends; nothing with this ending is ever read."""
AT_ONCE = 64
"""Requests under way: enough to hide what one takes, and no burden to a server."""
N_THREADS = 4
MAX_REMOVED = 1000
LISTED_AT_ONCE = 1000
"""Names in one answer of S3, and of the stores that copy it."""
AHEAD_NBYTES = 8 << 20
SMALL_NBYTES = 1 << 16
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
"""Where file systems of fsspec tell when something was written."""
_LINK = re.compile(rb"""href=["']?(?:\./)?([\w%][^"'/?#:<>]*)/["' >]""", re.IGNORECASE)
_ETAGS = ("ETag", "etag", "e_tag")
_Job = tuple[str, int, int, Sequence[memoryview], str]
"""Path, start, end, memory and ETag."""
_CONDITIONAL = {*S3, "gs", "gcs", "az", "abfs", "abfss"}
"""Servers that may be asked to write only what is not there."""
_CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
WEB = ("http", "https")
WEB_STORES = ("zarr.json", ".zmetadata", ".zgroup")
"""What says on a web server that a folder is a Zarr store, the first that hold all metadata."""


class ObjectStat(msgspec.Struct, frozen=True):
    """Size, and when it was written last in ns of its server's clock (0 where it does not tell).

    Named as `os.stat_result` names them; ``kind`` is ``"file"`` or ``"directory"``, ``etag`` what
    the server calls this version of it, if it does.
    """

    st_size: int
    st_mtime_ns: int
    kind: str = "file"
    etag: str = ""


@dataclass(slots=True)
class RequestCounts:
    """What was asked of stores of objects for reading; what a library tries again is one."""

    listings: int = 0  # answers with names, of up to 1000
    states: int = 0  # questions for size and version of an object
    ranges: int = 0
    nbytes: int = 0  # parts of objects, and what they held

    def add(self, other: RequestCounts) -> None:
        """Count what another process asked for, too."""
        self.count(other.listings, other.states, other.ranges, other.nbytes)

    def count(self, listings: int = 0, states: int = 0, ranges: int = 0, nbytes: int = 0) -> None:
        """Count some more; safe from several threads."""
        with _counting:
            self.listings += listings
            self.states += states
            self.ranges += ranges
            self.nbytes += nbytes

    def copy(self) -> RequestCounts:
        """Return a copy."""
        return RequestCounts(self.listings, self.states, self.ranges, self.nbytes)

    def since(self, before: RequestCounts) -> RequestCounts:
        """Return what was counted since an earlier copy."""
        return RequestCounts(
            self.listings - before.listings,
            self.states - before.states,
            self.ranges - before.ranges,
            self.nbytes - before.nbytes,
        )


_counting = threading.Lock()
request_counts = RequestCounts()
"""Of this process, and of those that told it."""


class Objects:
    """The objects of one fsspec file system, in one process; safe from several threads."""

    def __init__(self, fs: Any, protocol: str, around: tuple[str, str]) -> None:
        self.fs = fs
        self._around = around
        self.is_s3 = protocol in S3
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
        """Return all bytes of an object; raise FileNotFoundError if it is not there."""
        (found,) = self.read_each([path])
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.shown(path))
        return found

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return all bytes of several objects, asked for at once; None of those not there."""
        found = self._read_each(paths)
        whole = [None if isinstance(one, FileNotFoundError) else one for one in found]
        self._raise_first(paths, whole)
        request_counts.count(ranges=len(paths), nbytes=sum(len(one or b"") for one in whole))
        return [None if one is None else bytes(one) for one in whole]

    def _read_each(self, paths: Sequence[str]) -> list[Any]:
        every = [None] * len(paths)
        with self.errors(paths[0]):
            return list(self.fs.cat_ranges(list(paths), every, every, on_error="return"))

    def ranges(
        self,
        paths: Sequence[str],
        starts: Sequence[int],
        ends: Sequence[int],
        in_flight: int = AT_ONCE,
        etags: Sequence[str] = (),
    ) -> list[bytes]:
        """Return ranges of objects, asked for at once; short where an object ends before.

        No more than ``in_flight`` are under way, where the file system does several at all;
        ``etags`` as for `fill`.
        """
        buffers = [bytearray(end - start) for start, end in zip(starts, ends, strict=True)]
        targets = [[memoryview(buffer)] for buffer in buffers]
        counts = self.fill(paths, starts, targets, in_flight, etags)
        return [
            bytes(memoryview(buffer)[:count]) for buffer, count in zip(buffers, counts, strict=True)
        ]

    def fill(
        self,
        paths: Sequence[str],
        starts: Sequence[int],
        targets: Sequence[Sequence[memoryview]],
        in_flight: int = AT_ONCE,
        etags: Sequence[str] = (),
    ) -> list[int]:
        """Read ranges of objects into memory that lies in pieces; return the bytes of each.

        ``etags`` are the versions that are meant, ``""`` for any; S3 and web servers keep to them.
        """
        ends = [start + sum(map(len, views)) for start, views in zip(starts, targets, strict=True)]
        jobs = list(zip(paths, starts, ends, targets, etags or [""] * len(paths), strict=True))
        found = self._fill_each(jobs, in_flight)
        filled = [count for count in found if isinstance(count, int)]
        request_counts.count(ranges=sum(count > 0 for count in filled), nbytes=sum(filled))
        self._raise_first(paths, found)
        for (path, start, end, _, _), count in zip(jobs, found, strict=True):
            self._check_length(path, count, end - start)
        return found

    def _fill_each(self, jobs: Sequence[_Job], in_flight: int) -> list[Any]:
        """Return for each job the bytes that came, or what was raised."""
        if not jobs:
            return []
        paths, starts, ends, targets, _ = map(list, zip(*jobs, strict=True))
        with self.errors(jobs[0][0]):
            found = self.fs.cat_ranges(paths, starts, ends, on_error="return")
        return [
            one if isinstance(one, BaseException) else _scatter(one, views)
            for one, views in zip(found, targets, strict=True)
        ]

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
                if isinstance(one, BaseException) and _is_refused_condition(one):
                    raise FileFormatError(
                        f"{self.shown(path)}: was rewritten since it was indexed; open the dataset "
                        "again"
                    ) from None
                if isinstance(one, BaseException):
                    raise one

    def stat(self, path: str) -> ObjectStat:
        """Return what is there; raise FileNotFoundError if that is nothing."""
        (found,) = self.stat_each([path])
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.shown(path))
        return found

    def stat_each(self, paths: Sequence[str], may_hide: bool = False) -> list[ObjectStat | None]:
        """Return what is at some paths, None where there is nothing.

        With ``may_hide`` a web server may say instead that it is not permitted.
        """
        request_counts.count(states=len(paths))
        states: list[ObjectStat | None] = []
        for path in paths:
            with self.errors(path):
                try:
                    states.append(_stat(self.fs.info(path)))
                except FileNotFoundError:
                    states.append(None)
        return states

    def list_folder(self, path: str, prefix: str = "") -> dict[str, ObjectStat]:
        """Return what is directly in a folder and whose name begins so, by name."""
        if self.is_s3:
            return self._list_s3(path, prefix)
        request_counts.count(listings=1)
        with self.errors(path), suppress(FileNotFoundError):
            names = {
                str(info["name"]).rstrip("/").rpartition("/")[2]: info
                for info in self.fs.ls(path, detail=True)
                if info["name"].rstrip("/") != path.rstrip("/")
            }
            return {name: _stat(info) for name, info in names.items() if name.startswith(prefix)}
        return {}

    def _list_s3(self, path: str, prefix: str) -> dict[str, ObjectStat]:
        """Return what is in a folder; the library lists all of it, whatever the names."""
        bucket, key, _ = self.fs.split_path(path.rstrip("/"))
        inside = f"{key}/" if key else ""
        found: dict[str, ObjectStat] = {}
        more: dict[str, str] = {}
        while True:
            request_counts.count(listings=1)
            with self.errors(bucket):
                try:
                    answer = self.fs.call_s3(
                        "list_objects_v2",
                        Bucket=bucket,
                        Prefix=inside + prefix,
                        Delimiter="/",
                        **more,
                    )
                except FileNotFoundError as error:
                    raise self._no_bucket(bucket) from error
            for each in answer.get("CommonPrefixes", ()):
                found[each["Prefix"][len(inside) : -1]] = ObjectStat(0, 0, "directory")
            for each in answer.get("Contents", ()):
                if not each["Key"].endswith("/"):
                    info = {**each, "size": each["Size"], "type": "file"}
                    found[each["Key"][len(inside) :]] = _stat(info)
            if not answer.get("IsTruncated"):
                return found
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def _no_bucket(self, bucket: str) -> StorageError:
        return StorageError(
            f"{self.shown(bucket)}: there is no such bucket; make it, or name another one"
        )

    def find(self, prefix: str) -> dict[str, ObjectStat]:
        """Return all objects whose path begins with a prefix, sorted."""
        folder, _, name = prefix.rpartition("/")
        more = {"prefix": name} if self.is_s3 and name else {}
        with self.errors(prefix):
            try:
                found = self.fs.find(folder, detail=True, **more)
            except FileNotFoundError:
                found = {}
        request_counts.count(listings=max(1, -(-len(found) // LISTED_AT_ONCE)))
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
                if not _is_refused_condition(error):
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
                raise self._no_bucket(bucket) from error
        return answer


def _is_refused_condition(error: BaseException) -> bool:
    """Whether a server refused what it was asked for under a condition."""
    answer: Any = getattr(error.__cause__, "response", {})
    code = str(answer.get("Error", {}).get("Code", ""))
    return code in _CONFLICTS or type(error).__name__ == "PreconditionError"


def _is_page(info: dict[str, Any]) -> bool:
    return str(info["mimetype"]).startswith("text/html")


class S3Objects(Objects):
    """Objects of S3, whose bytes come through obstore."""

    def __init__(self, fs: Any, protocol: str, around: tuple[str, str]) -> None:
        super().__init__(fs, protocol, around)
        self._buckets: dict[str, Any] = {}

    def _place(self, path: str) -> tuple[Any, str]:
        bucket, _, key = path.partition("/")
        if {"", ".", ".."} & set(key.split("/")):
            raise StorageError(f"{self.shown(path)}: a name with an empty part cannot be read")
        if bucket not in self._buckets:
            self._buckets[bucket] = open_bucket(self.fs, bucket)
        return self._buckets[bucket], key

    def _read_each(self, paths: Sequence[str]) -> list[Any]:
        return gather([read_range(self._place, path) for path in paths], AT_ONCE)

    def _fill_each(self, jobs: Sequence[_Job], in_flight: int) -> list[Any]:
        async def fill(path: str, start: int, end: int, views: Any, etag: str) -> int:
            if start == end:  # there is no way to ask for nothing
                return 0
            return _scatter(await read_range(self._place, path, start, end, etag), views)

        return gather(list(starmap(fill, jobs)), in_flight)


class WebObjects(S3Objects):
    """Files of web servers, which are only read; a path is the whole URL."""

    is_s3 = False

    def __init__(self) -> None:
        self._around = ("", "")

    def _place(self, path: str) -> tuple[Any, str]:
        return web_place(path)

    @property
    def fs(self) -> Any:
        """Nothing that writes."""
        raise OSError("a web server takes no files; name a folder or a bucket (s3://...)")

    def stat_each(self, paths: Sequence[str], may_hide: bool = False) -> list[ObjectStat | None]:
        """Return what is at some paths: a file, a folder where a Zarr store is, None if neither."""
        request_counts.count(states=len(paths))
        found = gather([read_state(path) for path in paths], AT_ONCE)
        return [self._state(path, one, may_hide) for path, one in zip(paths, found, strict=True)]

    def _state(self, path: str, found: Any, may_hide: bool) -> ObjectStat | None:
        address, mark, query = path.partition("?")
        is_there = isinstance(found, dict)
        is_metadata = address.rpartition("/")[2] in (*WEB_STORES, ".zarray", ".zattrs")
        if is_there and (is_metadata or not _is_page(found)):
            return _stat(found)
        if not is_metadata and (is_there or is_answer(found)):  # of a folder: a list, or a refusal
            below = [f"{address.rstrip('/')}/{name}{mark}{query}" for name in WEB_STORES]
            for one in gather([read_state(each) for each in below], len(below)):
                if isinstance(one, dict) and not _is_page(one):
                    return replace(_stat(one), st_size=0, kind="directory")
            if is_there:
                return _stat(found)
        # Who may not list a bucket is not told what is missing there.
        is_hidden = (is_metadata or may_hide) and is_refused(found)
        is_missing = is_hidden or isinstance(found, FileNotFoundError)
        self._raise_first([path], [None if is_missing else found])
        return None

    def list_folder(self, path: str, prefix: str = "") -> dict[str, ObjectStat]:
        """Return the folders that a page of links names; nothing where a server lists none."""
        address, mark, query = path.partition("?")
        (page,) = gather([read_range(web_place, f"{address.rstrip('/')}/{mark}{query}")], 1)
        links = () if isinstance(page, BaseException) else _LINK.findall(bytes(page))
        names = [unquote(link.decode()) for link in links]
        return {name: ObjectStat(0, 0, "directory") for name in names if name.startswith(prefix)}

    def find(self, prefix: str) -> dict[str, ObjectStat]:
        """Return nothing: a web server lists no files."""
        return {}


def _scatter(data: bytes, views: Sequence[memoryview]) -> int:
    """Copy bytes into memory that lies in pieces; return how many came, even if more than fit."""
    rest = memoryview(data)
    for view in views:
        some = rest[: len(view)]
        view[: len(some)] = some
        rest = rest[len(some) :]
    return len(data)


_known: dict[tuple[int, int], Objects] = {}
_web = WebObjects()


def objects_at(url: URL) -> tuple[Objects, str]:
    """Return the objects behind a URL, of this process, and the path in them."""
    if url.protocol in WEB:
        return _web, url.with_secrets()
    fs, path = open_filesystem(url)
    key = (os.getpid(), id(fs))
    if key not in _known:
        before, _, after = url.with_secrets().partition(path.strip("/") or "\0")
        kind = S3Objects if url.protocol in S3 else Objects
        _known[key] = kind(fs, url.protocol, (before, after))
    return _known[key], path


class RangeReader(io.RawIOBase):
    """An object as a stream of bytes.

    What is read from front to back is asked for in ranges that grow to 8 MiB, so that neither
    a header costs much nor a whole file many requests.
    """

    def __init__(self, objects: Objects, path: str, nbytes: int, etag: str = "") -> None:
        super().__init__()
        self._etag = etag
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
            (found,) = self._objects.ranges([self._path], [self._at], [end], etags=[self._etag])
        self._start, self._held = self._at, memoryview(found)


def _stat(info: dict[str, Any]) -> ObjectStat:
    value = next((info[name] for name in _TIMES if info.get(name)), 0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        value = value.timestamp()
    etag = next((str(info[name]) for name in _ETAGS if info.get(name)), "")
    return ObjectStat(int(info.get("size") or 0), int(value * 1e9), str(info["type"]), etag)
