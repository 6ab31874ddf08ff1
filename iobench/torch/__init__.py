"""For PyTorch: the ring as a loader of tensors, and its own DataLoader with every edge recorded.

Importing this package imports torch.
"""

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
