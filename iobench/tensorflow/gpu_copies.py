"""Batches on a GPU of TensorFlow's: which one that is, and tensors copied to it.

TensorFlow tells no times of its copies by events. A copy in eager mode returns when it is made, so
its call tells; what tf.data copies ahead is within what is opaque.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from iobench.errors import DeviceError
from iobench.loaders.contract import PlacedArray

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_gpu(name: str) -> str | None:
    """Return what TensorFlow calls a device such as ``cuda:0``; None where it does not see it.

    TensorFlow takes memory there only as it needs it, so that others have some left.
    """
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return None
    index = int(number or 0)
    try:
        seen = tf.config.list_physical_devices("GPU")
        if index >= len(seen):
            return None
        with suppress(RuntimeError):  # TensorFlow is at work there already
            tf.config.experimental.set_memory_growth(seen[index], enable=True)
        known = [device.name for device in tf.config.list_logical_devices("GPU")]
    except (tf.errors.OpError, RuntimeError):  # a driver that it cannot use
        return None
    place = f"/device:GPU:{index}"
    return place if place in known else None


def copied_to(tensors: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return tensors on the device, as eager TensorFlow copies them: it waits for the copies."""
    try:
        with tf.device(place):
            found = {name: tf.identity(tensor) for name, tensor in tensors.items()}
    except tf.errors.OpError as error:
        raise DeviceError(f"TensorFlow, {place}: {_in_a_line(error)}") from error
    return checked_place(found, place)


def checked_place(tensors: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return tensors of a device as the measured loop takes them."""
    for name, tensor in tensors.items():
        if not tensor.device.endswith(place):
            raise DeviceError(
                f"TensorFlow, {place}: {name} stayed on {tensor.device.rpartition('/')[2]}"
            )
    return {
        name: PlacedArray(tensor, tensor.dtype.size * math.prod(tensor.shape), tensor.numpy)
        for name, tensor in tensors.items()
    }


def _in_a_line(error: tf.errors.OpError) -> str:
    return " ".join(str(error.message).split())
