"""Objects behind URLs, through obstore (https://developmentseed.org/obstore/).

Who asks is one event loop in a thread of each process, so that who waits can be interrupted.
Endpoints, regions and credentials are those of the environment, as obstore reads it; a profile and
the role of an instance are found by boto3. Redirects are followed, ten at most; user and password
go to the first host alone. Times are the server's. A request names one version of an object where
its `URL` was looked up.
"""

from __future__ import annotations

import atexit
import base64
import io
import os
import re
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_loader
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlsplit

import msgspec

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingExtraError,
    MissingFileError,
    OptionError,
    StorageError,
    import_extra,
)
from iobench.files.atomic import EXIT_RESUMABLE
from iobench.masking import mask_line, note_secrets

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from iobench.files.urls import URL

WEB: Final = ("http", "https")
_STORES: Final = {
    "s3": "S3Store", "s3a": "S3Store", "gs": "GCSStore", "az": "AzureStore", "azure": "AzureStore",
    "abfs": "AzureStore", "abfss": "AzureStore", "adl": "AzureStore",
}  # fmt: skip
AT_ONCE: Final = 64
"""Requests under way: enough to hide what one takes, and no burden to a server."""
READ_TIMEOUT = "30s"
"""Without a byte of an answer; then it is tried again."""
TRIES = {"web": 2, "bucket": 10}
"""Again, where a server fails: of a bucket that is too busy, for about a minute."""
CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
"""By these obstore itself finds who asks."""
_EXACT: Final = re.compile(r"(?:.*/$|.*(?://|%2f|%[0189a-f]|/\.\.?(?=/|$))[^/]*)?", re.I | re.S)
"""What of a path is sent as it is spelled; the rest is a name, which obstore spells."""
WHOLE: Final = "the server hands out files only whole; copy the file here first"
_NO_CREDENTIALS: Final = (
    "no credentials found (AWS_ACCESS_KEY_ID, AWS_PROFILE; AWS_SKIP_SIGNATURE=true for public ones)"
)
_NO_OTHER_CREDENTIALS: Final = (
    "no credentials found (GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, ...)"
)
_REASONS: Final = {
    "NoSuchBucket": "there is no such bucket; make it, or name another one",
    "TimedOut": "no answer in time",
    "UnexpectedEof": "the answer ends early; try again",
    "non-partial": WHOLE,
    "Range request not supported": WHOLE,
    "InvalidCertificate": "its certificate is not trusted; name a PEM file as SSL_CERT_FILE",
    "without LOCATION": "the bucket is in another region; name it as AWS_REGION",
    "MissingAccount": "no account; name it as AZURE_STORAGE_ACCOUNT_NAME",
    "metadata.google": _NO_OTHER_CREDENTIALS,
    "169.254.169.254": _NO_OTHER_CREDENTIALS,
}
MAX_REASON_LENGTH: Final = 300
LONGEST_END_MS: Final = 1000
N_PARTS: Final = 16
"""A range becomes so many requests: one connection does not fill the line."""
PART_NBYTES: Final = (1 << 20, 4 << 20)
"""Each for no less, and for no more: 8 MiB are no longer in the cache when they are copied (two
thirds of the throughput)."""
PAGE_NBYTES: Final = 1 << 16
N_PAGES: Final = 128
UPLOAD_NBYTES = 8 << 20
"""Of each part of an upload; what is smaller is put as a whole."""
UPLOADS_AT_ONCE: Final = 4
"""Parts under way, and so in memory."""
WEB_STORES: Final = ("zarr.json", ".zmetadata", ".zgroup")
"""What says on a web server that a folder is a Zarr store, the first that hold all metadata."""
_METADATA: Final = (*WEB_STORES, ".zarray", ".zattrs")
_LINK: Final = re.compile(rb"""href=["']?(?:\./)?([\w%][^"'/?#:<>]*)/["' >]""", re.IGNORECASE)
_LIBRARY: Final = "obstore._obstore"
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_RENEWED: Final = (_LIBRARY, "icechunk._icechunk_python", "zarrs._internal")
_left_behind: set[str] = set()


