"""Repositories of icechunk: a snapshot is a Zarr store, whose arrays zarr reads through icechunk.

``REPOSITORY#@NAME`` names a branch, tag or snapshot, ``#@NAME/GROUP`` a group of it; without it is
``main``. All processes read the snapshot that was found first. Keys and endpoints of buckets are
those of the environment; chunks that lie in other files are read where the repository itself says
in which places they may lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.chunks.zarr_library import load_zarr
from iobench.chunks.zarr_store import VERSION3, described_store, unsafe_codecs
from iobench.errors import FileFormatError, OptionError, StorageError, import_extra
from iobench.files.objects import WEB, renew_library
from iobench.files.urls import URL, as_path, range_file
from iobench.masking import mask_line

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable, Place
    from iobench.chunks.source_file import SourceFile

ICECHUNK: Final = "icechunk"
MAIN: Final = "main"
_LIBRARY: Final = "icechunk._icechunk_python"


def is_icechunk(folder: Path) -> bool:
    """Return whether a folder is a repository, of format 1 or 2."""
    if (folder / "repo").is_file():
        return True
    return (folder / "refs" / f"branch.{MAIN}" / "ref.json").is_file()


def inspect_icechunk(path: Path, group: str = "") -> SourceFile:
    """Return what a snapshot of a repository holds."""
    name, _, group = group.removeprefix("@").partition("/") if group[:1] == "@" else ("", "", group)
    where = range_file(path)
    snapshot = _snapshot(where, name or MAIN)
    prefix = f"{group}/" if group else ""
    documents = _documents(where, snapshot, group)

    def located(name: str, array: ChunkedVariable) -> ChunkedVariable:
        unsafe = unsafe_codecs(documents[f"{name}/{VERSION3}" if name else VERSION3])
        if unsafe:
            return replace(array, why_unread=f"codec {', '.join(unsafe)}")
        return replace(
            array, why_unread="", library=ICECHUNK, folder=f"{snapshot}/{prefix}{name}",
            keys=None, codecs=(), axes=(),
        )  # fmt: skip

    found = described_store(path, 3, documents, located, kind=ICECHUNK)
    return replace(found, fingerprint=f"{snapshot} {found.fingerprint}")


def read_part(file: str, variable: ChunkedVariable, start: Place, stop: Place) -> Any:
    """Return numbers of an array."""
    snapshot, _, name = variable.folder.partition("/")
    with _storage_errors(file):
        return _array(file, snapshot, name, os.getpid())[tuple(map(slice, start, stop))]


def _load(path: str) -> Any:
    """Return icechunk, as this process can use it."""
    renew_library(_LIBRARY)
    return import_extra(ICECHUNK, f"{path}: is a repository of icechunk", extra=ICECHUNK)


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    """Make what icechunk raises an error of one line."""
    icechunk = _load(path)
    try:
        yield
    except icechunk.IcechunkError as error:
        reason = mask_line(str(error).partition("\n")[0])
        raise StorageError(f"{path}: icechunk cannot read it: {reason}") from error


@lru_cache(maxsize=16)
def _repository(path: str, process: int) -> Any:
    icechunk, place = _load(path), as_path(path)
    if "ICECHUNK_LOG" not in os.environ:  # it warns of commits, which are not made here
        icechunk.set_logs_filter("error")
    with _storage_errors(path):
        storage = _storage(icechunk, place)
        config = icechunk.Repository.fetch_config(storage)
        places = [*((config and config.virtual_chunk_containers) or ())]
        if isinstance(place, URL):  # it may not name files of this machine
            places = [each for each in places if not each.startswith("file:")]
        allowed = icechunk.containers_credentials(dict.fromkeys(places))
        return icechunk.Repository.open(storage, authorize_virtual_chunk_access=allowed)


def _storage(icechunk: Any, place: Path) -> Any:
    """Return where a repository lies, as icechunk opens it."""
    if not isinstance(place, URL):
        return icechunk.local_filesystem_storage(str(place))
    bucket, _, prefix = place.path.partition("/")
    if place.protocol in ("s3", "s3a"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
        is_public = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on")
        return icechunk.s3_storage(
            bucket=bucket, prefix=prefix, endpoint_url=endpoint,
            region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
            allow_http=bool(endpoint and endpoint.startswith("http://")),
            force_path_style=endpoint is not None, anonymous=is_public, from_env=not is_public,
        )  # fmt: skip
    if place.protocol == "gs":
        return icechunk.gcs_storage(bucket=bucket, prefix=prefix, from_env=True)
    if place.protocol in WEB:
        return icechunk.http_storage(place.with_secrets())
    raise OptionError(f"{place}: repositories are read here and from s3://, gs:// and https://")


def _snapshot(path: str, name: str) -> str:
    """Return the snapshot that a branch or tag is at; that of no other name is itself one."""
    repository = _repository(path, os.getpid())
    with _storage_errors(path):
        if name in repository.list_branches():
            return str(repository.lookup_branch(name))
        if name in repository.list_tags():
            return str(repository.lookup_tag(name))
    if name == MAIN:
        raise FileFormatError(f"{path}: has no branch {MAIN}; name another as {path}#@NAME")
    return name


@lru_cache(maxsize=64)
def _store(path: str, snapshot: str, process: int) -> Any:
    with _storage_errors(path):
        return _repository(path, process).readonly_session(snapshot_id=snapshot).store


@lru_cache(maxsize=256)
def _array(path: str, snapshot: str, name: str, process: int) -> Any:
    zarr = load_zarr(f"{path}: a repository of icechunk")
    return zarr.open_array(_store(path, snapshot, process), path=name, mode="r", zarr_format=3)


def _documents(path: str, snapshot: str, group: str) -> dict[str, Any]:
    """Return the metadata of a group and of what is directly in it."""
    zarr = load_zarr(f"{path}: a repository of icechunk")
    store = _store(path, snapshot, os.getpid())
    new = zarr.core.buffer.default_buffer_prototype()
    prefix = f"{group}/" if group else ""
    import asyncio  # 50 ms

    async def read_all() -> dict[str, Any]:
        keys = [VERSION3, *[f"{name}/{VERSION3}" async for name in store.list_dir(group)]]
        contents = await asyncio.gather(*(store.get(f"{prefix}{key}", new) for key in keys))
        pairs = zip(keys, contents, strict=True)
        return {key: json.loads(each.to_bytes()) for key, each in pairs if each is not None}

    with _storage_errors(path):
        documents: dict[str, Any] = zarr.core.sync.sync(read_all())
    if VERSION3 not in documents:
        raise FileFormatError(f"{path}: has no group {group!r} in snapshot {snapshot}")
    return documents
