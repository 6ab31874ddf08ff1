"""Linear packing of floating-point numbers and back, and rounding of their mantissas.

It rounds to nearest, ties to even, and is the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.chunk_codecs import load_numcodecs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Packed, Sample, SampleSpec

MAX_CODE = 32767
"""int16 codes go from -32767: -32768 stays free for a reader's fill value."""
PIECE = 1 << 15
"""Values taken at a time, so that what is in between stays in the cache."""


def scale_and_offset(low: float, high: float) -> tuple[float, float]:
    """Return what int16 numbers are multiplied by and added to, to reach from low to high."""
    if low == high:
        return 1.0, low
    return high / (2 * MAX_CODE) - low / (2 * MAX_CODE), low / 2 + high / 2


def pack_linearly(values: NDArray[Any], packed: Packed) -> NDArray[np.int16]:
    """Return the int16 number nearest to each value; values must be finite and in the range."""
    codes: NDArray[Any] = np.subtract(values, packed.offset, dtype="<f8", casting="safe")
    codes /= packed.scale
    np.rint(codes, out=codes)
    np.clip(codes, -MAX_CODE, MAX_CODE, out=codes)
    return codes.astype(np.int16)


def round_bits(values: NDArray[Any], keepbits: int) -> NDArray[Any]:
    """Return floating-point numbers of which so many bits of the mantissa are kept.

    As of numcodecs' BitRound, to nearest, ties to even; but NaNs stay as they are.
    """
    if keepbits >= np.finfo(values.dtype).nmant:
        return values
    rounded: NDArray[Any] = load_numcodecs().BitRound(keepbits).encode(values).view(values.dtype)
    np.copyto(rounded, values, where=np.isnan(values))
    return rounded


def unpack(numbers: NDArray[Any], packed: Packed, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the values that a store's numbers stand for; in ``out``, contiguous, where given."""
    if out is None:
        out = np.empty(numbers.shape, packed.dtype)
    flat, numbers = out.reshape(-1), numbers.reshape(-1)
    product = np.empty(min(PIECE, flat.size), dtype="<f8")
    with np.errstate(over="ignore", invalid="ignore"):  # whatever scale a manifest says
        for start in range(0, flat.size, PIECE):
            piece = numbers[start : start + PIECE]
            exact = product[: piece.size]
            np.multiply(piece, packed.scale, out=exact, dtype="<f8", casting="safe")
            np.add(exact, packed.offset, out=flat[start : start + PIECE], casting="same_kind")
    return out


def unpack_sample(spec: SampleSpec, sample: Sample) -> dict[str, NDArray[Any]]:
    """Return a stored sample as its readers get it; ``spec`` is that of what is stored."""
    return {
        variable.name: sample[variable.name]
        if variable.packed is None
        else unpack(sample[variable.name], variable.packed)
        for variable in spec
    }
