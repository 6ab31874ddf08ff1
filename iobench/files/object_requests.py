"""Requests to web servers and S3 through obstore (https://developmentseed.org/obstore/).

One event loop in a thread of each process runs them, so that who waits can be interrupted.
Redirects are followed, ten at most; user and password go to the first host alone.
"""

from __future__ import annotations

import atexit
import base64
import os
import re
import sys
import threading
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from iobench.errors import MissingExtraError, OptionError
from iobench.masking import note_secrets, shown_url

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    Place = Callable[[str], tuple[Any, str]]

READ_TIMEOUT = "30s"
"""Without a byte of an answer; then it is tried again."""
TRIES = {"web": 2, "s3": 10}
"""Again, where a server fails: of a bucket that is too busy, for about a minute."""
_EXACT: Final = re.compile(r"(?:.*/$|.*(?://|%2f|%[0189a-f]|/\.\.?(?=/|$))[^/]*)?", re.I | re.S)
"""What of a path is sent as it is spelled; the rest is a name, which obstore spells."""
WHOLE: Final = "the server hands out files only whole; copy the file here first"
_REASONS: Final = {
    "TimedOut": "no answer in time",
    "UnexpectedEof": "the answer ends early; try again",
    "non-partial": WHOLE,
    "InvalidCertificate": "its certificate is not trusted; name a PEM file as SSL_CERT_FILE",
}
LONGEST_END_MS: Final = 1000
_LIBRARY: Final = "obstore._obstore"
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_is_forked = False


def _forget() -> None:
    """Start anew in a forked child: threads stay with the parent."""
    global _lock, _loop, _is_forked
    _lock, _loop, _is_forked = threading.Lock(), None, True
    _store.cache_clear()


os.register_at_fork(after_in_child=_forget)


def gather(requests: Sequence[Coroutine[Any, Any, Any]], in_flight: int) -> list[Any]:
    """Return what requests return or raise, of which no more than ``in_flight`` run at once."""
    import asyncio

    async def run_all() -> list[Any]:
        limit = asyncio.Semaphore(max(1, in_flight))

        async def run(request: Coroutine[Any, Any, Any]) -> Any:
            async with limit:
                return await request

        return await asyncio.gather(*map(run, requests), return_exceptions=True)

    global _loop
    with _lock:
        if _loop is None:
            if _is_forked and _LIBRARY in sys.modules:
                _load_copy()
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="iobench-requests", daemon=True).start()
            atexit.register(_await_answers)
    running = asyncio.run_coroutine_threadsafe(run_all(), _loop)
    try:
        return running.result()
    finally:
        running.cancel()


def _await_answers() -> None:
    """Let obstore's own threads leave Python before it ends: it would end them within Rust."""
    pause = threading.Event()
    for _ in range(LONGEST_END_MS):
        ours = {each.ident for each in threading.enumerate()}
        if not set(sys._current_frames()) - ours:
            return
        pause.wait(0.001)


async def read_range(
    place: Place, path: str, start: int = 0, end: int | None = None, etag: str = ""
) -> Any:
    """Return bytes of a file, fewer where it ends before; of one version, unless its ETag is weak.

    ``place`` returns the obstore store of a path and the name in it.
    """
    store, name = place(path)
    obstore = import_module("obstore")
    only = {"if_match": etag} if etag.startswith('"') else {}
    part = {} if end is None else {"range": (start, end)}
    try:
        found = await obstore.get_async(store, name, options={**only, **part})
    except obstore.exceptions.NotSupportedError:
        found = await obstore.get_async(store, name, options=only)
        if start or found.meta["size"] > (end or 0):
            raise OSError(WHOLE) from None
    except obstore.exceptions.GenericError as error:
        if _status(error) == "416 Range Not Satisfiable":  # it ends before
            return b""
        raise
    return await found.bytes_async()


async def read_state(url: str) -> dict[str, Any]:
    """Return size, time, ETag and type of a file; by GET where HEAD is refused."""
    store, name = web_place(url)
    obstore = import_module("obstore")
    try:
        found = await obstore.get_async(store, name, options={"head": True})
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        if _status(error)[:3] in ("404", "410") or not is_answer(error):
            raise
        found = await obstore.get_async(store, name)
    return {**found.meta, "type": "file", "mimetype": found.attributes.get("Content-Type", "")}


