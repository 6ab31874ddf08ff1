"""JSON that somebody else wrote: read without waiting, without end and without a deep stack.

A file that is no file (a pipe, a device) would be waited for; one of any size would fill the
memory; lists in lists end Python's stack, here or where the values are used. `read_fields` makes a
dataclass of it, by the types of its fields.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import math
import os
import stat
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

MAX_NBYTES = 1 << 28
LARGEST_NBYTES = 1 << 40
"""Of files that grow with a run: the disk bounds them."""

MAX_DEPTH = 100
"""Lists and objects in each other; Python's own reader and writers stop at about 1,000."""


def open_regular(path: str | Path) -> int:
    """Return a descriptor of a file of this machine, for reading; of nothing that is waited for.

    Raises
    ------
    OSError
        If it cannot be opened, or is no regular file: a pipe, a device, a socket.
    """
    # Without O_NONBLOCK a pipe is opened once somebody writes to it. It means nothing to files.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is a pipe or device, not a file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_small_file(path: Path, *, limit: int = MAX_NBYTES) -> bytes:
    """Return all bytes of a file that is no longer than ``limit``, here or behind a URL.

    Raises
    ------
    OSError
        If it cannot be read, is no regular file or is longer.
    """
    if not isinstance(path, PurePath):  # an address, with the face of a path
        return path.read_bytes()
    with os.fdopen(open_regular(path), "rb") as stream:
        if (size := os.fstat(stream.fileno()).st_size) > limit:
            raise OSError(errno.EFBIG, f"has {size} bytes, more than {limit}", str(path))
        return stream.read(size)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_FINITE: Final[dict[str, Any]] = {"parse_constant": lambda _: None, "parse_float": _finite}


def parse_json(data: bytes | str, *, finite: bool = False) -> Any:
    """Return the values of a JSON text.

    With ``finite``, None stands for NaN and infinities, which are no JSON, and for numbers too
    large for a float: who counts with them knows nothing, and who passes them on writes no JSON.

    Raises
    ------
    ValueError
        If it is none, or has lists in lists beyond what any writer of ours or others makes.
    """
    try:
        values = json.loads(data, **(_FINITE if finite else {}))
    except RecursionError:
        raise ValueError("lists in lists without end") from None
    level: list[Any] = [values] if isinstance(values, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return values
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [each for part in inner for each in part if isinstance(each, dict | list)]
    raise ValueError(f"more than {MAX_DEPTH} lists in each other")


def read_json(path: Path, *, limit: int = MAX_NBYTES, finite: bool = False) -> Any:
    """Return the values of a JSON file; ``finite`` as for `parse_json`.

    Raises
    ------
    OSError
        As `read_small_file`.
    ValueError
        As `parse_json`, or where it is no UTF-8.
    """
    return parse_json(read_small_file(path, limit=limit), finite=finite)


LARGEST: Final = 2**40
LARGEST_SUM: Final = 2**57
"""Of nanoseconds, microjoules and bytes: four years of time."""
_hints: Final[Callable[[Any], dict[str, Any]]] = functools.cache(get_type_hints)


def is_struct(kind: type) -> bool:
    """Return whether a class has fields that are declared: a struct, or a dataclass."""
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)


def field_names(kind: type) -> Sequence[str]:
    """Return the fields of a struct or dataclass."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]


def read_fields(kind: type[T], told: Mapping[str, Any], *, lenient: bool = False) -> T:
    """Return a dataclass of what a JSON object says under the names of its fields.

    What it does not say has the field's default.

    Parameters
    ----------
    kind : type
        Its fields are of ``bool``, ``int``, ``float``, ``str``, dataclasses, lists, tuples and
        mappings of these, of any of these or None, or of ``Any``.
    lenient : bool
        Give the default also to a field whose value is of another type, here and inside of it.

    Raises
    ------
    ValueError
        If a value is of another type, or a number larger than can be; unless ``lenient``.
    TypeError
        If a field without default is not there.
    """
    result = {}
    for name in field_names(kind):
        if name in told:
            hint = _hints(kind)[name]
            try:
                result[name] = _typed(told[name], hint, name, lenient)
            except (TypeError, ValueError):
                if not lenient:
                    raise
    return kind(**result)


def _typed(value: Any, hint: Any, name: str, lenient: bool) -> Any:
    kind, of = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return value
    if kind is types.UnionType:
        if value is None:
            return None
        return _typed(value, next(each for each in of if each is not type(None)), name, lenient)
    if isinstance(value, list | tuple) and kind in (list, tuple):
        each_of = of if kind is tuple and of[-1] is not ... else of[:1] * len(value)
        if len(each_of) == len(value):
            parts = zip(value, each_of, strict=True)
            return kind(_typed(part, its, name, lenient) for part, its in parts)
    elif isinstance(value, dict) and kind in (dict, Mapping):
        return {str(key): _typed(part, of[1], name, lenient) for key, part in value.items()}
    elif isinstance(value, dict) and isinstance(hint, type) and is_struct(hint):
        return read_fields(hint, value, lenient=lenient)
    elif kind is float and type(value) is int:
        return float(value)
    elif kind is int and type(value) is int:
        if abs(value) < (LARGEST_SUM if name.endswith(("_ns", "_uj", "nbytes")) else LARGEST):
            return value
    elif type(value) is kind:
        return value
    raise ValueError(f"{name} is {str(value)[:40]!r}, expected {getattr(hint, '__name__', hint)}")
