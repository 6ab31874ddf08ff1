"""Files that reports are written to: whole under their name, or not there at all."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from iobench.errors import IobenchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file to write in parts; nobody ever finds one of them under its name.

    Parameters
    ----------
    path : Path or str
        What is there is replaced at the end, and untouched if there is an error before.

    Yields
    ------
    binary file
        To be written, from the first byte to the last.

    Raises
    ------
    StorageError
        As `write_whole`.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        # A pipe or /dev/stdout: nothing to replace.
        with _told(path), path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{path.name[:80]}.{os.getpid()}.part")
    try:
        with _told(path):
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say of which file it is that the system refused something."""
    try:
        yield
    except IobenchError:
        # What was to be written could not be made: no fault of this file.
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path}: cannot be written ({error.strerror or error}); name another file, or free space"
    )
