"""For PyTorch, which this imports: the ring as a loader of tensors, its own DataLoader recorded."""

from __future__ import annotations

from iobench.errors import import_extra
from iobench.lazy_face import lazy_face

import_extra("torch", "this needs PyTorch", extra="torch")

# On first use: under iobench run every process of torch imports this package for its hooks.
__getattr__, __dir__ = lazy_face(__name__, __file__)
