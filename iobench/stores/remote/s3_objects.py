"""Objects of S3, where s3fs says less than the protocol: conditions, server time, parts.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ of PutObject (``If-None-Match``,
``If-Match``), ListObjectsV2, DeleteObjects, AbortMultipartUpload, ListMultipartUploads.
"""

from __future__ import annotations

import errno
import secrets
import threading
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from iobench.errors import StorageError
from iobench.stores.atomic import TEMPORARY_SUFFIX
from iobench.stores.remote.objects import N_THREADS, Objects, ObjectStat
from iobench.stores.remote.s3_reading import fill_from_s3
from iobench.stores.remote.s3_uploads import PartedUpload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.stores.remote.objects import Upload

__all__ = ["S3Objects"]

MAX_REMOVED = 1000
_CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


class S3Objects(Objects):
    """The objects of S3, or of what speaks its protocol."""

    def __init__(self, fs: Any, scheme: str) -> None:
        super().__init__(fs, scheme)
        self._keeps_conditions: bool | None = None
        self.room = threading.BoundedSemaphore(N_THREADS)
        """Parts being sent; whoever writes waits, so that memory is bounded."""

    def fill(
        self,
        paths: Sequence[str],
        starts: Sequence[int],
        targets: Sequence[Sequence[memoryview]],
        in_flight: int,
    ) -> list[int]:
        """Read stretches of objects into memory that lies in pieces; return the bytes of each."""
        found = fill_from_s3(self.fs, paths, starts, targets, in_flight)
        self.raise_first(paths, found)
        return [one for one in found if isinstance(one, int)]

    def call(self, name: str, path: str, **values: Any) -> Any:
        """Make one request about the object at a path."""
        bucket, _, key = path.partition("/")
        with self.errors(path):
            return self.fs.call_s3(name, Bucket=bucket, Key=key, **values)

    def find(self, prefix: str) -> dict[str, ObjectStat]:
        """Return all objects whose path begins with a prefix, sorted."""
        bucket = prefix.partition("/")[0]
        found = {}
        for page in self._pages("list_objects_v2", prefix, "ContinuationToken"):
            for one in page.get("Contents", ()):
                if one["Key"].endswith("/"):  # how consoles show a folder
                    continue
                ns = int(one["LastModified"].timestamp() * 1e9)
                found[f"{bucket}/{one['Key']}"] = ObjectStat(one["Size"], ns)
        return found

    def any_below(self, prefix: str) -> bool:
        """Whether there is an object whose path begins with a prefix."""
        return bool(self._first_of(prefix).get("Contents"))

    def time_ns_at(self, prefix: str) -> int:
        """Return what time it is for the server, as it says with any answer."""
        answer = self._first_of(prefix)
        said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if said is None:
            return super().time_ns_at(prefix)
        return int(parsedate_to_datetime(said).timestamp() * 1e9)

    def put(self, path: str, data: bytes) -> None:
        """Write an object, which appears as a whole."""
        self.call("put_object", path, Body=data)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; tell whether it was written.

        Where the store takes no conditions, somebody may come in between; see `is_exclusive`.
        """
        if not self.is_exclusive(path):
            if self._is_there(path):
                return False
            self.put(path, data)
            return True
        if self._put_new(path, data):
            return True
        try:  # the answer to a first try may have been lost: then it is ours that is there
            return self.read(path) == data
        except FileNotFoundError:
            return False

    def is_exclusive(self, path: str) -> bool:
        """Whether `create` is atomic: a store that takes a trial twice keeps no conditions."""
        if self._keeps_conditions is None:
            folder = path.rpartition("/")[0]
            trial = f"{folder}/.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
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
        found = self.call("get_object", path)
        body = self._body(found)
        try:
            self.call("put_object", path, Body=body, IfMatch=found["ETag"])
        except StorageError as error:
            if error.errno == errno.ENOSYS:  # without it: whoever takes over is seen by check()
                self.put(path, body)
                return
            raise FileNotFoundError(errno.ENOENT, "taken over", self.shown(path)) from error

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, those that are there."""
        for start in range(0, len(paths), MAX_REMOVED):
            some = paths[start : start + MAX_REMOVED]
            bucket = some[0].partition("/")[0]
            keys = [{"Key": path.partition("/")[2]} for path in some]
            with self.errors(some[0]):
                if len(some) == 1:
                    self.fs.call_s3("delete_object", Bucket=bucket, **keys[0])
                    continue
                answer = self.fs.call_s3(
                    "delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
                )
            for wrong in answer.get("Errors", ()):
                where = self.shown(f"{bucket}/{wrong['Key']}")
                raise StorageError(f"{where}: cannot be removed ({wrong.get('Code', 'no reason')})")

    def upload(self, path: str, room: str | None, begins: Callable[[], None]) -> Upload:
        """Return an upload to an object; it needs no room of its own."""
        return PartedUpload(self, path, begins)

    def abort_uploads(self, prefix: str) -> int:
        """Drop what others began to upload to paths that begin with a prefix; return how many."""
        bucket = prefix.partition("/")[0]
        found = [
            (f"{bucket}/{one['Key']}", one["UploadId"])
            for page in self._pages("list_multipart_uploads", prefix, "KeyMarker", "UploadIdMarker")
            for one in page.get("Uploads", ())
        ]
        for path, upload_id in found:
            self.abort(path, upload_id)
        return len(found)

    def abort(self, path: str, upload_id: str) -> None:
        """Drop one upload, if it is there."""
        try:
            self.call("abort_multipart_upload", path, UploadId=upload_id)
        except FileNotFoundError:
            return

    def _first_of(self, prefix: str) -> dict[str, Any]:
        bucket, _, key = prefix.partition("/")
        return self._listed(bucket, "list_objects_v2", Prefix=key, MaxKeys=1)

    def _pages(self, name: str, prefix: str, *markers: str) -> list[dict[str, Any]]:
        bucket, _, key = prefix.partition("/")
        pages: list[dict[str, Any]] = []
        marked: dict[str, str] = {}
        while not pages or pages[-1].get("IsTruncated"):
            pages.append(self._listed(bucket, name, Prefix=key, **marked))
            marked = {
                marker: pages[-1][f"Next{marker}"]
                for marker in markers
                if pages[-1].get(f"Next{marker}")
            }
        return pages

    def _listed(self, bucket: str, name: str, **values: Any) -> dict[str, Any]:
        with self.errors(bucket):
            try:
                answer: dict[str, Any] = self.fs.call_s3(name, Bucket=bucket, **values)
            except FileNotFoundError as error:
                raise StorageError(
                    f"{self.shown(bucket)}: there is no such bucket; make it, or name another one"
                ) from error
        return answer

    def _is_there(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def _body(self, answer: Any) -> bytes:
        sync = import_module("fsspec.asyn").sync
        return bytes(sync(self.fs.loop, answer["Body"].read))

    def _put_new(self, path: str, data: bytes) -> bool:
        bucket, _, key = path.partition("/")
        with self.errors(path):
            try:
                self.fs.call_s3(
                    "put_object", Bucket=bucket, Key=key, Body=bytes(data), IfNoneMatch="*"
                )
            except FileExistsError:
                return False
            except OSError as error:
                if _code(error) not in _CONFLICTS:
                    raise
                return False
        return True


def _code(error: OSError) -> str:
    answer: Any = getattr(error.__cause__, "response", {})
    return str(answer.get("Error", {}).get("Code", ""))
