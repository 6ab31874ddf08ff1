"""For TensorFlow: the ring as tensors or a ``tf.data.Dataset``, and pipelines seen from inside.

Importing this package imports TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.errors import MissingExtraError

try:
    import tensorflow as _tensorflow
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise MissingExtraError(
        "this needs TensorFlow, which is not installed: pip install 'iobench[tensorflow]'"
    ) from None

from iobench.tensorflow.instrument import instrument
from iobench.tensorflow.operation_kinds import OPERATION_KINDS
from iobench.tensorflow.store_loader import TFStoreLoader

if TYPE_CHECKING:
    from iobench.tensorflow.keras_callback import KerasCallback

del _tensorflow

__all__ = ["OPERATION_KINDS", "KerasCallback", "TFStoreLoader", "instrument"]


def __getattr__(name: str) -> Any:
    if name == "KerasCallback":  # Keras is there before it is asked for, or takes a second
        from iobench.tensorflow.keras_callback import KerasCallback

        return KerasCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
