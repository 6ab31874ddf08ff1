"""Multipart uploads to S3, sent while they are written.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ of CreateMultipartUpload, UploadPart and
CompleteMultipartUpload. Parts have at least 5 MiB but for the last, and are at most 10,000.
"""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from iobench.stores.checksums import crc32c, crc32c_moved
from iobench.stores.remote.objects import FIRST_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.stores.remote.s3_objects import S3Objects

__all__ = ["PartedUpload", "part_nbytes"]

PART_NBYTES = 8 << 20
"""Of the first thousand parts; each thousand has twice what the one before had."""
PARTS_OF_A_SIZE = 1000


def part_nbytes(number: int) -> int:
    """Return the bytes of a part, counted from 1: 10,000 parts hold the 5 TB of an object."""
    return FIRST_NBYTES if number == 1 else PART_NBYTES << ((number - 1) // PARTS_OF_A_SIZE)


class PartedUpload:
    """A multipart upload, sent while it is written; its completion is what makes it appear.

    The first part is held back until ``seal``, so that its bytes can be rewritten. What is not
    larger than that is an object put as a whole.

    Parameters
    ----------
    objects : S3Objects
        Where to.
    path : str
        Bucket and key.
    begins : callable
        Called before an upload is begun that would stay if this process were killed.
    """

    def __init__(self, objects: S3Objects, path: str, begins: Callable[[], None]) -> None:
        self._objects = objects
        self._path = path
        self._begins = begins
        self._first = bytearray()
        self._part = bytearray()
        self._number = 1
        self._upload_id: str | None = None
        self._sent: dict[int, Future[str]] = {}
        self._nbytes = 0
        self._at: int | None = None
        self._first_crc = 0
        self._change = 0
        self._creating: Future[str] | None = None
        self._changed = threading.Condition()
        self._n_sending = 0
        self._is_done = False

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        view = memoryview(data)
        if self._at is not None:
            end = self._at + len(view)
            assert end <= len(self._first), "only the first part can be rewritten"
            self._first[self._at : end] = view
            self._at = end
            return
        self._nbytes += len(view)
        while len(view):
            part = self._first if self._number == 1 else self._part
            room = part_nbytes(self._number) - len(part)
            part += view[:room]
            view = view[room:]
            if len(part) == part_nbytes(self._number):
                self._end_part()

    def rewind(self) -> None:
        """Go back to the first byte."""
        self._at = 0
        self._first_crc = crc32c(self._first)

    def seal(self) -> None:
        """Send what is left; then all is there and nothing to be seen."""
        if self._at is not None:
            changed = crc32c(self._first) ^ self._first_crc
            self._change = crc32c_moved(changed, self._nbytes - len(self._first))
        if self._upload_id is None and not self._part:
            return
        if self._part:
            self._send(self._number, self._part)
        self._send(1, self._first)
        for number in sorted(self._sent):
            self._sent[number].result()
        self._part = bytearray()
        self._first = bytearray()

    def complete(self) -> None:
        """Make the object appear.

        Raises
        ------
        FileNotFoundError
            If somebody dropped the upload meanwhile.
        """
        if self._upload_id is None:
            self._objects.put(self._path, bytes(self._first))
        else:
            parts = [
                {"PartNumber": number, "ETag": self._sent[number].result()}
                for number in sorted(self._sent)
            ]
            self._call("complete_multipart_upload", MultipartUpload={"Parts": parts})
        self._is_done = True
        self._first = bytearray()

    def abort(self) -> None:
        """Drop it, unless it was completed."""
        with self._changed:
            if self._is_done:
                return
            self._is_done = True
            # A part that arrives later would stay. Not by the futures: an interruption may come
            # between sending a part and keeping its future.
            self._changed.wait_for(lambda: not self._n_sending)
        if self._creating is not None and self._creating.exception() is None:
            self._objects.abort(self._path, self._creating.result())

    def crc32c(self, before: int) -> int:
        """Return the CRC-32C of all bytes, given what it was before the first were rewritten."""
        return before ^ self._change

    def _end_part(self) -> None:
        if self._number > 1:
            part, self._part = self._part, bytearray()
            self._send(self._number, part)
        self._number += 1

    def _send(self, number: int, data: bytearray) -> None:
        if self._upload_id is None:
            self._begins()
            # In a thread, so that an interruption does not leave one whose answer is lost.
            self._creating = self._objects.threads.submit(self._create)
            self._upload_id = self._creating.result()
        for sent in self._sent.values():  # what went wrong ends it here, not after the last part
            if sent.done():
                sent.result()
        self._objects.room.acquire()
        self._sent[number] = self._objects.threads.submit(self._send_now, number, data)

    def _create(self) -> str:
        return str(self._objects.call("create_multipart_upload", self._path)["UploadId"])

    def _send_now(self, number: int, data: bytearray) -> str:
        with self._changed:
            is_wanted = not self._is_done
            self._n_sending += is_wanted
        try:
            if not is_wanted:
                return ""
            return str(self._call("upload_part", PartNumber=number, Body=bytes(data))["ETag"])
        finally:
            self._objects.room.release()
            with self._changed:
                self._n_sending -= is_wanted
                self._changed.notify_all()

    def _call(self, name: str, **values: Any) -> Any:
        try:
            return self._objects.call(name, self._path, UploadId=self._upload_id, **values)
        except FileNotFoundError as error:
            shown = self._objects.shown(self._path)
            raise FileNotFoundError(errno.ENOENT, "its upload was dropped", shown) from error
