"""For PyTorch: the ring as a loader of tensors, and its own DataLoader with every edge recorded.

Importing this package imports torch.
"""

from __future__ import annotations

from iobench.errors import MissingExtraError

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError(
        "this needs PyTorch, which is not installed: pip install 'iobench[torch]'"
    ) from None

from iobench.torch.data_loader import DataLoader
from iobench.torch.loader import TorchLoader
from iobench.torch.store_loader import StoreLoader
from iobench.torch.tensors import collate

del _torch

__all__ = ["DataLoader", "StoreLoader", "TorchLoader", "collate"]
