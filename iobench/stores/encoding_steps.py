"""What is done to one variable of a sample on its way into a store with fewer bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError, SampleError
from iobench.samples import Packed
from iobench.stores.moments import group_moments, merge_moments, no_moments
from iobench.stores.rounding import (
    PIECE,
    largest_errors,
    pack_linearly,
    round_bits,
    scale_and_offset,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iobench.samples import Variable

DTYPES: Final = {"float16": "<f2", "int16": "<i2"}
"""What ``--dtype`` takes, and the dtype of the numbers in the store."""
FLOATS: Final = ("<f2", "<f4", "<f8")
"""Of variables that may have fewer bits."""


class EncodingStep(msgspec.Struct, frozen=True):
    """What is done to one floating-point variable."""

    variable: Variable  # as the dataset makes it
    dtype: str | None  # one of `DTYPES`; None: its own
    limits: tuple[float, float] | None = None  # lowest and highest value, for int16
    keepbits: int | None = None  # of the mantissa; None: it is not rounded

    @property
    def name(self) -> str:
        """Name of the variable."""
        return self.variable.name

    @property
    def lacks_range(self) -> bool:
        """Whether only a pass over all samples can tell how to pack it."""
        return self.dtype == "int16" and self.limits is None

    @property
    def stored_dtype(self) -> str:
        """Dtype of the numbers in the store."""
        return self.variable.dtype if self.dtype is None else DTYPES[self.dtype]

    @property
    def stored_nbytes(self) -> int:
        """Bytes of one array as it is stored."""
        return math.prod(self.variable.shape) * np.dtype(self.stored_dtype).itemsize

    def stored(self) -> Variable:
        """Return the variable as it is stored; raise OptionError if its range is unknown."""
        packed = None
        if self.dtype == "int16":
            if self.limits is None:
                raise OptionError(
                    f"{self.name}: its range must be known for --dtype int16; "
                    f"give --range {self.name}=LOW:HIGH"
                )
            scale, offset = scale_and_offset(*self.limits)
            packed = Packed(self.variable.dtype, scale, offset)
        return replace(self.variable, dtype=self.stored_dtype, packed=packed)

    def encode(
        self, values: NDArray[Any], stored: Variable, label: Callable[[int], str]
    ) -> tuple[NDArray[Any], dict[str, float], NDArray[np.float64]]:
        """Return the numbers to store, the largest errors of what they give back, and moments.

        Of samples side by side; ``label`` says which sample a row is. Moments are those of the
        values and of their errors, what is stored less the value: (2, moments).
        """
        if stored.packed is not None:
            self._check_range(values, label)
        flat = values.reshape(-1)
        numbers = np.empty(flat.size, dtype=stored.dtype)
        absolute = relative = 0.0
        moments = no_moments(2)
        # Piece by piece, so that all that is in between stays in the processor's cache.
        for start in range(0, flat.size, PIECE):
            piece = flat[start : start + PIECE]
            encoded = _numbers(piece, stored)
            if self.keepbits is not None:
                encoded = round_bits(encoded, self.keepbits)
            numbers[start : start + PIECE] = encoded
            if stored.packed is None:
                back = encoded.astype(flat.dtype, copy=False)
            else:
                back = unpack(encoded, stored.packed)
            errors = largest_errors(piece, back)
            if math.isinf(errors[0]):
                self._refuse_overflow(values, flat, start, back, label)
            absolute, relative = max(absolute, errors[0]), max(relative, errors[1])
            with np.errstate(invalid="ignore"):  # infinite in both: no error, and no moment
                off = np.subtract(back, piece, dtype=np.result_type(piece, np.float32))
            both = [group_moments(each.reshape(1, 1, -1)) for each in (piece, off)]
            moments = merge_moments(moments, np.concatenate(both))
        found = {"max_absolute_error": absolute, "max_relative_error": relative}
        return numbers.reshape(values.shape), found, moments

    def _refuse_overflow(
        self,
        values: NDArray[Any],
        flat: NDArray[Any],
        start: int,
        back: NDArray[Any],
        label: Callable[[int], str],
    ) -> None:
        inside = np.isfinite(flat[start : start + len(back)]) & ~np.isfinite(back)
        first = np.array(np.unravel_index(start + int(np.argmax(inside)), values.shape))
        other = "--dtype VAR=float16 for each of the other variables"
        if self.dtype is None:
            other = "more keepbits, which round it by less"
        raise SampleError(
            f"{self._named(values, first, label)} is beyond the largest "
            f"number of {self.dtype or 'its dtype, rounded'}; convert to a new folder with --dtype "
            f"{self.name}=int16, or with {other}"
        )

    def _check_range(self, values: NDArray[Any], label: Callable[[int], str]) -> None:
        low, high = self.limits or (0.0, 0.0)
        found = finite_range(values, self.name, label)
        if found is None or (low <= found[0] and found[1] <= high):
            return
        first = np.argwhere((values < low) | (values > high))[0]
        raise SampleError(
            f"{self._named(values, first, label)} is beyond the range "
            f"{low} to {high} of its int16 numbers; convert to a new folder with a wider --range "
            f"{self.name}=LOW:HIGH"
        )

    def _named(
        self, values: NDArray[Any], first: NDArray[np.intp], label: Callable[[int], str]
    ) -> str:
        return f"{label(int(first[0]))}: {values[tuple(first)]!s} of {self.name}{_at(first[1:])}"


def finite_range(
    values: NDArray[Any], name: str, label: Callable[[int], str]
) -> tuple[float, float] | None:
    """Return the lowest and highest value of samples side by side, None where there is none."""
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if math.isfinite(low) and math.isfinite(high):  # a NaN is the lowest and the highest
        return low, high
    first = np.argwhere(~np.isfinite(values))[0]
    raise SampleError(
        f"{label(int(first[0]))}: {values[tuple(first)]!s} of {name}{_at(first[1:])} cannot be "
        "stored as int16; "
        f"convert to a new folder with --dtype {name}=float16"
    )


def _numbers(values: NDArray[Any], stored: Variable) -> NDArray[Any]:
    """Return the numbers to store; those that overflow are infinity."""
    if stored.packed is not None:
        return pack_linearly(values, stored.packed)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(stored.dtype, copy=False)


def _at(position: NDArray[np.intp]) -> str:
    return f"{position.tolist()}" if position.size else ""
