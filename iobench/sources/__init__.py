"""From what a command names to files that exist and samples that can be made."""

from iobench.sources.opened import OpenDataset, open_dataset
from iobench.sources.opening import Source, open_source
from iobench.sources.request import Screen, SourceRequest

__all__ = ["OpenDataset", "Screen", "Source", "SourceRequest", "open_dataset", "open_source"]
