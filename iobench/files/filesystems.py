"""File systems behind URLs, one for each process and place; the one module that knows fsspec.

Where a store of objects is and who we are to it (endpoint, credentials) is never asked for and
never kept: fsspec and the libraries below it find it in the environment (``AWS_*``,
``FSSPEC_S3_*``) and in their own files. What they say about it in errors is cleared of it before
anybody sees it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from iobench.errors import MissingExtraError, MissingFileError, OptionError, StorageError
from iobench.masking import mask_text, note_secrets, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.files.urls import URL

S3 = {"s3", "s3a"}
_SECRET_NAME = re.compile(r"^(AWS|FSSPEC|GOOGLE|AZURE|GCS|S3)_.*|.*(SECRET|TOKEN|PASSWORD).*")
MIN_SECRET_LENGTH = 8
MAX_REASON_LENGTH = 300
MAX_CONNECTIONS = 64
_WITH_PORT = {"http", "https", "ftp"}
_CLOUD = {*S3, "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "ossfs", "memory"}
"""One file system has all that is there, whatever follows the protocol."""
_LIBRARIES = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "zipfile": ("BadZipFile",),
    "tarfile": ("TarError",),
}
"""Whose errors are none of Python's own; only where they are loaded can they be raised."""
_opened: dict[str, tuple[Any, str]] = {}
_opening = threading.Lock()


def _forget() -> None:
    """Start anew in a forked child: what is open belongs to threads that stayed behind."""
    global _opening
    _opening = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget)


def open_filesystem(url: URL) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    There is one for each process and protocol, shared by its threads; a forked child opens its
    own. It keeps no listings: what others wrote is seen at once.

    Raises
    ------
    MissingExtraError
        If fsspec, or what it needs for this protocol, is not installed.
    OptionError
        If nobody knows the protocol, or it lacks what it needs to be opened.
    MissingFileError
        If the file is not there that others are in.
    """
    try:
        core = import_module("fsspec.core")
    except ImportError as error:
        raise MissingExtraError(_missing(url, error)) from error
    text = url.with_secrets()
    with _opening:
        base = _base(url, text)
        try:
            known, path = _opened.get(base, (None, ""))
            if known is None:
                note_secrets([text])
                _check_hosts(url, text)
                known, path = _opened[base] = core.url_to_fs(
                    text,
                    use_listings_cache=False,
                    skip_instance_cache=True,
                    **_connections(url.protocol, text),
                )
            elif base != text:  # that of a text is its own
                path = known._strip_protocol(text.removesuffix(url.lies_in))
        except ImportError as error:
            raise MissingExtraError(_missing(url, error)) from None
        except FileNotFoundError:  # what a chain (zip://x::https://...) leads through
            raise MissingFileError(f"{url}: no such file") from None
        except _remote_errors(ValueError, TypeError) as error:
            reason = without_secrets(str(error))
            raise OptionError(f"{url}: cannot be opened ({reason})") from None
    return known, str(path)


def _check_hosts(url: URL, text: str) -> None:
    """Refuse what no library can ask: a password with a slash ends the host too early."""
    for part in text.split("::"):
        if part.partition("://")[0] in _WITH_PORT:
            try:
                _ = urlsplit(part).port
            except ValueError:
                raise OptionError(
                    f"{url}: its host and port cannot be identified; write / in a user or password "
                    "as %2F"
                ) from None


@contextmanager
def remote_errors(url: URL | str) -> Iterator[None]:
    """Turn what the libraries behind a URL raise into a StorageError of one line.

    A missing object stays a FileNotFoundError, one that is there already a FileExistsError: what
    they mean depends on the caller.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except _remote_errors() as error:
        refused = StorageError(f"{url}: {_reason(error)}")
        refused.errno = getattr(error, "errno", None)
        raise refused from None  # what is beneath may hold secrets


def without_secrets(text: str) -> str:
    """Return a text of one line without what only the environment should know."""
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET_LENGTH and _SECRET_NAME.fullmatch(name):
            text = text.replace(value, f"${name}")
    text = " ".join(shown_url(mask_text(text)).split())
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[:MAX_REASON_LENGTH]}..."


def _connections(protocol: str, text: str) -> dict[str, Any]:
    """Return options for as many connections to S3 as ranges are asked for; botocore has 10."""
    if protocol not in S3 or "::" in text:
        return {}
    own = import_module("fsspec.config").conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": MAX_CONNECTIONS, **own}}


def _base(url: URL, text: str) -> str:
    """Return what of a URL decides its file system: of an archive, where that lies."""
    if url.lies_in:
        return url.protocol + url.lies_in
    if "::" in text:
        return text
    if url.protocol in _CLOUD:
        return url.protocol
    scheme, mark, rest = text.partition("://")
    return scheme + mark + rest.partition("/")[0]


def _missing(url: URL, error: ImportError) -> str:
    what = error.name or without_secrets(str(error))
    if url.protocol in S3 or what.startswith("fsspec"):
        what = "fsspec and s3fs: pip install 'iobench[cloud]'"
    return f"{url} needs what is not installed: {what}"


def _remote_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = [OSError, *more]
    for module, names in _LIBRARIES.items():
        if module in sys.modules:
            found += [getattr(sys.modules[module], name) for name in names]
    return tuple(found)


def _reason(error: BaseException) -> str:
    text = without_secrets(str(error)) or type(error).__name__
    name = type(error).__name__
    if name == "NoCredentialsError":
        return "no credentials found (AWS_ACCESS_KEY_ID, AWS_PROFILE, FSSPEC_S3_ANON=true, ...)"
    if isinstance(error, PermissionError):
        return f"not permitted ({text})"
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return f"no answer in time ({text})"
    return text
