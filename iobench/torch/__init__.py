"""For PyTorch: the ring as a loader of tensors, and its own DataLoader with every edge recorded.

Importing this package imports torch.
"""

from __future__ import annotations

from importlib import import_module
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

if TYPE_CHECKING:
    from iobench.torch.cuda_clock import CudaClock
    from iobench.torch.data_loader import DataLoader
    from iobench.torch.device_time import DeviceTimer
    from iobench.torch.store_loader import StoreLoader
    from iobench.torch.tensors import collate

    LightningCallback: type[Any]

del _torch

__all__ = [
    "CudaClock",
    "DataLoader",
    "DeviceTimer",
    "StoreLoader",
    "collate",
]


# On first use: under iobench run every process of torch imports this package for its hooks.
_HOMES = {
    "CudaClock": "cuda_clock",
    "DataLoader": "data_loader",
    "DeviceTimer": "device_time",
    "LightningCallback": "lightning_callback",
    "StoreLoader": "store_loader",
    "collate": "tensors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"iobench.torch.{_HOMES[name]}"), name)
    if name != "LightningCallback":  # of either package, whichever is imported by then
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
