"""For TensorFlow: the ring as an iterable of tensors, and as a ``tf.data.Dataset``.

Importing this package imports TensorFlow.
"""

from __future__ import annotations

from iobench.errors import MissingExtraError

try:
    import tensorflow as _tensorflow
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise MissingExtraError(
        "this needs TensorFlow, which is not installed: pip install 'iobench[tensorflow]'"
    ) from None

from iobench.tensorflow.store_loader import TFStoreLoader

del _tensorflow

__all__ = ["TFStoreLoader"]
