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

__all__ = [
    "Arrays",
    "Dataset",
    "Locator",
    "Progress",
    "PublishedStep",
    "Raw",
    "SampleIndex",
    "Synthesizer",
    "Where",
    "no_progress",
]
