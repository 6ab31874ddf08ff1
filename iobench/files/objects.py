"""Objects behind URLs: their states, listings, ranges of their bytes, and putting them there.

Times are the server's. A request names one version of an object where its `URL` was looked up.
"""

from __future__ import annotations

import io
import re
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import msgspec

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.files.atomic import EXIT_RESUMABLE
from iobench.files.object_requests import WEB, WHOLE, ask, library, status_of, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.files.urls import URL

N_PARTS: Final = 16
"""A range becomes so many requests: one connection does not fill the line."""
PART_NBYTES: Final = (1 << 20, 4 << 20)
"""Each for no less, and for no more: 8 MiB are no longer in the cache when they are copied (two
thirds of the throughput)."""
PAGE_NBYTES: Final = 1 << 16
N_PAGES: Final = 128
UPLOAD_NBYTES = 8 << 20
"""Of each part of an upload; what is not larger is put as a whole."""
MOST_PARTS = 10_000
"""Of an upload to S3, which hold 78 GiB."""
UPLOADS_AT_ONCE: Final = 4
"""Parts under way, and so in memory."""
WEB_STORES: Final = ("zarr.json", ".zmetadata", ".zgroup")
"""What says on a web server that a folder is a Zarr store, the first that hold all metadata."""
_METADATA: Final = (*WEB_STORES, ".zarray", ".zattrs")
_LINK: Final = re.compile(rb"""href=["']?(?:\./)?([\w%][^"'/?#:<>]*)/["' >]""", re.IGNORECASE)


class ObjectStat(msgspec.Struct, frozen=True):
    """Size, and when it was written last in ns of its server's clock (0 where it does not tell).

    Named as `os.stat_result` names them; ``kind`` is ``"file"`` or ``"directory"``, ``etag`` and
    ``generation`` what the server calls this version of it, if it does.
    """

    st_size: int
    st_mtime_ns: int
    kind: str = "file"
    etag: str = ""
    generation: str = ""


FOLDER: Final = ObjectStat(0, 0, "directory")


# -- bytes -------------------------------------------------------------------------------------


async def _get(url: URL, start: int = 0, end: int | None = None) -> Any:
    """Return bytes of an object, fewer where it ends before; of one version, if its ETag is strong.

    A server that ignores the range is refused, unless it sends no more than was asked for.
    """
    store, name = store_of(url)
    obstore = library(url)
    only = {"if_match": url.etag} if url.etag.startswith('"') else {}
    part = {} if end is None else {"range": (start, end)}
    try:
        if part and not only:  # half the work
            return await obstore.get_range_async(store, name, start=start, end=end)
        answer = await obstore.get_async(store, name, options={**only, **part})
    except obstore.exceptions.NotSupportedError:
        answer = await obstore.get_async(store, name, options=only)
        if start or answer.meta["size"] > (end or 0):
            raise StorageError(WHOLE) from None
    except obstore.exceptions.GenericError as error:
        if status_of(error).startswith("416"):  # it ends before
            return b""
        raise
    return await answer.bytes_async()


async def _fill(url: URL, start: int, buffer: memoryview) -> int:
    data = await _get(url, start, start + len(buffer))
    if len(data) > len(buffer):
        raise StorageError(f"asked for {len(buffer)} bytes, got {len(data)}: {WHOLE}")
    buffer[: len(data)] = memoryview(data)
    return len(data)


