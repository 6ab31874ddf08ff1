"""Values of structs, numbers and arrays as a text and bytes, and back.

What many files have in common (names, dtypes, codecs) goes into the text, which is then the same
for all of them; whole numbers and arrays go into the bytes. Nothing in either is run: a text names
only classes that its reader has listed.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

Kinds = tuple[type[msgspec.Struct], ...]
"""The structs that a value may be made of."""
Packed = tuple[bytes, bytes]
"""A text and bytes."""
INT64: Final = np.iinfo(np.int64)
ARRAY_KINDS: Final = "biufcmMSU"
ALIGNMENT: Final = 8


def describe_kinds(kinds: Kinds) -> str:
    """Return what of the classes must not have changed for packed values to be read."""
    told = [[kind.__qualname__, *_types(kind).items()] for kind in kinds]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()


def pack_value(value: Any, kinds: Kinds, path: Path) -> Packed:
    """Return a value as text and bytes."""
    packer = _Packer(kinds, path)
    text = json.dumps(packer.spell(value), separators=(",", ":"))
    return text.encode(), packer.content()


def unpack_value(packed: Packed, kinds: Kinds, path: Path) -> Any:
    """Return the value that `pack_value` was given; its arrays cannot be written."""
    text, content = packed
    try:
        is_constant, made = _reader(text, kinds)
        return made if is_constant else made(_Values(content, path))
    except (TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a packed value: {error}") from error


def _types(kind: type[msgspec.Struct]) -> dict[str, str]:
    bases = reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)])
    types = {name: str(hint) for base in bases for name, hint in base.__annotations__.items()}
    return {name: types[name] for name in kind.__struct_fields__}


class _Packer:
    """Collects the whole numbers and the arrays of a value."""

    def __init__(self, kinds: Kinds, path: Path) -> None:
        self.places = {kind: (number, kind.__struct_fields__) for number, kind in enumerate(kinds)}
        self.path = path
        self.ints: list[int] = []
        self.arrays: list[bytes] = []

    def content(self) -> bytes:
        ints = np.array(self.ints, dtype="<i8").tobytes()
        padded = [each + bytes(-len(each) % ALIGNMENT) for each in self.arrays]
        return b"".join([len(self.ints).to_bytes(ALIGNMENT, "little"), ints, *padded])

    def spell(self, value: Any) -> Any:
        """Return what the text says of a value."""
        if value is None or type(value) in (bool, float, str):
            return value
        if type(value) is int:
            return self._int(value)
        if type(value) in (tuple, list):
            return self._sequence(value)
        if isinstance(value, Mapping):
            if not all(type(key) is str for key in value):
                raise TypeError("a mapping by other keys than texts")
            return ["d", list(value), [self.spell(each) for each in value.values()]]
        if type(value) in self.places:
            number, names = self.places[type(value)]
            return ["c", number, *(self.spell(getattr(value, name)) for name in names)]
        if isinstance(value, np.ndarray | np.generic):
            return self._numbers(value)
        if type(value) is type(self.path) and value == self.path:
            return ["p"]
        raise TypeError(f"a {type(value).__name__} cannot be kept")

    def _int(self, value: int) -> Any:
        if not INT64.min <= value <= INT64.max:
            return ["j", str(value)]
        self.ints.append(value)
        return ["i"]

    def _sequence(self, value: Sequence[Any]) -> Any:
        if all(type(each) is int and INT64.min <= each <= INT64.max for each in value):
            self.ints += value
            return ["I" if type(value) is tuple else "L", len(value)]
        kind = "t" if type(value) is tuple else "l"
        return [kind, *(self.spell(each) for each in value)]

    def _numbers(self, value: np.ndarray[Any, Any] | np.generic) -> Any:
        if value.dtype.kind not in ARRAY_KINDS:
            raise TypeError(f"numbers of dtype {value.dtype} cannot be kept")
        if isinstance(value, np.generic):
            return ["n", value.dtype.str, value.tobytes().hex()]
        self.ints += value.shape
        self.arrays.append(value.tobytes())
        return ["a", value.dtype.str, value.ndim]


class _Values:
    """Gives out the whole numbers and the arrays of a value, in order."""

    __slots__ = ("at", "content", "ints", "offset", "path")

    def __init__(self, content: bytes, path: Path) -> None:
        count = int.from_bytes(content[:ALIGNMENT], "little")
        self.ints: list[int] = np.frombuffer(content, "<i8", count, ALIGNMENT).tolist()
        self.at, self.offset = 0, ALIGNMENT * (1 + count)
        self.content, self.path = content, path

    def take(self, count: int) -> list[int]:
        taken = self.ints[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError("too few numbers")
        self.at += count
        return taken

    def array(self, dtype: np.dtype[Any], ndim: int) -> np.ndarray[Any, Any]:
        shape = self.take(ndim)
        count = 1
        for length in shape:
            count *= length
        found = np.frombuffer(self.content, dtype, count, self.offset) if count else None
        nbytes = count * dtype.itemsize
        self.offset += nbytes + -nbytes % ALIGNMENT
        return np.empty(shape, dtype) if found is None else found.reshape(shape)


_Reader = tuple[bool, Any]
"""Whether it is the value itself, the same for all files; else what makes it of `_Values`."""


@functools.lru_cache(maxsize=4096)
def _reader(text: bytes, kinds: Kinds) -> _Reader:
    return _compiled(json.loads(text), kinds)


def _compiled(spelling: Any, kinds: Kinds) -> _Reader:
    if not isinstance(spelling, list):
        return True, spelling
    what, *rest = spelling
    if what == "i":
        return False, lambda values: values.take(1)[0]
    if what in ("I", "L"):
        return False, functools.partial(_taken, tuple if what == "I" else list, int(rest[0]))
    if what == "a":
        return False, functools.partial(_array, _dtype(rest[0]), int(rest[1]))
    if what == "p":
        return False, lambda values: values.path
    if what == "n":
        return True, np.frombuffer(bytes.fromhex(rest[1]), _dtype(rest[0]))[0]
    if what == "j":
        return True, int(rest[0])
    if what == "c":
        return _joined(kinds[rest[0]], rest[1:], kinds, by_position=True)
    if what == "d":
        names = [str(name) for name in rest[0]]
        return _joined(lambda each: dict(zip(names, each, strict=True)), rest[1], kinds)
    return _joined({"t": tuple, "l": list}[what], rest, kinds)


def _dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(str(text))
    if dtype.kind not in ARRAY_KINDS:
        raise ValueError(f"numbers of dtype {dtype}")
    return dtype


def _taken(
    make: Callable[[list[int]], Sequence[int]], count: int, values: _Values
) -> Sequence[int]:
    return make(values.take(count))


def _array(dtype: np.dtype[Any], ndim: int, values: _Values) -> np.ndarray[Any, Any]:
    return values.array(dtype, ndim)


def _joined(
    make: Callable[..., Any], spellings: Sequence[Any], kinds: Kinds, *, by_position: bool = False
) -> _Reader:
    """Return what makes a value of its parts; the value, where all parts are constant."""
    parts = [_compiled(spelling, kinds) for spelling in spellings]
    if all(is_constant for is_constant, _ in parts) and make is not list:
        made = [value for _, value in parts]
        return True, make(*made) if by_position else make(made)

    def read(values: _Values) -> Any:
        each = [part if is_constant else part(values) for is_constant, part in parts]
        return make(*each) if by_position else make(each)

    return False, read
