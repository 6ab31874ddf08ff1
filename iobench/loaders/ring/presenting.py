"""What reader threads make of a filled batch: the user's transform, another dtype, tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec

Transform = Callable[[dict[str, Any]], Any]
"""Takes the arrays of a batch, returns what is yielded."""
ROLES: Final = ("inputs", "targets")
"""What can be stacked."""
FIRST: Final = 1 << 16
"""Numbers cast through memory of their own, since their result would lie over them."""


class Cast(Protocol):
    """Makes floating-point numbers those of another dtype; leaves everything else alone."""

    def __call__(self, leaf: Any) -> Any:
        """Return what a transform returned in that dtype; the same object where it is."""
        ...

    def in_place(self, array: NDArray[Any]) -> Any:
        """Return an array of the batch in that dtype, over the same memory where it fits."""
        ...


def float_cast(dtype: Any) -> ArrayCast:
    """Return the cast to what ``dtype=`` names."""
    try:
        narrow: np.dtype[Any] | None = np.dtype(dtype)
    except TypeError:
        narrow = None
    if narrow is None or narrow.kind != "f":
        raise OptionError(
            f"dtype={dtype!r}: expected a floating-point dtype such as 'float32' or 'float16'; "
            "framework='torch' knows 'bfloat16' as well"
        )
    return ArrayCast(narrow)


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
        narrow = values.view(np.uint8)[: values.size * self.dtype.itemsize].view(self.dtype)
        narrow[:FIRST] = values[:FIRST].astype(self.dtype)
        # Half as wide, or less: from 2^k to 2^(k+1) the result ends where what it is made of begins
        start = FIRST
        while start < values.size:
            narrow[start : 2 * start] = values[start : 2 * start]
            start *= 2
        return narrow.reshape(array.shape)


class ChannelStack:
    """Puts the variables of a role side by side as channels, in front of the grid they share.

    A variable's channels are what its dimensions before that grid make up; ``channel`` is one of
    these wherever it lies. The steps of a window stay the first axis of a sample.
    """

    def __init__(self, spec: SampleSpec, roles: Sequence[str]) -> None:
        self._groups = [_Group(spec, role) for role in roles]

    def __call__(self, batch: Any) -> tuple[NDArray[Any], ...]:
        """Return the array of each role."""
        return tuple(group.stacked(batch) for group in self._groups)

    def __str__(self) -> str:
        return ", ".join(map(str, self._groups))


class _Group:
    """The variables of one role, and how they are stacked."""

    def __init__(self, spec: SampleSpec, role: str) -> None:
        self._role = role
        variables = [variable for variable in spec if f"{variable.role}s" == role]
        if not variables:
            raise OptionError(f"stack={role!r}: no variable is one of the {role}")
        if len({variable.dtype for variable in variables}) > 1:
            kinds = ", ".join(f"{v.name} {v.dtype}" for v in variables)
            raise OptionError(f"stack={role!r}: expected one dtype, got {kinds}")
        self._has_steps = variables[0].dims[:1] in (("step_in",), ("step_out",))
        inner = []
        for variable in variables:
            lengths = list(zip(variable.dims, variable.shape, strict=True))
            inner.append([one for one in lengths[self._has_steps :] if one[0] != "channel"])
        shared = 0
        while all(len(one) > shared and one[-1 - shared] == inner[0][-1 - shared] for one in inner):
            shared += 1
        if not shared and any(inner):
            shapes = ", ".join(
                f"{v.name} {dict(zip(v.dims, v.shape, strict=True))}" for v in variables
            )
            raise OptionError(
                f"stack={role!r}: expected one grid behind the channels, got {shapes}"
            )
        self._grid = tuple(length for _, length in inner[0][len(inner[0]) - shared :])
        axes = [v.dims.index("channel") + 1 if "channel" in v.dims else -1 for v in variables]
        self._parts = list(zip((v.name for v in variables), axes, strict=True))
        steps = variables[0].shape[: self._has_steps]
        n_numbers = sum(math.prod(v.shape) for v in variables)
        n_channels = n_numbers // max(1, math.prod((*steps, *self._grid)))
        self._shape = (*steps, n_channels, *self._grid)  # of a sample

    def stacked(self, batch: Any) -> NDArray[Any]:
        """Return the variables of a batch as one array; a single one shares its memory."""
        parts = []
        for name, axis in self._parts:
            if not isinstance(batch, Mapping) or name not in batch:
                raise OptionError(
                    f"stack={self._role!r}: the transform returned no {name!r}; expected a dict "
                    "with the variables of the batch"
                )
            array = batch[name]
            if axis >= 0:
                array = np.moveaxis(array, axis, 1 + self._has_steps)
            lead = array.shape[: 1 + self._has_steps]
            parts.append(array.reshape(*lead, -1, *self._grid))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1 + self._has_steps)

    def __str__(self) -> str:
        names = ", ".join(name for name, _ in self._parts)
        return f"{self._role} {self._shape} of {names}"


class Presenter:
    """Makes what a loader yields of the arrays of a batch, in its reader threads."""

    def __init__(
        self,
        transform: Transform | None = None,
        cast: Cast | None = None,
        convert: Callable[[Any], Any] | None = None,
        stack: ChannelStack | None = None,
    ) -> None:
        self.transform, self.cast, self.stack, self._convert = transform, cast, stack, convert

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
            cast = self.cast.in_place  # nobody else has these arrays
        if self.stack is not None:
            value = self.stack(value)
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
