"""For PyTorch, which this imports: the ring as a loader of tensors, its own DataLoader recorded."""

from __future__ import annotations

from iobench.errors import MissingExtraError
from iobench.lazy_face import lazy_face

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError("this needs PyTorch", extra="torch") from None

del _torch

# On first use: under iobench run every process of torch imports this package for its hooks.
__getattr__, __dir__ = lazy_face(__name__, __file__)
