"""Chunks as they are stored: plain, or by Blosc, lz4 behind a byte shuffle.

The same bytes on every machine.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.datasets import available_cpus
from iobench.errors import MissingExtraError, StoreError
from iobench.stores import crc32c, crc32c_of_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

BLOSC_LEVEL: Final = 5
BLOSC_SHUFFLE: Final = 1
BLOSC_HEADER_NBYTES: Final = 16
BLOSC_FLAGS_AT: Final = 2
BLOSC_IS_COPY: Final = 0x2
MIN_BLOSC_NBYTES: Final = 128
"""Shorter chunks Blosc only copies (``BLOSC_MIN_BUFFERSIZE`` of blosc.h)."""
SMALL_NBYTES: Final = 1 << 16


class StoredRows(NamedTuple):
    """The chunks of several samples, as they are in the file of their array."""

    data: Any
    """A buffer of bytes."""
    lengths: NDArray[np.int64]
    """Of each chunk, in bytes."""
    checksums: NDArray[np.uint32]
    """CRC-32C of the chunks of each sample."""


def stored_plainly(chunks: NDArray[Any]) -> StoredRows:
    """Return chunks, of shape (samples, chunks, numbers), as they are stored without a codec."""
    octets = chunks.reshape(-1).view(np.uint8)
    lengths = np.full(chunks[..., 0].size, chunks[0, 0].nbytes, dtype=np.int64)
    return StoredRows(octets.data, lengths, crc32c_of_rows(octets.reshape(len(chunks), -1)))


def load_blosc() -> Any:
    """Return ``numcodecs.blosc``; raise MissingExtraError where it is not installed."""
    try:
        from numcodecs import blosc
    except ImportError as error:
        raise MissingExtraError(
            "codec=blosc-lz4 needs numcodecs: pip install 'iobench[zarr]'"
        ) from error
    return blosc


class ChunkCompressor:
    """Compresses chunks in threads of its own.

    In the main thread Blosc may use threads of its own, which lay a chunk's blocks down in the
    order they finish in: the bytes would differ from run to run.
    """

    def __init__(self) -> None:
        self._compress: Callable[..., bytes] = load_blosc().compress
        self._n_threads = available_cpus()
        self._pool = ThreadPoolExecutor(self._n_threads, thread_name_prefix="iobench-blosc")

    def compressed(self, chunks: Sequence[NDArray[Any]]) -> Iterator[bytes]:
        """Return chunks, compressed, in order; they must stay as they are until then."""
        # Threads that compress small chunks would mostly wait for one another's interpreter.
        are_small = sum(chunk.nbytes for chunk in chunks) < SMALL_NBYTES * len(chunks)
        step = max(1, -(-len(chunks) // (1 if are_small else 4 * self._n_threads)))
        parts = [chunks[at : at + step] for at in range(0, len(chunks), step)]
        return chain.from_iterable(self._pool.map(self._all, parts))

    def start(self, chunks: NDArray[Any], room: NDArray[np.uint8]) -> list[Future[StoredRows]]:
        """Begin to compress gathered chunks, which must stay as they are until that is done."""
        step = max(1, -(-len(chunks) // self._n_threads))
        return [
            self._pool.submit(self._rows, chunks[at : at + step], room[at : at + step])
            for at in range(0, len(chunks), step)
        ]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _rows(self, chunks: NDArray[Any], room: NDArray[np.uint8]) -> StoredRows:
        _, n_chunks, n_numbers = chunks.shape
        data = room.reshape(-1).data
        lengths = self._pack(_plain(chunks).reshape(-1, n_numbers), data)
        ends = np.cumsum(lengths)[n_chunks - 1 :: n_chunks].tolist()
        crcs = [crc32c(data[at:end]) for at, end in zip([0, *ends], ends, strict=False)]
        return StoredRows(data[: ends[-1]], lengths, np.array(crcs, dtype=np.uint32))

    def _pack(self, chunks: NDArray[Any], room: memoryview) -> NDArray[np.int64]:
        """Write chunks of one size one after another; return the bytes of each."""
        nbytes, count = chunks[0].nbytes, len(chunks)
        if nbytes < MIN_BLOSC_NBYTES:  # copies behind one and the same header
            first = self._one(chunks[0])
            if first[BLOSC_FLAGS_AT] & BLOSC_IS_COPY and len(first) == BLOSC_HEADER_NBYTES + nbytes:
                copies = np.frombuffer(room, np.uint8, count * len(first)).reshape(count, -1)
                copies[:] = np.frombuffer(first, dtype=np.uint8)
                copies[:, BLOSC_HEADER_NBYTES:] = chunks.view(np.uint8)
                return np.full(count, len(first), dtype=np.int64)
        lengths, at = [], 0
        for chunk in chunks:
            # Copied at once: memory that is kept until all are compressed would be fresh memory.
            stored = self._one(chunk)
            room[at : at + len(stored)] = stored
            at += len(stored)
            lengths.append(len(stored))
        return np.array(lengths, dtype=np.int64)

    def _all(self, chunks: Sequence[NDArray[Any]]) -> list[bytes]:
        return [self._one(_plain(chunk)) for chunk in chunks]

    def _one(self, chunk: NDArray[Any]) -> bytes:
        return self._compress(chunk, b"lz4", BLOSC_LEVEL, BLOSC_SHUFFLE)


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
