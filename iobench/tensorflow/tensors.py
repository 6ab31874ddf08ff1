"""From the arrays of a batch to TensorFlow's tensors, without a copy where it can share memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

from iobench.errors import OptionError
from iobench.loaders.ring.presenting import ArrayCast

if TYPE_CHECKING:
    from numpy.typing import NDArray


ALIGNMENT: Final = 64
"""Of TensorFlow's own memory: its kernels end the process where they meet less."""


def as_tensor(leaf: Any) -> Any:
    """Return an array as a tensor on the CPU; what is no array stays as it is."""
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.dtype == tf.bfloat16.as_numpy_dtype:  # DLPack of NumPy does not know it
        return tf.bitcast(as_tensor(leaf.view(np.uint16)), tf.bfloat16)
    flags = leaf.flags
    is_shared = flags.c_contiguous and flags.writeable and leaf.ctypes.data % ALIGNMENT == 0
    if is_shared and leaf.dtype.kind in "iufc" and leaf.dtype.isnative:
        return tf.experimental.dlpack.from_dlpack(leaf.__dlpack__())
    with tf.device("CPU:0"):
        return tf.constant(leaf)


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor on the CPU as a read-only array of the same memory, which it keeps alive."""
    if np.dtype(tensor.dtype.as_numpy_dtype).kind not in "iufcb":
        return np.asarray(tensor.numpy())  # bfloat16: unknown to the protocol of buffers
    return np.asarray(memoryview(tensor))


def float_cast(dtype: Any) -> ArrayCast:
    """Return the cast to what ``dtype=`` names."""
    try:
        result = tf.as_dtype(dtype)
    except TypeError:
        result = None
    if result is None or not result.is_floating:
        raise OptionError(
            f"dtype={dtype!r}: expected a floating-point dtype such as 'float32' or 'bfloat16'"
        )
    return ArrayCast(np.dtype(result.as_numpy_dtype))
