"""For TensorFlow, which this imports: the ring as tensors, and pipelines seen from inside."""

from __future__ import annotations

from iobench.errors import import_extra
from iobench.lazy_face import lazy_face

import_extra("tensorflow", "this needs TensorFlow", extra="tensorflow")

# On first use: Keras takes a second, and a script whose datasets are recorded needs no ring.
__getattr__, __dir__ = lazy_face(__name__, __file__)
