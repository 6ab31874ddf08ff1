"""From the stored bytes of a chunk to its numbers: one chain of codecs, of HDF5 and Zarr alike.

What each codec is, and which are safe, is in `single_codec`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from iobench.chunks.single_codec import (
    CHECKSUM_NBYTES,
    CHECKSUMS,
    DECODING_ERRORS,
    DEFLATED,
    CodecStep,
    DamagedChunkError,
    as_bytes,
    cannot_decode,
    codec_step,
    decodes_to_more,
    inflated_slices,
    undo_codec,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

GRIB_MESSAGE = "grib"
"""Id of a chunk that is a whole GRIB message: not undone here, but straight into its place."""


class ChunkCodecs(msgspec.Struct, frozen=True):
    """How numbers became the bytes of a chunk."""

    dtype: str  # of the stored numbers, with byte order
    shape: tuple[int, ...]  # of a chunk; those at the edge of an array are stored in full
    # order of the axes in which the numbers were written: ``(0, 1)`` is C order
    axes: tuple[int, ...]
    # what was applied then, in this order: JSON of configurations that numcodecs knows, with their
    # ``id``; `CHECKSUM`, `HDF5_LZ4` and, alone, `GRIB_MESSAGE` are ours
    applied: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a chunk's numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_message(self) -> bool:
        """Whether a chunk is a GRIB message."""
        return self.applied == (GRIB_MESSAGE,)

    @property
    def is_sliced(self) -> bool:
        """Whether `shuffled_slices` has the bytes slice by slice."""
        return _is_shuffled(self) and len(self.applied) > 1 and (
            codec_step(self.applied[1]).name in DEFLATED
        )  # fmt: skip

    @property
    def n_copies(self) -> int:
        """How often a chunk is in memory while it is decoded, beside its stored bytes, at most."""
        copies = sum(codec_step(each).name not in CHECKSUMS for each in self.applied)
        return min(2, copies)  # a copy is let go of when the next one is made


@lru_cache(maxsize=1024)
def _is_shuffled(codecs: ChunkCodecs) -> bool:
    if not codecs.applied or list(codecs.axes) != sorted(codecs.axes):
        return False
    return codec_step(codecs.applied[0]).elementsize == np.dtype(codecs.dtype).itemsize


def decode_chunk(
    stored: memoryview, codecs: ChunkCodecs, mask: int = 0, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the numbers of a chunk from its stored bytes."""
    plan = _plan(codecs, mask)
    target = None if out is None or not plan.is_in_c_order else as_bytes(out)
    flat = _undone(stored, plan, 0, target)
    if out is not None and flat is target:
        return out
    flat = as_bytes(flat)
    _check_size(flat.nbytes, plan.nbytes)
    values = flat.view(codecs.dtype)
    if plan.is_in_c_order:
        return values.reshape(codecs.shape)
    written = tuple(codecs.shape[axis] for axis in codecs.axes)
    return values.reshape(written).transpose(np.argsort(codecs.axes))


def shuffled_slices(
    stored: memoryview, codecs: ChunkCodecs, mask: int = 0
) -> Iterator[bytes] | None:
    """Return the bytes of a chunk, shuffled still, some 100 KB at a time; None of other storage.

    They stay in the processor's cache. Raises as `decode_chunk`, some of it after the first slices.
    """
    if mask & 3 or not codecs.is_sliced:
        return None
    name = codec_step(codecs.applied[1]).name
    plan = _plan(codecs, mask)
    return _slices(name, _undone(stored, plan, 2), plan.nbytes)


def _slices(name: str, deflated: Any, nbytes: int) -> Iterator[bytes]:
    n_bytes = 0
    try:
        for part in inflated_slices(name, as_bytes(deflated).data):
            n_bytes += len(part)
            if n_bytes > nbytes:
                raise decodes_to_more(nbytes)
            yield part
    except DECODING_ERRORS as error:
        raise cannot_decode(name, error) from error
    _check_size(n_bytes, nbytes)


def _check_size(nbytes: int, expected: int) -> None:
    if nbytes != expected:
        raise DamagedChunkError(f"it holds {nbytes} bytes, expected {expected}")


class _Plan(NamedTuple):
    """What is undone of a chunk, the codec applied first first, and to how many bytes each."""

    steps: tuple[tuple[CodecStep, int | None], ...]
    nbytes: int
    is_in_c_order: bool


@lru_cache(maxsize=1024)
def _plan(codecs: ChunkCodecs, mask: int) -> _Plan:
    """Return how a chunk is decoded: of small chunks this would take as long as inflating."""
    steps = [codec_step(each) for bit, each in enumerate(codecs.applied) if not mask >> bit & 1]
    nbytes = codecs.nbytes
    expected = [_expected_nbytes(steps[:place], nbytes) for place in range(len(steps))]
    in_order = list(codecs.axes) == sorted(codecs.axes)
    return _Plan(tuple(zip(steps, expected, strict=True)), nbytes, in_order)


def _undone(
    stored: memoryview, plan: _Plan, first: int, out: NDArray[np.uint8] | None = None
) -> Any:
    """Undo codecs, the last one first, but for the ``first`` ones; what is left may be ``out``."""
    content: Any = stored
    for number in range(len(plan.steps) - 1, first - 1, -1):
        step, expected = plan.steps[number]
        try:
            content = undo_codec(step, content, plan.nbytes, expected, out if number == 0 else None)
        except DECODING_ERRORS as error:
            raise cannot_decode(step.name, error) from error
    return content


def _expected_nbytes(before: Sequence[CodecStep], nbytes: int) -> int | None:
    """Return what codecs make of a chunk's numbers, None where that depends on the numbers."""
    if all(step.elementsize or step.name in CHECKSUMS for step in before):
        return nbytes + CHECKSUM_NBYTES * sum(not step.elementsize for step in before)
    return None
