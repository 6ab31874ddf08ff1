"""What a sample is, in bytes: the same for the same names, dtypes, shapes and values, however held.

Arrays, tensors of any framework, numbers, texts, and dicts, lists and tuples of these. Strides,
byte order, and whether a sample is alone or a row of a batch make no difference; a list is a
tuple, a Python number the array of no dimension that NumPy makes of it. What a mask covers is no
value, the mask is one; how wide an array of texts is held is none. Digests are XXH3 of 128
bits: fast, and no proof against who wants two samples to look alike.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import MissingExtraError
from iobench.frozen import frozen
from iobench.recording.as_arrays import UndigestibleError as UndigestibleError
from iobench.recording.as_arrays import as_array, unmasked

if TYPE_CHECKING:
    from numpy.typing import NDArray


Parts = list[Any]
"""Buffers whose concatenation is the sample."""
ONE_CALL: Final = 1 << 16
"""Up to so many bytes are put side by side first: a call costs as much as hashing 2 KiB."""
COUNT: Final = struct.Struct("<cI")
TEXT: Final = struct.Struct("<cQ")
TEXTS: Final = frozenset({str, bytes, bytearray, memoryview, type(None)})
BUFFERS: Final = frozenset("fiubc")
"""Kinds of numbers whose arrays are buffers of bytes to anybody."""
TEXT_NAMES: Final = {"U": "<U", "T": "<U", "S": "|S"}
"""Kinds of texts: a batch holds all as wide as its widest, a sample alone does not."""
INT64: Final = (-(1 << 63), 1 << 63)
NO_NAME: Final = object()


@functools.cache
def load_xxhash() -> Any:
    """Return the module that hashes; an extra, since nothing else of a recording needs it.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        return importlib.import_module("xxhash")
    except ImportError as error:
        raise MissingExtraError(
            "digests of samples need xxhash: pip install 'iobench[digest]'"
        ) from error


def sample_digest(sample: Any) -> bytes:
    """Return the 16 bytes that stand for a sample.

    Raises
    ------
    UndigestibleError
        If it holds an object that is none of those named above.
    """
    parts: Parts = []
    try:
        _add(sample, parts)
    except RecursionError as error:
        raise UndigestibleError("a sample holds itself, or too much inside each other") from error
    return _digest(parts)


def batch_digests(batch: Any, n_samples: int) -> list[bytes]:
    """Return the digests of the samples of a batch, each the one it had alone.

    Parameters
    ----------
    batch : object
        What samples are, with arrays that have them as a further, first axis; texts as a list.

    Raises
    ------
    UndigestibleError
        If it holds anything else, or an array of another length.
    """
    if not n_samples:
        return []
    parts: list[bytes | _Column | list[bytes]] = []
    try:
        _add_columns(batch, n_samples, parts)
    except RecursionError as error:
        raise UndigestibleError("a batch holds itself, or too much inside each other") from error
    row_nbytes = sum(
        part.row_nbytes if isinstance(part, _Column) else len(part)
        for part in parts
        if not isinstance(part, list)
    )
    if row_nbytes <= ONE_CALL and not any(isinstance(part, list) for part in parts):
        return _side_by_side(parts, n_samples, row_nbytes)
    return [_digest([_of_row(part, row) for part in parts]) for row in range(n_samples)]


def _side_by_side(parts: Sequence[Any], n_samples: int, row_nbytes: int) -> list[bytes]:
    """Return the digests of small samples: all put into one table, then a call each."""
    table = np.empty((n_samples, row_nbytes), dtype=np.uint8)
    first = 0
    for part in parts:
        nbytes = part.row_nbytes if isinstance(part, _Column) else len(part)
        table[:, first : first + nbytes] = (
            part.rows if isinstance(part, _Column) else np.frombuffer(part, np.uint8)
        )
        first += nbytes
    digest = load_xxhash().xxh3_128_digest
    whole = memoryview(table.data).cast("B")
    return [digest(whole[row * row_nbytes : (row + 1) * row_nbytes]) for row in range(n_samples)]


@frozen
class _Column:
    """The bytes of one array of a batch: a row for each sample."""

    rows: NDArray[np.uint8]

    @property
    def row_nbytes(self) -> int:
        return int(self.rows.shape[1])


def _of_row(part: bytes | _Column | list[bytes], row: int) -> Any:
    if isinstance(part, bytes):
        return part
    return part.rows[row] if isinstance(part, _Column) else part[row]


def _digest(parts: Parts) -> bytes:
    if sum(map(_nbytes, parts)) <= ONE_CALL:
        found: bytes = load_xxhash().xxh3_128_digest(b"".join(parts))
        return found
    state = load_xxhash().xxh3_128()
    for part in parts:
        state.update(part)
    return bytes(state.digest())


def _nbytes(part: Any) -> int:
    return len(part) if type(part) is bytes else int(part.nbytes)


