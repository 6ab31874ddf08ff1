"""What authors test theirs with: suites for datasets and formats, a clock by hand, a device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from iobench.testing.clocks import FakeClock
from iobench.testing.devices import QueueDevice

if TYPE_CHECKING:
    from iobench.testing.datasets import DatasetTests, FolderLocator, MadeUpDataset
    from iobench.testing.stores import EVERY_DTYPE, StoreTests, flip_bit, random_sample, write_store

__all__ = [
    "EVERY_DTYPE",
    "DatasetTests",
    "FakeClock",
    "FolderLocator",
    "MadeUpDataset",
    "QueueDevice",
    "StoreTests",
    "flip_bit",
    "random_sample",
    "write_store",
]


def __getattr__(name: str) -> Any:
    """Import what needs pytest only when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    in_datasets = name in {"DatasetTests", "FolderLocator", "MadeUpDataset"}
    module = import_module(f"{__name__}.{'datasets' if in_datasets else 'stores'}")
    return getattr(module, name)
