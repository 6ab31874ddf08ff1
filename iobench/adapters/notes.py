"""What adapters note of a call: bytes of what came back, names of what was read."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.outside import OutsideSpan


def note_array(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Note the bytes of an array or scalar that came back."""
    nbytes = result.nbytes
    span.nbytes = nbytes if isinstance(nbytes, int) else -1


def note_arrays(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Note the bytes of the arrays in a sample, as `arrays_nbytes`."""
    span.nbytes = arrays_nbytes(result)


def arrays_nbytes(sample: Any) -> int:
    """Return the bytes of the arrays in a sample; names and single numbers are left out.

    Raises
    ------
    AttributeError
        If it holds anything else: an image has no such size.
    """
    items = sample.values() if isinstance(sample, dict) else sample
    items = items if isinstance(sample, dict | list | tuple) else (sample,)
    total = 0
    for item in items:
        if isinstance(item, bytes | bytearray):
            total += len(item)
        elif item is not None and not isinstance(item, str | int | float):
            total += int(item.nbytes)
    return total


def note_bytes(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Note the length of the bytes that came back."""
    span.nbytes = len(result)


def note_name(position: int, keyword: str) -> Callable[[OutsideSpan, Any, Any, Any], None]:
    """Return a note of the file named by an argument."""

    def note(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.detail = file_name(args[position] if len(args) > position else kwargs.get(keyword))

    return note


def note_path(position: int, keyword: str) -> Callable[[OutsideSpan, Any, Any, Any], None]:
    """Return a note of the file that a call reads and decodes, and of its size."""

    def note(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        file = args[position] if len(args) > position else kwargs.get(keyword)
        span.detail = file_name(file)
        if in_memory(file):
            span.kind, span.label = Kind.DECODE, ""
        if span.detail:
            span.nbytes = os.stat(span.detail).st_size  # noqa: PTH116 - costs a tenth of a Path's

    return note


def in_memory(file: Any) -> bool:
    """Say whether what is to be read lies in memory: somebody else has read it before."""
    return isinstance(file, io.BytesIO | io.StringIO)


def file_name(file: Any) -> str:
    """Return the name of a file given as a path or as an open file; ``""`` if it has none."""
    if isinstance(file, str):
        return file
    if isinstance(file, bytes | os.PathLike):
        return os.fsdecode(file)
    name = getattr(file, "name", "")
    return name if isinstance(name, str) else ""
