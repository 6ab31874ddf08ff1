"""The same pipelines through PyTorch's own DataLoader, every edge of every batch recorded.

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
        "--framework torch needs PyTorch, which is not installed: pip install 'iobench[torch]'"
    ) from None

from iobench.torch.loader import TorchLoader

del _torch

__all__ = ["TorchLoader"]
