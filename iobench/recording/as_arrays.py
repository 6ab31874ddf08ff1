"""Values of a sample as NumPy has them, whichever framework made them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

AS_ARRAY: Final = ("__array__", "__array_interface__")
NUMBERS: Final = (bool, int, float, complex, np.generic)
NOT_TOLD: Final = (TypeError, ValueError, RuntimeError, LookupError, AttributeError)
"""What objects of others raise when they are to become arrays."""


class UndigestibleError(TypeError):
    """A sample holds something whose value nobody can tell from outside."""


def as_array(value: Any) -> tuple[NDArray[Any], str]:
    """Return a value as an array, and what its bits are where NumPy has no name for that."""
    if isinstance(value, np.ndarray):
        return value, ""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value)
    if isinstance(value, NUMBERS) or any(hasattr(value, name) for name in AS_ARRAY):
        try:
            return np.asarray(value), ""
        except NOT_TOLD as error:
            raise UndigestibleError(f"a {type(value).__qualname__}: {error}") from error
    kind = type(value)
    raise UndigestibleError(
        f"a sample holds a {kind.__module__}.{kind.__qualname__}, whose value iobench cannot read; "
        "expected arrays, tensors, numbers, texts, and dicts, lists and tuples of these"
    )


def _of_torch(torch: Any, value: Any) -> tuple[NDArray[Any], str]:
    """Return the same of a tensor of torch's."""
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise UndigestibleError(
            f"a sample holds a tensor of {value.dtype} and layout {value.layout}; make it dense"
        )
    try:
        return value.numpy(), ""
    except (RuntimeError, TypeError):  # of a device, with a gradient, of other numbers
        try:
            plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        except RuntimeError as error:  # as of a tensor of shape alone
            raise UndigestibleError(f"a sample holds a tensor of {value.device}") from error
    try:
        return plain.numpy(), ""
    except TypeError as error:
        bits = {1: torch.uint8, 2: torch.int16}.get(plain.element_size())
        if bits is None:
            raise UndigestibleError(f"a sample holds a tensor of {value.dtype}") from error
    return plain.view(bits).numpy(), f"<{str(plain.dtype).removeprefix('torch.')}"


def unmasked(value: np.ma.MaskedArray[Any, Any]) -> dict[Any, Any]:
    """Return where values are, and those: what lies under a mask is nobody's."""
    mask, values = np.ma.getmaskarray(value), np.array(value.data)
    if mask.dtype != np.bool_:
        raise UndigestibleError(f"a sample holds a masked array of {value.dtype}, field by field")
    values[mask] = np.zeros((), values.dtype)
    return {"masked": mask, "values": values}
