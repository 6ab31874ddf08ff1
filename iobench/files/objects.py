"""Objects behind URLs: their states, listings, ranges of their bytes, and putting them there.

Times are the server's. A request names one version of an object where its `URL` was looked up.
"""

from __future__ import annotations

import io
import re
import secrets
import threading
from collections import OrderedDict
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import msgspec

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.files.object_requests import AT_ONCE, WEB, WHOLE, ask, library, status_of, store_of
from iobench.files.open_files import cut_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iobench.files.urls import URL

TEMPORARY_SUFFIX = ".iobench-tmp"
"""How an unfinished file ends; nothing with this ending is ever read."""
LISTED_AT_ONCE: Final = 1000
"""Names in one answer of S3, and of the stores that copy it."""
PART_NBYTES: Final = (1 << 20, 4 << 20)
"""A request is for no less, where fewer are under way than may be, and for no more: one connection
does not fill the line, and 8 MiB are no longer in the cache when they are copied (two thirds of the
throughput)."""
PAGE_NBYTES: Final = 1 << 16
N_PAGES: Final = 128
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


class RequestCounts(msgspec.Struct):
    """What was asked of stores of objects for reading; what a library tries again is one."""

    listings: int = 0  # answers with names, of up to 1000
    states: int = 0  # questions for size and version of an object
    ranges: int = 0
    nbytes: int = 0  # parts of objects, and what they held

    def add(self, other: RequestCounts) -> None:
        """Count what another process asked for, too; safe from several threads."""
        with _counting:
            for name, count in msgspec.structs.asdict(other).items():
                setattr(self, name, getattr(self, name) + count)

    def count(self, **counts: int) -> None:
        """Count some more; safe from several threads."""
        self.add(RequestCounts(**counts))

    def copy(self) -> RequestCounts:
        """Return a copy."""
        return msgspec.structs.replace(self)

    def since(self, before: RequestCounts) -> RequestCounts:
        """Return what was counted since an earlier copy."""
        counts = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        return RequestCounts(*(now - then for now, then in counts))


sealed: Final[dict[URL, Any]] = {}
"""Committed uploads (`iobench.files.uploads`), by the paths in scratch that stand for them."""
_counting = threading.Lock()
request_counts = RequestCounts()
"""Of this process, and of those that told it."""


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


