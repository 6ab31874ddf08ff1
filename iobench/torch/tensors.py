"""From the arrays of a batch to tensors, without a copy where torch can share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from iobench.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import SampleSpec

PIECE: Final = 32704
"""Numbers cast at once: below what torch would start threads for in each reader thread."""


def as_tensor(leaf: Any) -> Any:
    """Return an array as a tensor of the same memory; what is no array stays as it is."""
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray):
        return leaf
    if not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    if not leaf.flags.writeable or any(stride < 0 for stride in leaf.strides):
        leaf = leaf.copy()  # torch knows neither
    return torch.from_numpy(leaf)


def check_tensors(spec: SampleSpec) -> None:
    """Check that torch has the dtypes of a sample."""
    for variable in spec:
        try:
            torch.from_numpy(np.empty(0, dtype=variable.dtype))
        except TypeError:
            raise OptionError(
                f"variable {variable.name!r}: torch has no dtype like {variable.dtype}; take "
                "framework='numpy'"
            ) from None


class TensorCast:
    """Makes tensors, those of floating-point numbers in one dtype."""

    def __init__(self, dtype: Any) -> None:
        result = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if not isinstance(result, torch.dtype):
            try:
                result = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
            except TypeError:
                result = None
        if result is None or not result.is_floating_point:
            raise OptionError(
                f"dtype={dtype!r}: expected a floating-point dtype such as 'float32' or 'bfloat16'"
            )
        self.dtype: torch.dtype = result

    def __call__(self, leaf: Any) -> Any:
        """Return arrays as tensors, and floating-point tensors in that dtype."""
        leaf = as_tensor(leaf)
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(self.dtype) if is_float else leaf

    def in_place(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a tensor in that dtype, over the memory of the array where it fits."""
        tensor = torch.from_numpy(array)
        if not tensor.is_floating_point() or 2 * self.dtype.itemsize > tensor.dtype.itemsize:
            return self(tensor)
        values = tensor.reshape(-1)
        result = values.view(self.dtype)[: values.numel()]
        result[:PIECE] = values[:PIECE].to(self.dtype)
        # The first piece lay over its own result; all others lie behind theirs.
        pieces = zip(result[PIECE:].split(PIECE), values[PIECE:].split(PIECE), strict=True)
        for target, piece in pieces:
            target.copy_(piece)
        return result.reshape(tensor.shape)
