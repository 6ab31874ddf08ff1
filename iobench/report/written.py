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
    """Write a file, text as UTF-8, so that no part of it is ever there under its name."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path | str) -> Iterator[BinaryIO]:
    """Open a file to write in parts, which is under its name at the end.

    What is there is replaced then, and untouched if there is an error before: a `StorageError` if
    it cannot be written, as on a full disk.
    """
    path = Path(path)
    is_pipe = path.exists() and not path.is_file()  # or /dev/stdout: nothing to replace
    part = path if is_pipe else path.with_name(f".{path.name[:80]}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            if not is_pipe:
                os.fsync(file.fileno())
        if not is_pipe:
            part.replace(path)
    except BaseException as error:
        if not is_pipe:
            with suppress(OSError):
                part.unlink()
        # An IobenchError is of what was to be written, and no fault of this file.
        if isinstance(error, OSError) and not isinstance(error, IobenchError):
            raise StorageError(
                f"{path}: cannot be written ({error.strerror or error}); name another file, or "
                "free space"
            ) from error
        raise
