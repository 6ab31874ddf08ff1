"""What a sample is, in bytes: the same for the same names, dtypes, shapes and values, however held.

Arrays, tensors of any framework, numbers, texts, and dicts, lists and tuples of these. Strides,
byte order, and whether a sample is alone or a row of a batch make no difference; a list is a
tuple, a Python number the array of no dimension that NumPy makes of it. Digests are XXH3 of 128
bits: fast, and no proof against who wants two samples to look alike.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["UndigestibleError", "batch_digests", "load_xxhash", "sample_digest"]

Parts = list[Any]
"""Buffers whose concatenation is the sample."""
ONE_CALL: Final = 1 << 16
"""Up to so many bytes are put side by side first: a call costs as much as hashing 2 KiB."""
COUNT: Final = struct.Struct("<cI")
TEXT: Final = struct.Struct("<cQ")
AS_ARRAY: Final = ("__array__", "__array_interface__")
NUMBERS: Final = (bool, int, float, complex, np.generic)


class UndigestibleError(TypeError):
    """A sample holds something whose value nobody can tell from outside."""


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
    _add(sample, parts)
    return _digest(parts)


def batch_digests(batch: Any, n_samples: int) -> list[bytes]:
    """Return the digests of the samples of a batch, each the one it had alone.

    Parameters
    ----------
    batch : object
        What samples are, with arrays that have them as a further, first axis; texts as a list.
    n_samples : int

    Raises
    ------
    UndigestibleError
        If it holds anything else, or an array of another length.
    """
    parts: list[bytes | _Column | list[bytes]] = []
    _add_columns(batch, n_samples, parts)
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


@dataclasses.dataclass(frozen=True, slots=True)
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
    if sum(len(part) for part in parts) <= ONE_CALL:
        parts = [b"".join(parts)]
    state = load_xxhash().xxh3_128()
    for part in parts:
        state.update(part)
    found: bytes = state.digest()
    return found


def _add(value: Any, parts: Parts) -> None:
    """Add what stands for a value."""
    value = _plain_container(value)
    if isinstance(value, Mapping):
        parts.append(COUNT.pack(b"m", len(value)))
        for name in _sorted_names(value):
            _add(name, parts)
            _add(value[name], parts)
    elif isinstance(value, (list, tuple)):
        parts.append(COUNT.pack(b"l", len(value)))
        for item in value:
            _add(item, parts)
    elif isinstance(value, (str, bytes, bytearray, memoryview)) or value is None:
        parts.append(_text(value))
    else:
        name, array = _array(value)
        if array.dtype.kind == "O":
            parts.append(_head("object", array.shape))
            for item in array.reshape(-1).tolist():
                _add(item, parts)
            return
        parts.append(_head(name, array.shape))
        parts.append(array.reshape(-1).view(np.uint8))


def _add_columns(value: Any, n_samples: int, parts: list[Any]) -> None:
    """Add what stands for one sample of a batch, with columns where samples differ."""
    value = _plain_container(value)
    if isinstance(value, Mapping):
        parts.append(COUNT.pack(b"m", len(value)))
        for name in _sorted_names(value):
            of_name: Parts = []
            _add(name, of_name)
            parts += [bytes(part) for part in of_name]
            _add_columns(value[name], n_samples, parts)
    elif isinstance(value, (list, tuple)):
        if len(value) == n_samples and all(isinstance(item, (str, bytes)) for item in value):
            parts.append([_text(item) for item in value])
            return
        parts.append(COUNT.pack(b"l", len(value)))
        for item in value:
            _add_columns(item, n_samples, parts)
    elif value is None:
        parts.append(_text(value))
    else:
        name, array = _array(value)
        if not array.ndim or len(array) != n_samples or array.dtype.kind == "O":
            raise UndigestibleError(
                f"an array of {array.shape} {array.dtype} in a batch of {n_samples} samples: "
                "expected the samples as its first axis"
            )
        parts.append(_head(name, array.shape[1:]))
        rows = array.reshape(n_samples, -1) if array.size else np.empty((n_samples, 0), np.uint8)
        parts.append(_Column(rows.view(np.uint8)))


def _plain_container(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return value


def _sorted_names(value: Mapping[Any, Any]) -> list[Any]:
    return sorted(value, key=lambda name: (type(name).__name__, str(name)))


def _text(value: str | bytes | bytearray | memoryview | None) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, str):
        encoded = value.encode("utf-8", "surrogatepass")
        return TEXT.pack(b"s", len(encoded)) + encoded
    return TEXT.pack(b"b", len(bytes(value))) + bytes(value)


def _head(name: str, shape: tuple[int, ...]) -> bytes:
    """Return what comes before the values of an array."""
    encoded = name.encode()
    numbers = struct.pack(f"<{len(shape)}Q", *shape)
    return COUNT.pack(b"a", len(encoded)) + encoded + COUNT.pack(b"d", len(shape)) + numbers


def _array(value: Any) -> tuple[str, NDArray[Any]]:
    """Return the name of a dtype, and the values as a C-contiguous array in little endian."""
    named = _of_torch(value)
    if named is not None:
        return named
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, NUMBERS) or any(hasattr(value, name) for name in AS_ARRAY):
        array = np.asarray(value)
    else:
        kind = type(value)
        raise UndigestibleError(
            f"a sample holds a {kind.__module__}.{kind.__qualname__}, whose value cannot be told: "
            "expected arrays, tensors, numbers, texts, and dicts, lists and tuples of these"
        )
    dtype = array.dtype.newbyteorder("<")
    array = np.ascontiguousarray(array, dtype=dtype).reshape(array.shape)
    if dtype.names is not None:
        return str(dtype.descr), array
    # Types that others have added to NumPy, such as bfloat16, all look like bytes.
    is_added = dtype.kind == "V" and dtype.name.partition("void")[1] == ""
    return (f"<{dtype.name}" if is_added else dtype.str), array


def _of_torch(value: Any) -> tuple[str, NDArray[Any]] | None:
    """Return the same of a tensor of torch's; None of anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided:
        raise UndigestibleError(f"a sample holds a tensor of layout {value.layout}; make it dense")
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    try:
        array = plain.numpy()
    except TypeError:  # NumPy has no such numbers
        same_width = {1: torch.uint8, 2: torch.int16}.get(plain.element_size())
        if same_width is None:
            raise UndigestibleError(f"a sample holds a tensor of {value.dtype}") from None
        name = str(value.dtype).removeprefix("torch.")
        return f"<{name}", plain.view(same_width).numpy()
    return array.dtype.newbyteorder("<").str, array
