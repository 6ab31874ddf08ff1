"""For PyTorch: the ring as a loader of tensors, and its own DataLoader with every edge recorded.

Importing this package imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.errors import MissingExtraError

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError(
        "this needs PyTorch, which is not installed: pip install 'iobench[torch]'"
    ) from None

from iobench.torch.cuda_clock import CudaClock
from iobench.torch.data_loader import DataLoader
from iobench.torch.device_time import DeviceTimer
from iobench.torch.loader import TorchLoader
from iobench.torch.store_loader import StoreLoader
from iobench.torch.tensors import collate

if TYPE_CHECKING:
    LightningCallback: type[Any]

del _torch

__all__ = [
    "CudaClock",
    "DataLoader",
    "DeviceTimer",
    "StoreLoader",
    "TorchLoader",
    "collate",
]


def __getattr__(name: str) -> Any:
    """Make what is Lightning's as well only when it is asked for."""
    if name != "LightningCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from iobench.torch import lightning_callback

    return lightning_callback.LightningCallback
