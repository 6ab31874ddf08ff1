"""Chunks as they are stored: plain, or by Blosc, lz4 behind a byte shuffle.

The same bytes on every machine.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import MissingExtraError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

BLOSC_LEVEL: Final = 5
BLOSC_SHUFFLE: Final = 1
BLOSC_HEADER_NBYTES: Final = 16


def load_blosc() -> Any:
    """Return ``numcodecs.blosc``; raise MissingExtraError where it is not installed."""
    try:
        from numcodecs import blosc
    except ImportError as error:
        raise MissingExtraError(
            "codec=blosc-lz4 needs numcodecs: pip install 'iobench[zarr]'"
        ) from error
    return blosc


def compressor() -> Callable[[NDArray[Any]], bytes]:
    """Return what compresses a chunk; it is for threads that are not the main one.

    There Blosc may use threads of its own, which lay a chunk's blocks down in the order they finish
    in: the bytes would differ from run to run.
    """
    blosc = load_blosc()

    def compress(chunk: NDArray[Any]) -> bytes:
        if threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(compress, chunk).result()
        stored: bytes = blosc.compress(_plain(chunk), b"lz4", BLOSC_LEVEL, BLOSC_SHUFFLE)
        return stored

    return compress


def decompress(
    data: memoryview, n_chunks: int, nbytes: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Return the bytes of chunks that lie one after another."""
    undo = load_blosc().decompress
    chunks = np.empty(n_chunks * nbytes, dtype=np.uint8) if out is None else out
    position = 0
    for start in range(0, chunks.size, nbytes):
        stored = _chunk_at(data[position:], nbytes)
        try:
            undo(stored, chunks[start : start + nbytes])
        except (RuntimeError, ValueError) as error:
            raise StoreError("a chunk cannot be decompressed; verify the store") from error
        position += len(stored)
    if position != len(data):
        raise StoreError(f"{len(data) - position} bytes too many behind a chunk; verify the store")
    return chunks


def _chunk_at(data: memoryview, nbytes: int) -> memoryview:
    """Return the chunk that begins here; its header must announce ``nbytes``.

    Blosc believes a header: sizes that are not true would make it read past the end. Source:
    README_CHUNK_FORMAT of c-blosc, size of the numbers at byte 4, of the chunk at byte 12.
    """
    plain, stored = (int.from_bytes(data[at : at + 4], "little") for at in (4, 12))
    if plain != nbytes or not BLOSC_HEADER_NBYTES <= stored <= len(data):
        raise StoreError(f"a chunk of {nbytes} bytes has a damaged header; verify the store")
    return data[:stored]


def _plain(chunk: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of the same size that export a buffer of a kind every library knows."""
    itemsize = chunk.dtype.itemsize
    return chunk.reshape(-1).view({1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[itemsize])
