"""File systems behind URLs but of the web, as fsspec opens them, one for each process and place.

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
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.errors import MissingExtraError, OptionError, StorageError
from iobench.files.object_requests import reason_of, s3_store
from iobench.masking import mask_text, note_secrets, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.files.urls import URL

S3 = {"s3", "s3a"}
_SECRET_NAME = re.compile(r"^(AWS|FSSPEC|GOOGLE|AZURE|GCS|S3)_.*|.*(SECRET|TOKEN|PASSWORD).*")
MIN_SECRET_LENGTH = 8
MAX_REASON_LENGTH = 300
_CLOUD = {*S3, "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "ossfs", "memory"}
"""One file system has all that is there, whatever follows the protocol."""
_LIBRARIES = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp": ("ClientError",),
    "obstore.exceptions": ("BaseError",),
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
    """
    text = url.with_secrets()
    if "::" in text:
        raise OptionError(
            f"{url}: chains of file systems (::) are not read; copy the file here first"
        )
    try:
        core = import_module("fsspec.core")
    except ImportError as error:
        raise MissingExtraError(_missing(url, error)) from error
    with _opening:
        base = _base(url, text)
        try:
            known, path = _opened.get(base, (None, ""))
            if known is None:
                note_secrets([text])
                known, path = _opened[base] = core.url_to_fs(
                    text,
                    use_listings_cache=False,
                    skip_instance_cache=True,
                )
            elif base != text:  # that of a text is its own
                path = known._strip_protocol(text)
        except ImportError as error:
            raise MissingExtraError(_missing(url, error)) from None
        except _remote_errors(ValueError, TypeError) as error:
            reason = without_secrets(str(error))
            raise OptionError(f"{url}: cannot be opened ({reason})") from None
    return known, str(path)


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


def open_bucket(fs: Any, bucket: str) -> Any:
    """Return obstore's store of a bucket: where, and as whom, s3fs would ask for it."""
    sync = import_module("fsspec.asyn").sync
    client = sync(fs.loop, fs.set_session)
    endpoint, region = client.meta.endpoint_url, client.meta.region_name or "us-east-1"
    if endpoint.endswith(".amazonaws.com"):
        with suppress(OSError):  # who may read need not be permitted this
            region = fs.call_s3("head_bucket", Bucket=bucket).get("BucketRegion", region)
        endpoint = f"https://s3.{region}.amazonaws.com"
    config = {"region": region, "request_payer": bool(fs.req_kw)}
    if (client.meta.config.s3 or {}).get("addressing_style") == "virtual":
        endpoint = endpoint.replace("://", f"://{bucket}.", 1)
        config["virtual_hosted_style_request"] = True
    found: Any = None if fs.anon else client._get_credentials()
    if found is None and not fs.anon:
        raise import_module("botocore.exceptions").NoCredentialsError

    def credentials() -> dict[str, Any]:
        now = sync(fs.loop, found.get_frozen_credentials)
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": getattr(found, "_expiry_time", None),  # None: they do not
        }

    trust: dict[str, Any] = {}
    verify = fs.client_kwargs.get("verify", os.environ.get("AWS_CA_BUNDLE"))
    if verify is False:
        trust["allow_invalid_certificates"] = True
    elif isinstance(verify, str):
        trust["root_certificate"] = Path(verify).read_bytes()
    return s3_store(bucket, endpoint, config, credentials if found else None, trust)


def _base(url: URL, text: str) -> str:
    """Return what of a URL decides its file system."""
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
    if type(error).__module__ == "obstore.exceptions":
        return without_secrets(reason_of(error))
    text = without_secrets(str(error)) or type(error).__name__
    name = type(error).__name__
    if name == "NoCredentialsError":
        return "no credentials found (AWS_ACCESS_KEY_ID, AWS_PROFILE, FSSPEC_S3_ANON=true, ...)"
    if isinstance(error, PermissionError):
        return f"not permitted ({text})"
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return f"no answer in time ({text})"
    return text