def _forget() -> None:
    """Start anew in a forked child: threads stay with the parent."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None
    _left_behind.update(name for name in _RENEWED if name in sys.modules)
    forget_stores()


os.register_at_fork(after_in_child=_forget)


def ask(
    urls: Sequence[URL],
    request: Callable[..., Coroutine[Any, Any, Any]],
    *arguments: Sequence[Any],
    or_none: bool = False,
) -> list[Any]:
    """Return what a request of each URL returns, with its part of the arguments; many at once.

    The first that failed raises, in the words of `_error`; with ``or_none`` what is not there is
    None.
    """
    import asyncio

    async def run_all() -> list[Any]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def run(*job: Any) -> Any:
            async with limit:
                return await request(*job)

        return await asyncio.gather(*map(run, urls, *arguments), return_exceptions=True)

    running = asyncio.run_coroutine_threadsafe(run_all(), _requests_loop())
    try:
        answers = running.result()
    finally:
        running.cancel()
    for number, (url, one) in enumerate(zip(urls, answers, strict=True)):
        if isinstance(one, BaseException):
            error = _error(url, one)
            if not or_none or not isinstance(error, FileNotFoundError):
                raise error from None  # its cause may hold secrets
            answers[number] = None
    return answers


def _requests_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    global _loop
    with _lock:
        if _loop is None:
            renew_library(_LIBRARY)
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="iobench-requests", daemon=True).start()
            atexit.register(_await_answers)
    return _loop


def _await_answers() -> None:
    """Let obstore's own threads leave Python before it ends: it would end them within Rust."""
    pause = threading.Event()
    for _ in range(LONGEST_END_MS):
        ours = {each.ident for each in threading.enumerate()}
        if not set(sys._current_frames()) - ours:
            return
        pause.wait(0.001)


def renew_library(library: str) -> None:
    """Load a library of threads that stayed behind a fork from a copy: it starts them once."""
    if library not in _left_behind:
        return
    _left_behind.discard(library)
    package = library.partition(".")[0]
    library_spec = PathFinder.find_spec(library, sys.modules[package].__path__)
    assert library_spec is not None
    assert library_spec.origin is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    with open(os.memfd_create(package), "wb") as copy:  # noqa: PTH123
        copy.write(Path(library_spec.origin).read_bytes())
        copy.flush()
        loader = ExtensionFileLoader(library, f"/proc/self/fd/{copy.fileno()}")
        spec = spec_from_loader(library, loader)
        assert spec is not None
        sys.modules[library] = module_from_spec(spec)
        loader.exec_module(sys.modules[library])


# -- stores ------------------------------------------------------------------------------------


def library(url: URL, module: str = "obstore") -> Any:
    """Return a module of obstore, by which a URL is asked."""
    if url.protocol not in WEB and url.protocol not in _STORES:
        raise OptionError(
            f"{url}: {url.protocol}:// is not read (expected s3://, gs://, az://, abfss://, "
            "http:// or https://); copy the file here first, or mount its file system"
        )
    return import_extra(module, f"{url} needs what is not installed: obstore", extra="cloud")


def store_of(url: URL) -> tuple[Any, str]:
    """Return the obstore store that a URL is of, one for each bucket, and the name in it."""
    stores = library(url, "obstore.store")
    if url.protocol not in WEB:
        bucket, _, key = url.path.partition("/")
        return _bucket_store(stores, url.protocol, bucket), key
    parts = urlsplit(url.with_secrets())
    exact = _EXACT.match(parts.path)
    assert exact is not None
    try:
        _ = parts.port
    except ValueError:  # a password with a slash ends the host too early
        raise OptionError(
            "its host and port cannot be identified; write / in a user or password as %2F"
        ) from None
    base = parts._replace(path=exact[0] or "/", fragment="").geturl()
    return _web_store(stores, base), unquote(parts.path[exact.end() :]).removeprefix("/")


def forget_stores() -> None:
    """Make the stores anew, of what the environment says then."""
    _bucket_store.cache_clear()
    _web_store.cache_clear()


@lru_cache(maxsize=64)
def _bucket_store(stores: Any, protocol: str, bucket: str) -> Any:
    note_secrets([f"{protocol}://{bucket}"])
    kind = _STORES[protocol]
    if "@" in bucket and kind != "AzureStore":
        raise StorageError("user and password are read from the environment; leave them out")
    options = _options("bucket", allow_http=True)
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["client_options"]["root_certificate"] = Path(bundle).read_bytes()
    if kind == "S3Store":
        # No digest of what is put is signed: 0.6 of 0.9 s of CPU a GB.
        options |= {"unsigned_payload": True, "credential_provider": _credentials()}
    return getattr(stores, kind).from_url(f"{protocol}://{bucket}", **options)


def _credentials() -> Any:
    """Return what finds credentials in profiles and of instances; None where obstore does."""
    unsigned = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1", "yes", "on")
    if unsigned or any(os.environ.get(name) for name in CREDENTIALS):
        return None
    try:
        return import_module("obstore.auth.boto3").Boto3CredentialProvider()
    except ImportError:
        raise StorageError(
            f"{_NO_CREDENTIALS}; profiles and roles of instances need boto3: pip install boto3"
        ) from None
    except ValueError:
        raise StorageError(_NO_CREDENTIALS) from None
    except import_module("botocore.exceptions").BotoCoreError as error:
        raise StorageError(mask_line(str(error))) from None