def fill_objects(
    urls: Sequence[URL], starts: Sequence[int], buffers: Sequence[memoryview]
) -> list[int]:
    """Read ranges of objects; return the bytes of each, fewer where the object ends.

    Of a `URL` that was looked up it is the version that was there then. Long ranges are several
    requests, side by side.
    """
    least, most = PART_NBYTES
    longest = min(most, max(least, sum(map(len, buffers)) // N_PARTS))
    parts = []
    for number, (start, buffer) in enumerate(zip(starts, buffers, strict=True)):
        count = -(-len(buffer) // longest)  # none where nothing is wanted
        edges = [len(buffer) * part // count for part in range(count + 1)] if count else []
        parts += [(number, start + a, buffer[a:b]) for a, b in pairwise(edges)]
    counts = ask(
        [urls[number] for number, _, _ in parts],
        _fill,
        [begin for _, begin, _ in parts],
        [part for _, _, part in parts],
    )
    filled = [0] * len(urls)
    for (number, _, _), count in zip(parts, counts, strict=True):
        filled[number] += count
    return filled


def fill_remote(ranges: Sequence[tuple[URL, int, memoryview]]) -> None:
    """Fill buffers from (URL, offset), many at once."""
    urls, starts = [url for url, _, _ in ranges], [start for _, start, _ in ranges]
    try:
        filled = fill_objects(urls, starts, [buffer for _, _, buffer in ranges])
    except FileNotFoundError as error:
        raise MissingFileError(f"{error.filename}: no such file any more") from error
    for (url, start, buffer), count in zip(ranges, filled, strict=True):
        if count < len(buffer):
            raise FileFormatError(
                f"{url}: ends {len(buffer) - count} bytes before offset {start + len(buffer)}: it "
                "is cut short or has changed since it was indexed; fetch it again"
            )


def fetched(ranges: Sequence[tuple[URL, int, int]]) -> list[bytes]:
    """Return ranges of objects, (URL, offset, length), fewer bytes where they end."""
    urls, starts = [url for url, _, _ in ranges], [start for _, start, _ in ranges]
    buffers = [memoryview(bytearray(nbytes)) for _, _, nbytes in ranges]
    filled = fill_objects(urls, starts, buffers)
    return [bytes(each[:count]) for each, count in zip(buffers, filled, strict=True)]


def read_objects(urls: Sequence[URL]) -> list[Any]:
    """Return the content of objects as buffers, None for those that are not there."""
    return ask(urls, _get, or_none=True)


class ObjectReader(io.RawIOBase):
    """An object as a stream of bytes that keeps the pages read last.

    HDF5 asks for headers of some hundred bytes and nodes of some KiB, many of them side by side.
    """

    def __init__(self, url: URL, nbytes: int) -> None:
        super().__init__()
        self._url, self._nbytes, self._place = url, nbytes, 0
        self._page = lru_cache(maxsize=N_PAGES)(self._read)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._nbytes}
        self._place = start[whence] + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from here on, as far as the object goes; return how many bytes."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._nbytes - self._place)]
        done = 0
        if len(view) > PAGE_NBYTES:
            fill_remote([(self._url, self._place, view)])
            done = len(view)
        while done < len(view):
            number, start = divmod(self._place + done, PAGE_NBYTES)
            part = self._page(number)[start : start + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
        self._place += done
        return done

    def _read(self, number: int) -> memoryview:
        start = number * PAGE_NBYTES
        page = memoryview(bytearray(min(PAGE_NBYTES, self._nbytes - start)))
        fill_remote([(self._url, start, page)])
        return page


# -- states and listings -----------------------------------------------------------------------


def states_of(urls: Sequence[URL], *, may_hide: bool = False) -> list[ObjectStat | None]:
    """Return what is at some URLs, None where there is nothing.

    With ``may_hide`` a web server may say instead that it is not permitted.
    """
    return ask(urls, _state, [may_hide] * len(urls), or_none=True)


async def _state(url: URL, may_hide: bool) -> ObjectStat | None:
    if url.protocol in WEB:
        return await _web_state(url, may_hide)
    store, key = store_of(url)
    obstore = library(url)
    if key:
        with suppress(FileNotFoundError):
            return _stat(await obstore.head_async(store, key))
    async for _ in obstore.list(store, key, chunk_size=1):
        return FOLDER
    return None if key else FOLDER


async def _web_state(url: URL, may_hide: bool) -> ObjectStat | None:
    """Return what is there: a file, or a folder where a Zarr store is.

    Who may not list a bucket is not told what is missing there, but that it is not permitted.
    """
    is_metadata = url.name in _METADATA
    errors = (library(url).exceptions.BaseError, FileNotFoundError)
    refusal: BaseException | None = None
    result = None
    try:
        result, is_page = await _web_file(url)
        if is_metadata or not is_page:
            return result
    except errors as error:
        refusal = error
        if not is_metadata and "HttpError" in str(error):
            raise
    for name in () if is_metadata else WEB_STORES:  # of a folder: a list, or a refusal
        with suppress(*errors):
            marker, is_page = await _web_file(url / name)
            if not is_page:
                return msgspec.structs.replace(marker, st_size=0, kind="directory")
    if refusal is None:
        return result
    if (is_metadata or may_hide) and status_of(refusal).startswith("403"):
        return None
    raise refusal


async def _web_file(url: URL) -> tuple[ObjectStat, bool]:
    """Return state, and whether it is a page, of a file; by GET where HEAD is refused."""
    store, name = store_of(url)
    obstore = library(url)
    try:
        answer = await obstore.get_async(store, name, options={"head": True})
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        if status_of(error)[:3] in ("404", "410") or "HttpError" in str(error):
            raise
        answer = await obstore.get_async(store, name)
    is_page = str(answer.attributes.get("Content-Type", "")).startswith("text/html")
    return _stat(answer.meta), is_page


def list_folder(url: URL) -> dict[str, ObjectStat]:
    """Return what is directly in a folder, by name; of a web server the folders it links to."""
    return cast("dict[str, ObjectStat]", ask([url], _listed)[0])


async def _listed(url: URL) -> dict[str, ObjectStat]:
    obstore = library(url)
    if url.protocol in WEB:
        try:
            page = bytes(await _get(url.as_folder()))
        except (obstore.exceptions.BaseError, FileNotFoundError):
            return {}
        return {unquote(link.decode()): FOLDER for link in _LINK.findall(page)}
    store, key = store_of(url)
    answer = await obstore.list_with_delimiter_async(store, key)
    states = {path[len(key) :].lstrip("/"): FOLDER for path in answer["common_prefixes"]}
    return {**states, **_states_in(key, answer["objects"])}


def find_below(url: URL) -> dict[str, ObjectStat]:
    """Return all objects below a URL by their paths from there, sorted; of a web server none."""
    if url.protocol in WEB:
        return {}
    (states,) = ask([url], _states_below)
    folders = {name[:at] for name in states for at in range(len(name)) if name[at] == "/"}
    markers = {name for name in folders & set(states) if not states[name].st_size}
    return {name: states[name] for name in sorted(states) if name not in markers}


async def _states_below(url: URL) -> dict[str, ObjectStat]:
    store, key = store_of(url)
    return _states_in(key, await library(url).list(store, key).collect_async())


def _states_in(key: str, listed: Sequence[dict[str, Any]]) -> dict[str, ObjectStat]:
    """Return objects by their paths from a folder, but for the folder's own marker."""
    states = {each["path"][len(key) :].lstrip("/"): _stat(each) for each in listed}
    return {name: state for name, state in states.items() if name}


@lru_cache(maxsize=32)
def remote_sizes(folder: URL) -> dict[str, int]:
    """Return the sizes of all files below a URL, by what leads there, as they were when asked."""
    return {name: stat.st_size for name, stat in find_below(folder).items()}


def _stat(meta: dict[str, Any]) -> ObjectStat:
    written_ns = int(meta["last_modified"].timestamp() * 1e9)
    etag, generation = meta["e_tag"] or "", meta["version"] or ""
    return ObjectStat(meta["size"], written_ns, etag=etag, generation=generation)


# -- writing -----------------------------------------------------------------------------------


def put(url: URL, data: Any, mode: Any = None) -> ObjectStat | None:
    """Write an object, which appears as a whole; None where what ``mode`` asks for is not so."""
    return cast("ObjectStat | None", ask([url], _put, [data], [mode])[0])


def create(url: URL, data: bytes) -> ObjectStat | None:
    """Write an object unless there is one; return its version, None where there is one.

    The answer to a first try may have been lost: then it is ours that is there.
    """
    state = put(url, data, "create")
    if state is None and read_objects([url]) == [data]:
        (state,) = states_of([url])
    return state


def update(url: URL, data: bytes, known: ObjectStat) -> ObjectStat | None:
    """Write an object if its version is the known one; return the new one, None if it is not."""
    names = {"e_tag": known.etag, "version": known.generation}
    return put(url, data, {name: value for name, value in names.items() if value})


async def _put(url: URL, data: Any, mode: Any) -> ObjectStat | None:
    if url.protocol in WEB:
        raise StorageError("a web server takes no files; name a folder or a bucket (s3://...)")
    store, key = store_of(url)
    obstore = library(url)
    try:
        done = await obstore.put_async(store, key, data, mode=mode, use_multipart=False)
    except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
        return None
    except FileNotFoundError as error:
        if mode is None or mode == "create" or "NoSuchBucket" in str(error):
            raise
        return None
    return ObjectStat(len(data), 0, etag=done["e_tag"] or "", generation=done["version"] or "")


def remove(urls: Sequence[URL]) -> None:
    """Remove objects, those that are there."""
    ask(urls, _delete, or_none=True)


async def _delete(url: URL) -> None:
    store, key = store_of(url)
    await library(url).delete_async(store, key)


class Upload:
    """An object that ``commit`` makes appear, sent in parts while it is written.

    It has the face of `iobench.files.atomic.AtomicFile`. Of a process that was killed the parts
    stay, hidden, until the bucket's rule for incomplete uploads removes them.
    """

    def __init__(self, path: URL) -> None:
        self.path = path
        self._part = _part_memory()
        self._n_held = self._n_parts = 0
        self._writer: Any = None

    def write(self, data: Any) -> None:
        """Append all of a buffer."""
        view = memoryview(data).cast("B")
        while len(view):
            if self._n_held == UPLOAD_NBYTES:
                self._send_part()
            some = view[: UPLOAD_NBYTES - self._n_held]
            self._part[self._n_held : self._n_held + len(some)] = some
            self._n_held += len(some)
            view = view[len(some) :]

    def _send_part(self) -> None:
        self._n_parts += 1
        if self._n_parts == MOST_PARTS:
            raise StorageError(
                f"{self.path}: is longer than the {MOST_PARTS:,} parts of {UPLOAD_NBYTES >> 20} "
                "MiB that an upload may have; choose a smaller --shard-size"
            )
        with _resumable():
            ask([self.path], self._send)
        # The part is held as long as it is on its way: that memory serves a later one.
        self._part, self._n_held = _part_memory(), 0

    async def _send(self, url: URL) -> None:
        if self._writer is None:
            store, key = store_of(url)
            self._writer = library(url).open_writer_async(
                store, key, buffer_size=UPLOAD_NBYTES, max_concurrency=UPLOADS_AT_ONCE
            )
        await self._writer.write(self._part[: self._n_held])

    def rewind(self) -> None:
        """Raise StorageError: what was sent cannot be rewritten."""
        raise StorageError(
            f"{self.path}: the beginning of an object cannot be rewritten, and this format has to; "
            "choose another (--to tfrecord, zarr)"
        )

    def commit(self) -> None:
        """Send what is left, and make the object appear."""
        try:
            with _resumable():
                if self._writer is None:
                    put(self.path, self._part[: self._n_held])
                else:
                    ask([self.path], self._end)
                    self._writer = None
        except BaseException:
            self.abort()
            raise

    async def _end(self, url: URL) -> None:
        await self._send(url)
        await self._writer.close()

    def abort(self) -> None:
        """Drop it, unless it appeared."""
        if self._writer is not None:
            ask([self.path], self._drop)
            self._writer = None

    async def _drop(self, url: URL) -> None:
        with suppress(library(url).exceptions.BaseError, OSError):
            await self._writer.__aexit__(StorageError, StorageError("dropped"), None)


def _part_memory() -> memoryview:
    from iobench.files.memory import for_one_sample  # loads numpy

    return for_one_sample(UPLOAD_NBYTES).data


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        again = StorageError(f"{error}; what is finished is kept, the same command continues")
        again.errno, again.exit_code = error.errno, EXIT_RESUMABLE
        raise again from error
