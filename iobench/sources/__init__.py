"""From what a command names to files that exist and samples that can be made."""

from iobench.sources.opening import Source, open_source
from iobench.sources.request import Screen, SourceRequest

__all__ = ["Screen", "Source", "SourceRequest", "open_source"]