def _add(value: Any, parts: Parts) -> None:
    """Add what stands for a value; what it mostly is comes first."""
    kind = type(value)
    if kind is np.ndarray:
        _add_array(value, "", parts)
    elif kind is dict:
        names = tuple(value)
        for head, name in _plan(names, tuple(map(type, names))):
            parts.append(head)
            if name is not NO_NAME:
                _add(value[name], parts)
    elif kind in (list, tuple):
        parts.append(COUNT.pack(b"l", len(value)))
        for item in value:
            _add(item, parts)
    elif kind in TEXTS:
        parts.append(_text(value))
    elif kind is int and not INT64[0] <= value < INT64[1]:
        parts.append(TEXT.pack(b"i", len(f"{value:x}")) + f"{value:x}".encode())
    else:
        container = _plain_container(value)
        if container is not None:
            _add(container, parts)
        else:
            _add_array(*as_array(value), parts)


@functools.lru_cache(maxsize=256)
def _plan(names: tuple[Any, ...], kinds: tuple[type, ...]) -> list[tuple[bytes, Any]]:
    """Return the names of a dict in order, each with the bytes before its value.

    ``kinds`` are theirs: 1, 1.0 and True are one name to a cache, and none to us.
    """
    del kinds
    head, found = COUNT.pack(b"m", len(names)), []
    for name in sorted(names, key=lambda name: (type(name).__name__, str(name))):
        parts: Parts = [head]
        _add(name, parts)
        found.append((b"".join(parts), name))
        head = b""
    return found or [(head, NO_NAME)]


def _add_array(array: NDArray[Any], name: str, parts: Parts) -> None:
    dtype = array.dtype
    if dtype.kind in BUFFERS and dtype.isnative and array.flags.c_contiguous:
        parts += (_head(dtype, array.shape, name), array)
    elif dtype.kind == "O" or dtype.kind in TEXT_NAMES:
        parts.append(_head(dtype, array.shape, TEXT_NAMES.get(dtype.kind, name)))
        for item in array.reshape(-1).tolist():
            _add(item, parts)
    else:
        plain = _in_order(array)
        parts += (_head(plain.dtype, array.shape, name), plain.reshape(-1).view(np.uint8))


def _in_order(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same values side by side, in little endian."""
    if array.dtype.hasobject:
        raise UndigestibleError(f"a sample holds an array of {array.dtype}, with objects inside")
    dtype = array.dtype.newbyteorder("<")
    return np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)


def _add_columns(value: Any, n_samples: int, parts: list[Any]) -> None:
    """Add what stands for one sample of a batch, with columns where samples differ."""
    container = _plain_container(value)
    if isinstance(container, dict):
        names = tuple(container)
        for head, name in _plan(names, tuple(map(type, names))):
            parts.append(head)
            if name is not NO_NAME:
                _add_columns(container[name], n_samples, parts)
    elif container is not None:
        if len(container) == n_samples and all(type(item) in (str, bytes) for item in container):
            parts.append([_text(item) for item in container])
            return
        parts.append(COUNT.pack(b"l", len(container)))
        for item in container:
            _add_columns(item, n_samples, parts)
    elif value is None:
        parts.append(_text(value))
    else:
        array, name = as_array(value)
        if not array.ndim or len(array) != n_samples or array.dtype.kind == "O":
            raise UndigestibleError(
                f"an array of {array.shape} {array.dtype} in a batch of {n_samples} samples: "
                "expected the samples as its first axis"
            )
        if array.dtype.kind in TEXT_NAMES:
            parts.append(_head(array.dtype, array.shape[1:], TEXT_NAMES[array.dtype.kind]))
            rows_of_texts = array.reshape(n_samples, -1).tolist()
            parts.append([b"".join(map(_text, texts)) for texts in rows_of_texts])
            return
        array = _in_order(array)
        parts.append(_head(array.dtype, array.shape[1:], name))
        rows = array.reshape(n_samples, -1) if array.size else np.empty((n_samples, 0), np.uint8)
        parts.append(_Column(rows.view(np.uint8)))


def _plain_container(value: Any) -> dict[Any, Any] | Sequence[Any] | None:
    """Return what holds other values as a dict or sequence; None of anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    masked = vars(np).get("ma")  # not loaded, there is none: to load it takes 50 ms
    if masked is not None and isinstance(value, masked.MaskedArray):
        return unmasked(value)
    if isinstance(value, (list, tuple)):
        return [*value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None


def _text(value: str | bytes | bytearray | memoryview | None) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, str):
        encoded = value.encode("utf-8", "surrogatepass")
        return TEXT.pack(b"s", len(encoded)) + encoded
    return TEXT.pack(b"b", len(bytes(value))) + bytes(value)


@functools.lru_cache(maxsize=1024)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> bytes:
    """Return what comes before the values of an array, which are in little endian.

    ``name`` is what they are where NumPy has no name for them.
    """
    if name:
        pass
    elif dtype.names is not None:
        name = str(dtype.newbyteorder("<").descr)
    # Types that others have added to NumPy, such as bfloat16, all look like bytes.
    elif dtype.kind == "V" and not dtype.name.startswith("void"):
        name = f"<{dtype.name}"
    else:
        name = dtype.newbyteorder("<").str
    encoded = name.encode()
    numbers = struct.pack(f"<{len(shape)}Q", *shape)
    return COUNT.pack(b"a", len(encoded)) + encoded + COUNT.pack(b"d", len(shape)) + numbers
