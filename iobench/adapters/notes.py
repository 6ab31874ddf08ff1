"""What adapters note of a call: bytes of what came back, names of what was read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.outside import OutsideSpan

__all__ = ["file_name", "note_array", "note_bytes", "note_name", "note_path"]


def note_array(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Note the bytes of an array or scalar that came back."""
    nbytes = result.nbytes
    span.nbytes = nbytes if isinstance(nbytes, int) else -1


def note_bytes(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Note the length of the bytes that came back."""
    span.nbytes = len(result)


def note_name(position: int, keyword: str) -> Callable[[OutsideSpan, Any, Any, Any], None]:
    """Return a note of the file named by an argument."""

    def note(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.detail = file_name(args[position] if len(args) > position else kwargs.get(keyword))

    return note


def note_path(position: int, keyword: str) -> Callable[[OutsideSpan, Any, Any, Any], None]:
    """Return a note of the file named by an argument, and of its size."""
    name = note_name(position, keyword)

    def note(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        name(span, result, args, kwargs)
        if span.detail:
            span.nbytes = os.stat(span.detail).st_size  # noqa: PTH116 - costs a tenth of a Path's

    return note


def file_name(file: Any) -> str:
    """Return the name of a file given as a path or as an open file; ``""`` if it has none."""
    if isinstance(file, str):
        return file
    if isinstance(file, bytes | os.PathLike):
        return os.fsdecode(file)
    name = getattr(file, "name", "")
    return name if isinstance(name, str) else ""
