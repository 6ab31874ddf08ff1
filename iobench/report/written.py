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
    """Write a file, text as UTF-8, so that no part of it is ever under its name.

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
    """Open a file to write in parts; what was there is replaced at the end, and only then.

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
    # To a pipe or /dev/stdout: nothing to replace.
    is_stream = path.exists() and not path.is_file()
    part = path if is_stream else path.with_name(f".{path.name[:80]}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            if not is_stream:
                file.flush()
                os.fsync(file.fileno())
        if not is_stream:
            part.replace(path)
    except IobenchError:
        # What was to be written could not be made: no fault of this file.
        raise
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); name another file, or free "
            "space"
        ) from error
    finally:
        if not is_stream:
            with suppress(OSError):
                part.unlink()