def fill_views(
    urls: Sequence[URL],
    starts: Sequence[int],
    targets: Sequence[Sequence[memoryview]],
    *,
    in_flight: int = AT_ONCE,
) -> list[int]:
    """Read ranges of objects into memory that lies in pieces; return the bytes of each.

    Fewer than there is memory: the object ends there. Of a `URL` that was looked up it is the
    version that was there then. Long ranges are several requests, so that as many are under way as
    may be.
    """
    sizes = [sum(map(len, views)) for views in targets]
    least, most = PART_NBYTES
    longest = min(most, max(least, sum(sizes) // in_flight))
    numbers, parts = [], []
    for number, (size, start, views) in enumerate(zip(sizes, starts, targets, strict=True)):
        count = -(-size // longest)
        edges = [size * part // count for part in range(count + 1)] if count else []
        for first, end in pairwise(edges):
            taken, views = cut_views(views, end - first)
            numbers.append(number)
            parts.append(_fill(urls[number], start + first, taken))
    counts = ask([urls[number] for number in numbers], parts, in_flight=in_flight)
    request_counts.count(ranges=sum(count > 0 for count in counts), nbytes=sum(counts))
    filled = [0] * len(urls)
    for number, count in zip(numbers, counts, strict=True):
        filled[number] += count
    return filled


async def _fill(url: URL, start: int, views: Sequence[memoryview]) -> int:
    data = await _range(url, start, sum(map(len, views)))
    rest = memoryview(data)
    for view in views:
        some = rest[: len(view)]
        view[: len(some)] = some
        rest = rest[len(some) :]
    return len(data)


async def _range(url: URL, start: int, nbytes: int) -> Any:
    if not nbytes:  # there is no way to ask for nothing
        return b""
    data = await _get(url, start, start + nbytes)
    if len(data) > nbytes:
        raise StorageError(f"asked for {nbytes} bytes, got {len(data)}: {WHOLE}")
    return data


def fill_remote(ranges: Iterable[tuple[URL, int, memoryview]]) -> None:
    """Fill buffers from (URL, offset), many at once."""
    jobs = list(ranges)
    urls, starts = [url for url, _, _ in jobs], [start for _, start, _ in jobs]
    try:
        filled = fill_views(urls, starts, [[buffer] for _, _, buffer in jobs])
    except FileNotFoundError as error:
        raise MissingFileError(f"{error.filename}: no such file any more") from error
    for (url, start, buffer), count in zip(jobs, filled, strict=True):
        if count < len(buffer):
            raise ends_early(url, len(buffer) - count, start + len(buffer))


def ends_early(url: URL, missing: int, end: int) -> FileFormatError:
    """Return the error for a file that ends before ``end``."""
    return FileFormatError(
        f"{url}: ends {missing} bytes before offset {end}: it is cut short or has changed since "
        "it was indexed; fetch it again"
    )


def fetched(ranges: Sequence[tuple[URL, int, int]]) -> list[bytes]:
    """Return ranges of objects, (URL, offset, length), fewer bytes where they end."""
    requests = [_range(url, offset, nbytes) for url, offset, nbytes in ranges]
    contents = [bytes(data) for data in ask([url for url, _, _ in ranges], requests)]
    request_counts.count(ranges=sum(map(bool, contents)), nbytes=sum(map(len, contents)))
    return contents


def read_objects(urls: Sequence[URL]) -> list[Any]:
    """Return the content of objects as buffers, None for those that are not there."""
    contents = ask(urls, [_get(url) for url in urls], or_none=True)
    request_counts.count(ranges=len(contents), nbytes=sum(len(each or b"") for each in contents))
    return contents


class ObjectReader(io.RawIOBase):
    """An object as a stream of bytes that keeps the pages read last.

    HDF5 asks for headers of some hundred bytes and nodes of some KiB, many of them side by side.
    What is read from front to back is asked for in ranges that grow, so that neither a header costs
    much nor a whole file many requests.
    """

    def __init__(self, url: URL, nbytes: int) -> None:
        super().__init__()
        self._url, self._nbytes = url, nbytes
        self._place = 0
        self._pages: OrderedDict[int, memoryview] = OrderedDict()
        self._next_page, self._ahead = -1, 1

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
        length = max(0, min(len(buffer), self._nbytes - self._place))
        view = memoryview(buffer).cast("B")[:length]
        if length > N_PAGES * PAGE_NBYTES // 2:  # numbers, asked for by whoever reads through h5py
            fill_remote([(self._url, self._place, view)])
        else:
            done = 0
            while done < length:
                number, start = divmod(self._place + done, PAGE_NBYTES)
                part = self._page(number)[start : start + length - done]
                view[done : done + len(part)] = part
                done += len(part)
        self._place += length
        return length

    def _page(self, number: int) -> memoryview:
        if number not in self._pages:
            self._ahead = min(N_PAGES, 2 * self._ahead) if number == self._next_page else 1
            start = number * PAGE_NBYTES
            memory = bytearray(min(self._ahead * PAGE_NBYTES, self._nbytes - start))
            fill_remote([(self._url, start, memoryview(memory))])
            for place in range(0, len(memory), PAGE_NBYTES):
                page = memoryview(memory)[place : place + PAGE_NBYTES]
                self._pages[number + place // PAGE_NBYTES] = page
            self._next_page = number + self._ahead
            while len(self._pages) > N_PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(number)
        return self._pages[number]


# -- states and listings -----------------------------------------------------------------------


def states_of(urls: Sequence[URL], *, may_hide: bool = False) -> list[ObjectStat | None]:
    """Return what is at some URLs, None where there is nothing.

    With ``may_hide`` a web server may say instead that it is not permitted.
    """
    request_counts.count(states=len(urls))
    requests = [
        _web_state(url, may_hide) if url.protocol in WEB else _bucket_state(url) for url in urls
    ]
    return ask(urls, requests, or_none=True)


async def _bucket_state(url: URL) -> ObjectStat | None:
    store, key = store_of(url)
    obstore = library(url)
    if key:
        try:
            return _stat(await obstore.head_async(store, key))
        except FileNotFoundError:
            pass
    async for _ in obstore.list(store, key, chunk_size=1):
        return FOLDER
    return None if key else FOLDER


async def _web_state(url: URL, may_hide: bool) -> Any:
    """Return what is there: a file, or a folder where a Zarr store is.

    Who may not list a bucket is not told what is missing there, but that it is not permitted.
    """
    is_metadata = url.name in _METADATA
    answer: Any
    try:
        answer = await _web_file(url)
    except (library(url).exceptions.BaseError, FileNotFoundError) as error:
        if is_metadata or "HttpError" not in str(error):  # of a folder: a refusal
            answer = error
        else:
            raise
    is_there = isinstance(answer, tuple)
    if is_there and (is_metadata or not answer[1]):
        return answer[0]
    if not is_metadata:  # of a folder: a list, or a refusal
        for name in WEB_STORES:
            try:
                marker, is_page = await _web_file(url / name)
            except (library(url).exceptions.BaseError, FileNotFoundError):
                continue
            if not is_page:
                return msgspec.structs.replace(marker, st_size=0, kind="directory")
        if is_there:
            return answer[0]
    if (is_metadata or may_hide) and status_of(answer).startswith("403"):
        return None
    raise answer


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
    request_counts.count(listings=1)
    states: dict[str, ObjectStat]
    (states,) = ask([url], [_links(url) if url.protocol in WEB else _listed(url)])
    return states


async def _listed(url: URL) -> dict[str, ObjectStat]:
    store, key = store_of(url)
    answer = await library(url).list_with_delimiter_async(store, key)
    states = {path[len(key) :].lstrip("/"): FOLDER for path in answer["common_prefixes"]}
    for each in answer["objects"]:
        if name := each["path"][len(key) :].lstrip("/"):  # not the folder's own marker
            states[name] = _stat(each)
    return states


async def _links(url: URL) -> dict[str, ObjectStat]:
    try:
        page = bytes(await _get(url.as_folder()))
    except (library(url).exceptions.BaseError, FileNotFoundError):
        return {}
    return {unquote(link.decode()): FOLDER for link in _LINK.findall(page)}


def find_below(url: URL) -> dict[str, ObjectStat]:
    """Return all objects below a URL by their paths from there, sorted; of a web server none."""
    if url.protocol in WEB:
        return {}
    (states,) = ask([url], [_states_below(url)])
    request_counts.count(listings=max(1, -(-len(states) // LISTED_AT_ONCE)))
    folders = {name[:at] for name in states for at in range(len(name)) if name[at] == "/"}
    markers = {name for name in folders & set(states) if not states[name].st_size}
    return {name: states[name] for name in sorted(states) if name and name not in markers}


async def _states_below(url: URL) -> dict[str, ObjectStat]:
    store, key = store_of(url)
    listed = await library(url).list(store, key).collect_async()
    return {each["path"][len(key) :].lstrip("/"): _stat(each) for each in listed}


@lru_cache(maxsize=32)
def remote_sizes(folder: URL) -> dict[str, int]:
    """Return the sizes of all files below a URL, by what leads there, as they were when asked."""
    return {name: stat.st_size for name, stat in find_below(folder).items()}


def _stat(meta: dict[str, Any]) -> ObjectStat:
    written_ns = int(meta["last_modified"].timestamp() * 1e9)
    etag, generation = meta["e_tag"] or "", meta["version"] or ""
    return ObjectStat(meta["size"], written_ns, etag=etag, generation=generation)


# -- writing -----------------------------------------------------------------------------------


def put(url: URL, data: Any) -> None:
    """Write an object, which appears as a whole."""
    ask([url], [_put(url, data)])


def create(url: URL, data: bytes) -> ObjectStat | None:
    """Write an object unless there is one; return its version, None where there is one.

    The answer to a first try may have been lost: then it is ours that is there.
    """
    (state,) = ask([url], [_put(url, data, "create")])
    if state is None and read_objects([url]) == [data]:
        (state,) = states_of([url])
    return cast("ObjectStat | None", state)


def update(url: URL, data: bytes, known: ObjectStat) -> ObjectStat | None:
    """Write an object if its version is the known one; return the new one, None if it is not."""
    names = {"e_tag": known.etag, "version": known.generation}
    mode = {name: value for name, value in names.items() if value}
    (state,) = ask([url], [_put(url, data, mode)])
    return cast("ObjectStat | None", state)


def server_time_ns(folder: URL) -> int:
    """Return what time it is for the server of a folder: that of an object just put there."""
    trial = folder / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    put(trial, b"")
    try:
        return int(trial.stat().st_mtime_ns)
    finally:
        remove([trial])


def keeps_conditions(folder: URL) -> bool:
    """Return whether `create` is atomic: a store that takes a trial twice keeps no conditions."""
    trial = folder / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    try:
        return create(trial, b"1") is not None and create(trial, b"2") is None
    finally:
        remove([trial])


async def _put(url: URL, data: Any, mode: Any = None) -> ObjectStat | None:
    """Return the object's version; None where what ``mode`` asks for is not so."""
    if url.protocol in WEB:
        raise StorageError("a web server takes no files; name a folder or a bucket (s3://...)")
    store, key = store_of(url)
    obstore = library(url)
    refusals = (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)
    try:
        done = await obstore.put_async(store, key, data, mode=mode, use_multipart=False)
    except refusals:
        return None
    except FileNotFoundError as error:
        if mode is None or mode == "create" or "NoSuchBucket" in str(error):
            raise
        return None
    return ObjectStat(len(data), 0, etag=done["e_tag"] or "", generation=done["version"] or "")


def remove(urls: Sequence[URL]) -> None:
    """Remove objects, those that are there."""
    ask(urls, [_delete(url) for url in urls], or_none=True)


async def _delete(url: URL) -> None:
    store, key = store_of(url)
    await library(url).delete_async(store, key)
