"""What samples are made from: the dataset contract, locating files, source readers."""

from iobench.datasets.contract import (
    Arrays,
    Dataset,
    Locator,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    Synthesizer,
    Where,
    no_progress,
)
from iobench.datasets.extents import FileExtent, read_extents
from iobench.datasets.grib import GribIndex, decode_message, index_grib, read_messages

__all__ = [
    "Arrays",
    "Dataset",
    "FileExtent",
    "GribIndex",
    "Locator",
    "Progress",
    "PublishedStep",
    "Raw",
    "SampleIndex",
    "Synthesizer",
    "Where",
    "decode_message",
    "index_grib",
    "no_progress",
    "read_extents",
    "read_messages",
]
