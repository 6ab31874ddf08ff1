"""Whatever a user's dataset hands out as a sample, as named arrays of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import SampleError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMBER_KINDS = "biufc"


class NamedArrays(dict[str, "NDArray[Any]"]):
    """The arrays of a sample; ``left_out`` says what else was in it, and why it is not here."""

    left_out: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.left_out = {}


def named_arrays(value: Any, *, where: str) -> NamedArrays:
    """Return the numbers in a sample as arrays with names.

    Entries of mappings have their keys as names, fields of named tuples theirs, items of tuples
    and lists their numbers; levels are joined with ``/``. A list of nothing but numbers is one
    array, a sample that is a single array or number is called ``0``. Strings, dates and whatever
    else is not a number are left out.
    """
    arrays = NamedArrays()
    for path, leaf in _leaves(value, ()):
        name = "/".join(path) or "0"
        if name in arrays or name in arrays.left_out:
            raise SampleError(f"{where}: two of its entries are called {name!r}; rename one")
        array = _array(leaf, name, where)
        if array is None:
            arrays.left_out[name] = f"is no number: {type(leaf).__name__}"
        elif array.dtype.kind not in NUMBER_KINDS:
            arrays.left_out[name] = f"is no number: dtype {array.dtype}"
        else:
            arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return arrays


def spec_of(arrays: NamedArrays, *, where: str, batched: bool = False) -> SampleSpec:
    """Return what a sample is that has such arrays."""
    if not arrays:
        reasons = ", ".join(f"{name} {reason}" for name, reason in arrays.left_out.items())
        raise SampleError(
            f"{where}: has no numbers ({reasons or 'it is empty'}); let it hold arrays or tensors"
        )
    variables = []
    for name, array in arrays.items():
        if batched and array.ndim == 0:
            raise SampleError(f"{where}: {name!r} has no axis that counts the batch's samples")
        shape = array.shape[1:] if batched else array.shape
        dims = tuple(f"axis_{number}" for number in range(len(shape)))
        variables.append(Variable(name, shape, array.dtype.str, dims))
    return SampleSpec(tuple(variables))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, (*path, str(key)))
    elif isinstance(value, tuple) or (isinstance(value, list) and not _is_numbers(value)):
        names: Sequence[str] = getattr(value, "_fields", ()) or [str(n) for n in range(len(value))]
        for name, entry in zip(names, value, strict=True):
            yield from _leaves(entry, (*path, name))
    else:
        yield path, value


def _is_numbers(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, bool | int | float | complex) for each in values)


def _array(leaf: Any, name: str, where: str) -> NDArray[Any] | None:
    """Return a leaf as an array, None if it is nothing of the kind."""
    if isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic | list):
        return np.asarray(leaf)
    try:
        if hasattr(leaf, "detach"):  # torch
            return np.asarray(leaf.detach().cpu().numpy())
        if hasattr(leaf, "numpy") and hasattr(leaf, "shape"):  # TensorFlow
            return np.asarray(leaf.numpy())
        if hasattr(leaf, "__array__"):
            return np.asarray(leaf)
    except (TypeError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SampleError(
            f"{where}: {name!r}, a {type(leaf).__name__}, cannot be had as a NumPy array "
            f"({reason}); convert it in the dataset"
        ) from error
    return None
