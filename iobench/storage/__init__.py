"""What the storage really did: bytes this process moved, what the page cache held, file systems."""

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
