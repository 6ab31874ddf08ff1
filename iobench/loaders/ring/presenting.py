"""What reader threads make of a filled batch: the user's transform, another dtype, tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from iobench.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Transform = Callable[[dict[str, Any]], Any]
"""Takes the arrays of a batch, returns what is yielded."""
FIRST: Final = 1 << 16
"""Numbers cast through memory of their own, since their result would lie over them."""


class Cast(Protocol):
    """Makes floating-point numbers those of another dtype; leaves everything else alone."""

    def __call__(self, leaf: Any) -> Any:
        """Return what a transform returned in that dtype; the same object where it is."""
        ...

    def in_place(self, array: NDArray[Any]) -> Any:
        """Return an array of the batch in that dtype, over the same memory where it fits.

        ``array`` is contiguous, and not used afterwards.
        """
        ...


def float_cast(dtype: Any) -> ArrayCast:
    """Return the cast to what ``dtype=`` names."""
    try:
        found: np.dtype[Any] | None = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.kind != "f":
        raise OptionError(
            f"dtype={dtype!r}: expected a floating-point dtype such as 'float32' or 'float16'; "
            "framework='torch' knows 'bfloat16' as well"
        )
    return ArrayCast(found)


class ArrayCast:
    """Casts NumPy arrays."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def __call__(self, leaf: Any) -> Any:
        """Return floating-point arrays in that dtype."""
        is_float = isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"
        return leaf.astype(self.dtype, copy=False) if is_float else leaf

    def in_place(self, array: NDArray[Any]) -> Any:
        """Return the array in that dtype, over the same memory where it fits."""
        if array.dtype.kind != "f" or 2 * self.dtype.itemsize > array.dtype.itemsize:
            return self(array)
        values = array.reshape(-1)
        found = values.view(np.uint8)[: values.size * self.dtype.itemsize].view(self.dtype)
        found[:FIRST] = values[:FIRST].astype(self.dtype)
        # Half as wide, or less: from 2^k to 2^(k+1) the result ends where what it is made of begins
        start = FIRST
        while start < values.size:
            found[start : 2 * start] = values[start : 2 * start]
            start *= 2
        return found.reshape(array.shape)


class Presenter:
    """Makes what a loader yields of the arrays of a batch, in its reader threads."""

    def __init__(
        self,
        transform: Transform | None = None,
        cast: Cast | None = None,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self.transform = transform
        self.cast = cast
        self._convert = convert

    def __call__(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """Return the batch as it is yielded."""
        value: Any = arrays
        cast: Callable[[Any], Any] | None = self.cast
        if self.transform is not None:
            value = self.transform(arrays)
            if not isinstance(value, (Mapping, tuple, list)):
                raise OptionError(
                    f"the transform returned {_named(value)}, expected a dict (or tuple) of arrays"
                )
        elif self.cast is not None:
            cast = self.cast.in_place  # nobody else has seen these arrays
        if cast is not None:
            value = map_leaves(value, cast)
        return value if self._convert is None else map_leaves(value, self._convert)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same dicts, tuples and lists, with all that is in them changed."""
    if isinstance(value, Mapping):
        return {name: map_leaves(part, change) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(part, change) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(part, change) for part in value)
    return change(value)


def _named(value: Any) -> str:
    return "None (return the arrays)" if value is None else f"a {type(value).__name__}"
