"""HDF5's filters, undone: inflating, unshuffling, checksums."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "DEFLATE",
    "FILTERS",
    "INFLATED_NBYTES",
    "SHUFFLE",
    "fletcher32",
    "inflate_in_slices",
    "undo_filter",
    "unshuffle",
]

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
FILTERS = (DEFLATE, SHUFFLE, FLETCHER32)
"""HDF5 filter numbers that are undone here."""

SLICE_NBYTES = 1 << 18
INFLATED_NBYTES = 1 << 20
"""A slice of constant numbers inflates to a thousand times its size, if it is let."""


def undo_filter(
    number: int, content: memoryview | bytes, *, itemsize: int, expected: int
) -> memoryview | bytes:
    """Undo one filter.

    Parameters
    ----------
    number : int
        One of `FILTERS`.
    content : bytes-like
        What the filter made.
    itemsize, expected : int
        Bytes of a number, and of the chunk before any filter.

    Raises
    ------
    zlib.error, ValueError, EOFError
        If the content is damaged.
    """
    if number == DEFLATE:
        return inflate(content, expected)
    return unshuffle(content, itemsize) if number == SHUFFLE else check_fletcher32(content)


def _library() -> tuple[Any, type[Exception]]:
    """Return isa-l where it is installed (twice as fast), else zlib, and what it raises."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib, zlib.error
    # Its stubs say that the class is an instance.
    return isal_zlib, cast("type[Exception]", isal_zlib.error)


def inflate_in_slices(content: memoryview | bytes) -> Iterator[bytes]:
    """Yield what was deflated, some 100 KB at a time, which stay in the processor's cache.

    Raises
    ------
    zlib.error, EOFError
        If the content is damaged, or ends before its checksum.
    """
    library, failure = _library()
    inflating = library.decompressobj()
    for start in range(0, len(content), SLICE_NBYTES):
        waiting = content[start : start + SLICE_NBYTES]
        while len(waiting) and not inflating.eof:
            try:
                inflated = inflating.decompress(waiting, INFLATED_NBYTES)
            except failure as error:
                raise zlib.error(str(error)) from error
            waiting = inflating.unconsumed_tail
            yield inflated
    while not inflating.eof:
        inflated = inflating.decompress(b"", INFLATED_NBYTES)
        if not inflated:
            raise EOFError("its compressed bytes end early")
        yield inflated


def inflate(content: memoryview | bytes, expected: int) -> bytes:
    """Return what was deflated: ``expected`` bytes, if nothing is wrong; never many more.

    What checksums and shuffling add fits in as many again.
    """
    library, failure = _library()
    inflating = library.decompressobj()
    try:
        inflated: bytes = inflating.decompress(content, 2 * expected + SLICE_NBYTES)
    except failure as error:
        raise zlib.error(str(error)) from error
    if not inflating.eof:
        long = len(inflated) > expected
        raise EOFError(
            f"it inflates to more than {len(inflated)} bytes, expected {expected}"
            if long
            else "its compressed bytes end early"
        )
    return inflated


def unshuffle(content: memoryview | bytes, itemsize: int) -> memoryview:
    """Undo HDF5's shuffle: byte 0 of all numbers, then byte 1 of all, then what is left over."""
    flat = np.frombuffer(content, dtype=np.uint8)
    whole = len(flat) // itemsize * itemsize
    values = np.empty(len(flat), dtype=np.uint8)
    numbers, planes = values[:whole].reshape(-1, itemsize), flat[:whole].reshape(itemsize, -1)
    for byte in range(itemsize):  # a quarter of the time that the transposed takes
        numbers[:, byte] = planes[byte]
    values[whole:] = flat[whole:]
    return values.data


def fletcher32(content: memoryview | bytes) -> int:
    """Return HDF5's Fletcher-32 checksum: of big-endian 16-bit words, an odd byte comes last."""
    flat = np.frombuffer(content, dtype=np.uint8)
    even = len(flat) // 2 * 2
    words = flat[:even].view(">u2").astype(np.int64)
    if even < len(flat):
        words = np.append(words, np.int64(flat[-1]) << 8)
    weights = np.arange(len(words), 0, -1, dtype=np.int64) % 0xFFFF
    sums = int(words.sum()), int((words * weights).sum())
    # In ones' complement a sum that is not zero never folds to zero.
    low, high = (total % 0xFFFF or (0xFFFF if total else 0) for total in sums)
    return high << 16 | low


def check_fletcher32(content: memoryview | bytes) -> memoryview:
    """Return ``content`` without its last four bytes, the checksum; raise ValueError if wrong."""
    view = memoryview(content)
    stored = int.from_bytes(view[-4:], "little")
    found = fletcher32(view[:-4])
    # HDF5 1.6.2 wrote the two bytes of each half swapped; every HDF5 since accepts both.
    swapped = (found & 0x00FF00FF) << 8 | (found >> 8) & 0x00FF00FF
    if stored not in (found, swapped):
        raise ValueError(f"checksum {found:#010x} instead of {stored:#010x}")
    return view[:-4]
