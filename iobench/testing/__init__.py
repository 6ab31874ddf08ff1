"""What authors of datasets and formats test theirs with: contract suites and a clock by hand."""

from iobench.testing.clocks import FakeClock
from iobench.testing.datasets import DatasetTests, FolderLocator, MadeUpDataset
from iobench.testing.stores import EVERY_DTYPE, StoreTests, flip_bit, random_sample, write_store

__all__ = [
    "EVERY_DTYPE",
    "DatasetTests",
    "FakeClock",
    "FolderLocator",
    "MadeUpDataset",
    "StoreTests",
    "flip_bit",
    "random_sample",
    "write_store",
]
