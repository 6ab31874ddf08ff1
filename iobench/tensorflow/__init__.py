"""For TensorFlow: the ring as tensors or a ``tf.data.Dataset``, and pipelines seen from inside.

Importing this package imports TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from iobench.tensorflow.keras_callback import KerasCallback
    from iobench.tensorflow.store_loader import TFStoreLoader

del _tensorflow

__all__ = ["OPERATION_KINDS", "KerasCallback", "TFStoreLoader", "instrument"]


# On first use: Keras takes a second, and a script whose datasets are recorded needs no ring.
_HOMES: Final = {"KerasCallback": "keras_callback", "TFStoreLoader": "store_loader"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"iobench.tensorflow.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
