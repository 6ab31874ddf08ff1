"""Addresses of what lies elsewhere (``s3://bucket/prefix``), and the file systems behind them.

The one place that knows fsspec. Where a store of objects is and who we are to it (endpoint,
credentials) is never asked for and never kept: fsspec and the libraries below it find it in the
environment (``AWS_*``, ``FSSPEC_S3_*``) and in their own files. What they say about it in errors
is cleared of it before anybody sees it.
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
from iobench.masking import MASK, mask_text, mask_urls, note_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "is_url",
    "open_filesystem",
    "protocol_of",
    "remote_errors",
    "shown_url",
    "without_secrets",
]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:::|://)")
_QUERY = re.compile(r"\?\S*")
_SECRET_NAME = re.compile(r"^(AWS|FSSPEC|GOOGLE|AZURE|GCS|S3)_.*|.*(SECRET|TOKEN|PASSWORD).*")
MIN_SECRET_LENGTH = 8
MAX_REASON_LENGTH = 300
MAX_CONNECTIONS = 64
_WITH_PORT = {"http", "https", "ftp"}
_CLOUD = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "ossfs"}
_LIBRARIES = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "zipfile": ("BadZipFile",),
    "tarfile": ("TarError",),
}
"""Whose errors are none of Python's own; only where they are loaded can they be raised."""
_opened: dict[tuple[int, str], Any] = {}
_opening = threading.Lock()


def _forget() -> None:
    """Start anew in a forked child: what is open belongs to threads that stayed behind."""
    global _opening
    _opening = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_forget)


def is_url(text: object) -> bool:
    """Tell whether a text is an address (``s3://bucket/key``), and not a path of this machine."""
    return isinstance(text, str) and _URL.match(text) is not None


def protocol_of(url: str) -> str:
    """Return what an address begins with, such as ``s3``."""
    match = _URL.match(url)
    return "" if match is None else match[1].lower()


def shown_url(url: str) -> str:
    """Return an address as it may be shown and kept: without user, password and signature."""
    return _QUERY.sub("", mask_urls(url)).replace(f"{MASK}@", "")


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path in it.

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
    note_secrets([url])
    _check_hosts(url)
    with _opening:
        base = _base(url)
        key = (os.getpid(), base)
        try:
            known = _opened.get(key)
            if known is None:
                known, path = core.url_to_fs(
                    url, use_listings_cache=False, skip_instance_cache=True, **_connections(url)
                )
                _opened[key] = known
            else:
                path = known._strip_protocol(url)
        except ImportError as error:
            raise MissingExtraError(_missing(url, error)) from None
        except FileNotFoundError:  # what a chain (zip://x::https://...) leads through
            raise MissingFileError(f"{shown_url(url)}: no such file") from None
        except _remote_errors(ValueError, TypeError) as error:
            reason = without_secrets(str(error))
            raise OptionError(f"{shown_url(url)}: cannot be opened ({reason})") from None
    return known, str(path)


def _check_hosts(url: str) -> None:
    """Refuse what no library can ask: a password with a slash ends the host too early."""
    for part in url.split("::"):
        if protocol_of(part) in _WITH_PORT:
            try:
                _ = urlsplit(part).port
            except ValueError:
                raise OptionError(
                    f"{shown_url(url)}: its host and port cannot be told; write / in a user or "
                    "password as %2F"
                ) from None


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn what the libraries behind an address raise into a StorageError of one line.

    A missing object stays a FileNotFoundError, one that is there already a FileExistsError: what
    they mean depends on the caller.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except _remote_errors() as error:
        reason = _reason(error)
        refused = StorageError(f"{shown_url(url)}: {reason}")
        refused.errno = getattr(error, "errno", None)
        raise refused from None  # what is beneath may hold secrets


def without_secrets(text: str) -> str:
    """Return a text of one line without what only the environment should know."""
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET_LENGTH and _SECRET_NAME.fullmatch(name):
            text = text.replace(value, f"${name}")
    text = " ".join(shown_url(mask_text(text)).split())
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[:MAX_REASON_LENGTH]}..."


def _connections(url: str) -> dict[str, Any]:
    """Return options for as many connections to S3 as ranges are asked for; botocore has 10."""
    if protocol_of(url) not in {"s3", "s3a"} or "::" in url:
        return {}
    own = import_module("fsspec.config").conf.get("s3", {}).get("config_kwargs", {})
    return {"config_kwargs": {"max_pool_connections": MAX_CONNECTIONS, **own}}


def _base(url: str) -> str:
    """Return what of an address decides its file system: all, where file systems are chained."""
    if "::" in url:
        return url
    protocol = protocol_of(url)
    if protocol in _CLOUD or protocol == "memory":
        return protocol
    return url.partition("://")[0] + "://" + url.partition("://")[2].partition("/")[0]


def _missing(url: str, error: ImportError) -> str:
    what = error.name or without_secrets(str(error))
    if protocol_of(url) in {"s3", "s3a"} or what.startswith("fsspec"):
        what = "fsspec and s3fs: pip install 'iobench[cloud]'"
    return f"{shown_url(url)} needs what is not installed: {what}"


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
