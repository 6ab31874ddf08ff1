"""Ranges of S3 objects to where their bytes shall be, as they arrive.

``cat_ranges`` of fsspec keeps all of a range until it is there, and somebody copies it then. Here
what comes from the connection is copied while it is in the processor's cache, and nothing as large
as a range is made.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fill_from_s3"]

CHUNK_NBYTES = 256 << 10
FIRST_PAUSE_S = 0.1
"""Before a range whose connection broke is asked for again; longer each time."""


def fill_from_s3(
    fs: Any,
    paths: Sequence[str],
    starts: Sequence[int],
    targets: Sequence[Sequence[memoryview]],
    in_flight: int,
) -> list[int | BaseException]:
    """Return of each range how many bytes were filled, or what went wrong.

    Parameters
    ----------
    fs : s3fs.S3FileSystem
        Whose connections are used.
    paths, starts, targets, in_flight
        As of `iobench.stores.remote.objects.Objects.fill`.
    """

    async def fill_all() -> list[int | BaseException]:
        room = asyncio.Semaphore(max(1, in_flight))
        jobs = [
            _fill(fs, path, start, views, room)
            for path, start, views in zip(paths, starts, targets, strict=True)
        ]
        return await asyncio.gather(*jobs, return_exceptions=True)

    sync = import_module("fsspec.asyn").sync
    found: list[int | BaseException] = sync(fs.loop, fill_all)
    return found


async def _fill(
    fs: Any, path: str, start: int, views: Sequence[memoryview], room: asyncio.Semaphore
) -> int:
    broken = import_module("s3fs.core").S3_RETRYABLE_ERRORS
    async with room:
        for trial in range(max(1, int(fs.retries))):
            try:
                return await _fill_once(fs, path, start, views)
            except broken:  # the connection, in the middle of it
                if trial + 1 >= int(fs.retries):
                    raise
                await asyncio.sleep(FIRST_PAUSE_S * 2**trial)
    raise AssertionError("unreachable")


async def _fill_once(fs: Any, path: str, start: int, views: Sequence[memoryview]) -> int:
    bucket, key, version = fs.split_path(path)
    nbytes = sum(map(len, views))
    if not nbytes:
        return 0
    more = {"VersionId": version} if version else {}
    answer = await fs._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{start + nbytes - 1}", **more
    )
    body = answer["Body"]
    filling = _Filling(views)
    try:
        if start and not answer.get("ContentRange"):
            raise OSError("asked for a range, the server sends all of the object")
        while data := await body.read(CHUNK_NBYTES):
            filling.write(data)
    finally:
        body.close()
    return filling.nbytes


class _Filling:
    """Memory that lies in pieces, filled from its beginning."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = views
        self._number = self._at = 0
        self.nbytes = 0

    def write(self, data: bytes) -> None:
        """Append; what is beyond the end is dropped."""
        rest = memoryview(data)
        while len(rest) and self._number < len(self._views):
            view = self._views[self._number]
            some = rest[: len(view) - self._at]
            view[self._at : self._at + len(some)] = some
            self._at += len(some)
            self.nbytes += len(some)
            rest = rest[len(some) :]
            if self._at == len(view):
                self._number, self._at = self._number + 1, 0
