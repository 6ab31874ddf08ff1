"""Files that reports are written to: whole under their name, or not there at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from iobench.errors import StorageError

__all__ = ["write_whole"]


def write_whole(path: Path | str, content: str | bytes) -> None:
    """Write a file so that nobody ever finds a part of it under its name.

    Parameters
    ----------
    path : Path or str
        What is there is replaced once all is written.
    content : str or bytes
        Text is written as UTF-8.

    Raises
    ------
    StorageError
        If it cannot be written, as on a full disk; what was there is then untouched.
    """
    path = Path(path)
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        # A pipe or /dev/stdout: nothing to replace.
        _write_through(path, data)
        return
    part = path.with_name(f".{path.name[:80]}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise _cannot_write(path, error) from error


def _write_through(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(data)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path}: cannot be written ({error.strerror or error}); name another file, or make room"
    )
