"""Stores of objects and web servers through obstore (https://developmentseed.org/obstore/).

Which store a URL is of, who asks, and the event loop that asks: one in a thread of each process, so
that who waits can be interrupted. Endpoints, regions and credentials are those of the environment,
as obstore reads it; a profile and the role of an instance are found by boto3. Redirects are
followed, ten at most; user and password go to the first host alone.
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

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingExtraError,
    OptionError,
    StorageError,
)
from iobench.masking import mask_line, note_secrets

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Sequence

    from iobench.files.urls import URL

WEB: Final = ("http", "https")
GCS: Final = ("gs", "gcs")
AZURE: Final = ("az", "azure", "abfs", "abfss", "adl")
KNOWN: Final = (*WEB, "s3", "s3a", *GCS, *AZURE)
AT_ONCE: Final = 64
"""Requests under way: enough to hide what one takes, and no burden to a server."""
READ_TIMEOUT = "30s"
"""Without a byte of an answer; then it is tried again."""
TRIES = {"web": 2, "bucket": 10}
"""Again, where a server fails: of a bucket that is too busy, for about a minute."""
ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "GOOGLE_BASE_URL",
    "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT",
)  # fmt: skip
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
    "InvalidCertificate": "its certificate is not trusted; name a PEM file as SSL_CERT_FILE",
    "without LOCATION": "the bucket is in another region; name it as AWS_REGION",
    "MissingAccount": "no account; name it as AZURE_STORAGE_ACCOUNT_NAME",
    "metadata.google": _NO_OTHER_CREDENTIALS,
    "169.254.169.254": _NO_OTHER_CREDENTIALS,
}
MAX_REASON_LENGTH: Final = 300
LONGEST_END_MS: Final = 1000
_LIBRARY: Final = "obstore._obstore"
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_is_forked = False


def _forget() -> None:
    """Start anew in a forked child: threads stay with the parent."""
    global _lock, _loop, _is_forked
    _lock, _loop, _is_forked = threading.Lock(), None, True
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
            if _is_forked and _LIBRARY in sys.modules:
                _load_copy()
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


def _load_copy() -> None:
    """Load obstore from a copy: a library starts its threads once, and those stayed behind."""
    library_spec = PathFinder.find_spec(_LIBRARY, sys.modules["obstore"].__path__)
    assert library_spec is not None
    assert library_spec.origin is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        del sys.modules[name]
    with open(os.memfd_create("obstore"), "wb") as copy:  # noqa: PTH123
        copy.write(Path(library_spec.origin).read_bytes())
        copy.flush()
        loader = ExtensionFileLoader(_LIBRARY, f"/proc/self/fd/{copy.fileno()}")
        spec = spec_from_loader(_LIBRARY, loader)
        assert spec is not None
        sys.modules[_LIBRARY] = module_from_spec(spec)
        loader.exec_module(sys.modules[_LIBRARY])


# -- stores ------------------------------------------------------------------------------------


def library(url: URL, module: str = "obstore") -> Any:
    """Return a module of obstore, by which a URL is asked."""
    if url.protocol not in KNOWN:
        raise OptionError(
            f"{url}: {url.protocol}:// is not read (expected s3://, gs://, az://, abfss://, "
            "http:// or https://); copy the file here first, or mount its file system"
        )
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{url} needs what is not installed: obstore", extra="cloud"
        ) from error


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
    is_http = any(os.environ.get(name, "").startswith("http:") for name in ENDPOINTS)
    client: dict[str, Any] = {"allow_http": is_http}
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        client["root_certificate"] = Path(bundle).read_bytes()
    options = _options(TRIES["bucket"], **client)
    if protocol in AZURE:
        return stores.AzureStore.from_url(f"{protocol}://{bucket}", **options)
    if "@" in bucket:
        raise StorageError("user and password are read from the environment; leave them out")
    if protocol in GCS:
        return stores.GCSStore(bucket, **options)
    if not is_http:  # over TLS no digest of what is put has to be signed: 0.6 of 0.9 s of CPU a GB
        options["unsigned_payload"] = True
    return stores.S3Store(bucket, credential_provider=_credentials(), **options)


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
    client: dict[str, Any] = {"allow_http": parts.scheme == "http"}  # https leads to no http
    if user:
        words = base64.b64encode(unquote(user).encode()).decode()
        client["default_headers"] = {"authorization": f"Basic {words}"}
    address = parts._replace(netloc=host).geturl()
    return stores.HTTPStore(address, **_options(TRIES["web"], **client))


def _options(tries: int, **client: Any) -> dict[str, Any]:
    times = {"connect_timeout": "10s", "read_timeout": READ_TIMEOUT, "timeout": "1h"}
    retries = {"max_retries": tries, "retry_timeout": timedelta(minutes=3)}
    return {"client_options": {**times, **client}, "retry_config": retries}


# -- errors ------------------------------------------------------------------------------------


def _error(url: URL, error: BaseException) -> BaseException:
    """Return what a request raised as an error of one line that names the URL and no secret.

    A missing object stays a FileNotFoundError: what it means depends on the caller.
    """
    if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
        return FileNotFoundError(2, "no such object", str(url))
    if type(error).__name__ == "PreconditionError":
        return FileFormatError(f"{url}: was rewritten since it was indexed; open the dataset again")
    if isinstance(error, MissingExtraError) or str(error).startswith(f"{url}: "):
        return error
    if isinstance(error, IobenchError):
        return type(error)(f"{url}: {error}")
    is_theirs = type(error).__module__ == "obstore.exceptions"
    if not is_theirs and not isinstance(error, OSError | ValueError):
        return error
    return StorageError(f"{url}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """Return why a request failed, without the URL, which obstore repeats with its secrets."""
    text, answer = str(error), status_of(error)
    if known := [said for name, said in _REASONS.items() if name in text]:
        return known[0]
    if said := re.search("<Message>([^<]*)</Message>", text):
        answer = f"{answer}: {said[1]}"
    if answer:
        answer = f"not permitted ({answer})" if answer[:3] in ("401", "403") else answer
    else:
        cause = re.search(r'(?:message|error): "([^"]*)"', text)
        first = text.partition("\n")[0]
        answer = f"cannot be read ({cause[1] if cause else first.rpartition(': ')[2]})"
    answer = mask_line(answer)
    return answer if len(answer) <= MAX_REASON_LENGTH else f"{answer[:MAX_REASON_LENGTH]}..."


def status_of(error: BaseException) -> str:
    """Return such as ``403 Forbidden``; empty if no status was answered."""
    status = re.search(r"status code: (\d{3}[\w -]*)", str(error))
    return status[1].strip() if status else ""
