"""The files of claims: made exclusively, listed, read and renewed, on disk or as objects."""

from __future__ import annotations

import errno
import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from iobench.files.objects import objects_at
from iobench.files.urls import URL
from iobench.json_files import parse_json
from iobench.stores.atomic import TEMPORARY_SUFFIX, is_local, storage_errors
from iobench.stores.holders import Holder

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.files.objects import Objects

__all__ = [
    "CLAIM_NAME",
    "ClaimFile",
    "create_claim_file",
    "find_claim_files",
    "is_exclusive",
    "read_claim_file",
    "renew_claim_file",
    "time_ns_at",
]

CLAIM_NAME = "iobench.claim"
MAX_CLAIM_NBYTES = 4096
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""How file systems without hard links refuse one."""


@dataclass(frozen=True, slots=True)
class ClaimFile:
    """A claim that was found: the file, which take-over it is of, whose, and its last heartbeat.

    ``holder`` is None while it is being written.
    """

    file: Path
    generation: int
    holder: Holder | None
    beat_ns: int


def time_ns_at(path: Path) -> int:
    """Return what time the folder's file system has: that of a file just written there.

    Of objects it is their server's.
    """
    if not is_local(path):
        objects, key = _objects(path)
        return objects.time_ns_at(f"{key}/")
    probe = path / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    with storage_errors(probe):
        descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)


def create_claim_file(file: Path, holder: Holder) -> bool:
    """Create a claim file unless it is there; whole at once, where the file system has links.

    A file that is created first and filled then is nobody's, for as long as `STALE_S`, if its
    writer is killed in between.
    """
    data = json.dumps(asdict(holder)).encode()
    if not is_local(file):
        objects, key = _objects(file)
        return objects.create(key, data)
    temporary = file.with_name(f".{holder.token}{TEMPORARY_SUFFIX}")
    with storage_errors(file):
        try:
            _write_new(temporary, data)
            os.link(temporary, file)
        except FileExistsError:
            return False
        except FileNotFoundError:
            if not file.parent.exists():
                raise
            return False  # swept away by who held the folder until now
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                _write_new(file, data)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
    return True


def _write_new(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, data)
    except OSError:
        file.unlink(missing_ok=True)  # a full disk: nobody has claimed anything
        raise
    finally:
        os.close(descriptor)


def find_claim_files(path: Path) -> list[ClaimFile]:
    """Return the claims on a folder, by generation."""
    if is_local(path):
        with storage_errors(path):
            try:  # not glob: folders of shards go while we look
                names = os.listdir(path)  # noqa: PTH208
            except FileNotFoundError:
                names = []
        names = [name for name in names if name.startswith(CLAIM_NAME)]
    else:
        objects, key = _objects(path)
        names = [found[len(key) + 1 :] for found in objects.find(f"{key}/{CLAIM_NAME}")]
    found = [one for name in names if (one := read_claim_file(path / name)) is not None]
    return sorted(found, key=lambda one: one.generation)


def read_claim_file(file: Path) -> ClaimFile | None:
    """Return what a claim says; None if it is none, or is gone."""
    generation = file.name.removeprefix(CLAIM_NAME).removeprefix(".")
    if generation and not generation.isdecimal():
        return None
    try:
        text, beat_ns = _read_with_time(file)
    except FileNotFoundError:
        return None
    try:
        holder = Holder(**parse_json(text))
    except (ValueError, TypeError):
        holder = None  # just created, or its writer was killed between two system calls
    return ClaimFile(file, int(generation or 0), holder, beat_ns)


def renew_claim_file(file: Path) -> None:
    """Give a claim the time it is now; raise FileNotFoundError if it is gone."""
    if is_local(file):
        os.utime(file)
        return
    objects, key = _objects(file)
    objects.touch(key)


def is_exclusive(path: Path) -> bool:
    """Whether a claim on the folder cannot be given to two processes at once."""
    if is_local(path):
        return True
    objects, key = _objects(path)
    return objects.is_exclusive(f"{key}/{CLAIM_NAME}")


def _read_with_time(file: Path) -> tuple[bytes, int]:
    if not is_local(file):
        objects, key = _objects(file)
        beat_ns = objects.stat(key).st_mtime_ns
        return objects.read(key)[:MAX_CLAIM_NBYTES], beat_ns
    with storage_errors(file), file.open("rb") as stream:
        beat_ns = os.fstat(stream.fileno()).st_mtime_ns
        return stream.read(MAX_CLAIM_NBYTES), beat_ns


def _objects(place: Path) -> tuple[Objects, str]:
    assert isinstance(place, URL)
    return objects_at(place)