@lru_cache(maxsize=1024)  # making one takes 5 ms; a signed URL has its own
def _web_store(stores: Any, base: str) -> Any:
    note_secrets([base])
    parts = urlsplit(base)
    user, _, host = parts.netloc.rpartition("@")
    options = _options("web", allow_http=parts.scheme == "http")  # https leads to no http
    if user:
        words = base64.b64encode(unquote(user).encode()).decode()
        options["client_options"]["default_headers"] = {"authorization": f"Basic {words}"}
    return stores.HTTPStore(parts._replace(netloc=host).geturl(), **options)


def _options(kind: str, allow_http: bool) -> dict[str, Any]:
    times = {"connect_timeout": "10s", "read_timeout": READ_TIMEOUT, "timeout": "1h"}
    retries = {"max_retries": TRIES[kind], "retry_timeout": timedelta(minutes=3)}
    return {"client_options": {**times, "allow_http": allow_http}, "retry_config": retries}


# -- errors ------------------------------------------------------------------------------------


def _error(url: URL, error: BaseException) -> BaseException:
    """Return what a request raised as an error of one line that names the URL and no secret.

    A missing object stays a FileNotFoundError: what it means depends on the caller.
    """
    text = str(error)
    if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
        return FileNotFoundError(2, "no such object", str(url))
    if type(error).__name__ == "PreconditionError":
        return FileFormatError(f"{url}: was rewritten since it was indexed; open the dataset again")
    if isinstance(error, MissingExtraError) or text.startswith(f"{url}: "):
        return error
    if isinstance(error, IobenchError):
        return type(error)(f"{url}: {error}")
    if isinstance(error, OSError | ValueError) or type(error).__module__ == "obstore.exceptions":
        return StorageError(f"{url}: {_reason(error)}")
    return error


def _reason(error: BaseException) -> str:
    """Return why a request failed, without the URL, which obstore repeats with its secrets."""
    text, status = str(error), status_of(error)
    if known := [reason for name, reason in _REASONS.items() if name in text]:
        return known[0]
    if status:
        message = re.search("<Message>([^<]*)</Message>", text)
        reason = f"{status}: {message[1]}" if message else status
        reason = f"not permitted ({reason})" if status[:3] in ("401", "403") else reason
    else:
        cause = re.search(r'(?:message|error): "([^"]*)"', text)
        first = text.partition("\n")[0]
        reason = f"cannot be read ({cause[1] if cause else first.rpartition(': ')[2]})"
    return mask_line(reason)[:MAX_REASON_LENGTH]


def status_of(error: BaseException) -> str:
    """Return such as ``403 Forbidden``; empty if no status was answered."""
    status = re.search(r"status code: (\d{3}[\w -]*)", str(error))
    return status[1].strip() if status else ""


# -- bytes -------------------------------------------------------------------------------------


async def _get(url: URL, start: int = 0, end: int | None = None) -> Any:
    """Return bytes of an object, fewer where it ends before; of one version, if its ETag is strong.

    A server that ignores the range is refused.
    """
    store, name = store_of(url)
    obstore = library(url)
    only = {"if_match": url.etag} if url.etag.startswith('"') else {}
    part = {} if end is None else {"range": (start, end)}
    try:
        if part and not only:  # half the work
            return await obstore.get_range_async(store, name, start=start, end=end)
        answer = await obstore.get_async(store, name, options={**only, **part})
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


