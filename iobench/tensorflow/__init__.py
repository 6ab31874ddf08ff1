"""For TensorFlow, which this imports: the ring as tensors, and pipelines seen from inside."""

from __future__ import annotations

from iobench.errors import MissingExtraError
from iobench.lazy_face import lazy_face

try:
    import tensorflow as _tensorflow
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise MissingExtraError("this needs TensorFlow", extra="tensorflow") from None

del _tensorflow

# On first use: Keras takes a second, and a script whose datasets are recorded needs no ring.
__getattr__, __dir__ = lazy_face(__name__, __file__)
