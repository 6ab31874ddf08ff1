"""What the storage really did: bytes this process moved, what the page cache held, file systems."""

from iobench.storage.page_cache import evict, resident_fraction, warm_up
from iobench.storage.process_io import ProcessIo, counts_device_reads

__all__ = [
    "ProcessIo",
    "counts_device_reads",
    "evict",
    "resident_fraction",
    "warm_up",
]