def fill_remote(ranges: Sequence[tuple[URL, int, memoryview]]) -> None:
    """Fill buffers from (URL, offset), many at once; an object that ends before is an error.

    Of a `URL` that was looked up it is the version that was there then. Long ranges are several
    requests, side by side.
    """
    least, most = PART_NBYTES
    longest = min(most, max(least, sum(len(buffer) for *_, buffer in ranges) // N_PARTS))
    parts = []
    for url, start, buffer in ranges:
        count = -(-len(buffer) // longest)  # none where nothing is wanted
        edges = [len(buffer) * part // count for part in range(count + 1)] if count else []
        parts += [(url, start + a, buffer[a:b]) for a, b in pairwise(edges)]
    urls, starts, buffers = zip(*parts, strict=True) if parts else ((), (), ())
    try:
        counts = ask(urls, _fill, starts, buffers)
    except FileNotFoundError as error:
        raise MissingFileError(f"{error.filename}: no such file any more") from error
    for (url, start, buffer), count in zip(parts, counts, strict=True):
        if count < len(buffer):
            raise FileFormatError(
                f"{url}: ends before offset {start + len(buffer)}: it is cut short or has changed "
                "since it was indexed; fetch it again"
            )


def read_objects(urls: Sequence[URL]) -> list[Any]:
    """Return the content of objects as buffers, None for those that are not there."""
    return ask(urls, _get, or_none=True)


class RemoteFile(io.RawIOBase):
    """A file behind a URL, as it was when that was looked up: ranges of its bytes, and a stream.

    The stream keeps the pages read last: HDF5 asks for headers of some hundred bytes and nodes of
    some KiB, many of them side by side.
    """

    def __init__(self, url: URL) -> None:
        super().__init__()
        self.path = cast(str, url)  # as `range_file` has it
        self._url = url
        self.nbytes: int = url.stat().st_size
        self.version = url.version()
        self._place = 0
        self._page = lru_cache(maxsize=N_PAGES)(self._read)

    def check(self) -> None:
        """Ask whether the file is as it was when it was opened."""
        try:
            now = self._url.looked_up()
        except FileNotFoundError as error:
            raise MissingFileError(f"{self._url}: no such file any more") from error
        if (now.stat().st_size, now.version()) != (self.nbytes, self.version):
            raise FileFormatError(
                f"{self._url}: changed while it was indexed; try again once it is complete"
            )

    def reader(self) -> RemoteFile:
        """Return a stream of its own, from the first byte."""
        return RemoteFile(self._url)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes; fewer where the file ends."""
        return self.read_each([offset], nbytes)[0]

    def read_each(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places, fewer where the file ends; all at once."""
        sizes = [max(0, min(nbytes, self.nbytes - offset)) for offset in offsets]
        every = [bytearray(size) for size in sizes]
        pairs = zip(offsets, every, strict=True)
        fill_remote([(self._url, offset, memoryview(each)) for offset, each in pairs])
        return list(map(bytes, every))

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``; a file that ends before is an error."""
        fill_remote([(self._url, offset, buffer)])

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position and return it."""
        self._place = (0, self._place, self.nbytes)[whence] + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from here on, as far as the object goes; return how many bytes."""
        view = memoryview(buffer).cast("B")[: max(0, self.nbytes - self._place)]
        done = 0
        if len(view) > PAGE_NBYTES:
            self.fill(view, self._place)
            done = len(view)
        while done < len(view):
            number, start = divmod(self._place + done, PAGE_NBYTES)
            part = self._page(number)[start : start + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
        self._place += done
        return done

    def _read(self, number: int) -> bytes:
        return self.read_at(number * PAGE_NBYTES, PAGE_NBYTES)


# -- states and listings -----------------------------------------------------------------------


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


def states_of(urls: Sequence[URL]) -> list[ObjectStat | None]:
    """Return what is at some URLs, None where there is nothing."""
    return ask(urls, _state, or_none=True)


async def _state(url: URL) -> ObjectStat | None:
    if url.protocol in WEB:
        return await _web_state(url)
    store, key = store_of(url)
    obstore = library(url)
    if key:
        with suppress(FileNotFoundError):
            return _stat(await obstore.head_async(store, key))
    async for _ in obstore.list(store, key, chunk_size=1):
        return FOLDER
    return None if key else FOLDER


async def _web_state(url: URL) -> ObjectStat | None:
    """Return what is there: a file, or a folder where a Zarr store is.

    Who may not list a bucket is not told which metadata are missing there, but that it is not
    permitted.
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
    if is_metadata and status_of(refusal).startswith("403"):
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
            page = bytes(await _get(url.with_path(f"{url.path.rstrip('/')}/")))
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
        self._writer: Any = None

    def write(self, data: Any) -> None:
        """Append all of a buffer."""
        view = memoryview(data).cast("B")
        with _resumable():
            for at in range(0, len(view), UPLOAD_NBYTES):  # copied: a caller uses the buffer again
                ask([self.path], self._send, [bytes(view[at : at + UPLOAD_NBYTES])])

    async def _send(self, url: URL, part: bytes) -> None:
        if self._writer is None:
            store, key = store_of(url)
            self._writer = library(url).open_writer_async(
                store, key, buffer_size=UPLOAD_NBYTES, max_concurrency=UPLOADS_AT_ONCE
            )
        await self._writer.write(part)

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
                ask([self.path], self._end)
                self._writer = None
        except BaseException:
            self.abort()
            raise

    async def _end(self, url: URL) -> None:
        await self._send(url, b"")
        await self._writer.close()

    def abort(self) -> None:
        """Drop it, unless it appeared."""
        if self._writer is not None:
            ask([self.path], self._drop)
            self._writer = None

    async def _drop(self, url: URL) -> None:
        with suppress(library(url).exceptions.BaseError, OSError):
            await self._writer.__aexit__(StorageError, StorageError("dropped"), None)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        again = StorageError(f"{error}; what is finished is kept, the same command continues")
        again.errno, again.exit_code = error.errno, EXIT_RESUMABLE
        raise again from error
