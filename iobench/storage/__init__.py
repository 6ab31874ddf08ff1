"""What the storage really did: bytes this process moved, what the page cache held, file systems."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from iobench.storage.file_systems import FileSystem, counts_device_reads, file_system_of
    from iobench.storage.page_cache import (
        Residency,
        evict,
        files_nbytes,
        residency,
        resident_fraction,
        warm_up,
    )
    from iobench.storage.process_io import ProcessIo

__all__ = [
    "FileSystem",
    "ProcessIo",
    "Residency",
    "counts_device_reads",
    "evict",
    "file_system_of",
    "files_nbytes",
    "residency",
    "resident_fraction",
    "warm_up",
]

# On first use: a loading process of a script needs one small module of these.
_HOMES: Final = {
    "FileSystem": "file_systems",
    "ProcessIo": "process_io",
    "Residency": "page_cache",
    "counts_device_reads": "file_systems",
    "evict": "page_cache",
    "file_system_of": "file_systems",
    "files_nbytes": "page_cache",
    "residency": "page_cache",
    "resident_fraction": "page_cache",
    "warm_up": "page_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"iobench.storage.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