def is_answer(error: BaseException) -> bool:
    """Whether a server answered, though not as it should."""
    return "HttpError" not in str(error)


def is_refused(error: BaseException) -> bool:
    """Whether a server answered that this is not permitted."""
    return _status(error)[:3] == "403"


def reason_of(error: BaseException) -> str:
    """Return why a request failed, without the URL, which obstore repeats with its secrets."""
    text, answer = str(error), _status(error)
    if said := re.search("<Message>([^<]*)</Message>", text):  # of S3
        answer = f"{answer}: {said[1]}"
    if answer:
        return f"not permitted ({answer})" if answer[:3] in ("401", "403") else answer
    if known := [said for name, said in _REASONS.items() if name in text]:
        return known[0]
    cause = re.search(r'(?:message|error): "([^"]*)"', text)
    first = text.partition("\n")[0]
    return f"cannot be read ({cause[1] if cause else first.rpartition(': ')[2]})"


def _status(error: BaseException) -> str:
    """Return such as ``403 Forbidden``; empty if no status was answered."""
    found = re.search(r"status code: (\d{3}[\w -]*)", str(error))
    return found[1].strip() if found else ""


def web_place(url: str) -> tuple[Any, str]:
    """Return the obstore store of a URL of the web and the name in it."""
    parts = urlsplit(url)
    exact = _EXACT.match(parts.path)
    assert exact is not None
    base = parts._replace(path=exact[0] or "/", fragment="").geturl()
    return _store(base), unquote(parts.path[exact.end() :]).removeprefix("/")


@lru_cache(maxsize=1024)  # making one takes 5 ms; a signed URL has its own
def _store(url: str) -> Any:
    note_secrets([url])
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    try:
        _ = parts.port
    except ValueError:  # a password with a slash ends the host too early
        raise OptionError(
            f"{shown_url(url)}: its host and port cannot be identified; write / in a user or "
            "password as %2F"
        ) from None
    more: dict[str, Any] = {}
    if user:
        words = base64.b64encode(unquote(user).encode()).decode()
        more["default_headers"] = {"authorization": f"Basic {words}"}
    return _stores(url).HTTPStore(
        parts._replace(netloc=host).geturl(), **_options(url, TRIES["web"], more)
    )


def s3_store(
    bucket: str, endpoint: str, config: dict[str, Any], credentials: Any, trust: dict[str, Any]
) -> Any:
    """Return the obstore store of a bucket; ``credentials`` returns them, None sends none."""
    return _stores(f"s3://{bucket}").S3Store(
        bucket,
        config={**config, "endpoint": endpoint, "skip_signature": credentials is None},
        credential_provider=credentials,
        **_options(endpoint, TRIES["s3"], trust),
    )


def _stores(url: str) -> Any:
    try:
        return import_module("obstore.store")
    except ImportError as error:
        raise MissingExtraError(
            f"{shown_url(url)} needs what is not installed: obstore: pip install 'iobench[cloud]'"
        ) from error


def _options(url: str, tries: int, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "client_options": {
            "connect_timeout": "10s",
            "read_timeout": READ_TIMEOUT,
            "timeout": "1h",
            "allow_http": url.startswith("http:"),  # https leads to no http
            **more,
        },
        "retry_config": {"max_retries": tries, "retry_timeout": timedelta(minutes=3)},
    }


def _load_copy() -> None:
    """Load obstore from a copy: a library starts its threads once, and those stayed behind."""
    found = PathFinder.find_spec(_LIBRARY, sys.modules["obstore"].__path__)
    assert found is not None
    assert found.origin is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        del sys.modules[name]
    with open(os.memfd_create("obstore"), "wb") as copy:  # noqa: PTH123
        copy.write(Path(found.origin).read_bytes())
        copy.flush()
        loader = ExtensionFileLoader(_LIBRARY, f"/proc/self/fd/{copy.fileno()}")
        spec = spec_from_loader(_LIBRARY, loader)
        assert spec is not None
        sys.modules[_LIBRARY] = module_from_spec(spec)
        loader.exec_module(sys.modules[_LIBRARY])
