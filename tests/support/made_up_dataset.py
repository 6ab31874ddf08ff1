"""A dataset without files, of random bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.datasets import SampleIndex
from iobench.testing import random_sample

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.datasets import Arrays, Locator, Raw
    from iobench.samples import Sample, SampleSpec


class MadeUpDataset:
    """A dataset without files whose samples, of a ``spec``, are random bits."""

    name = "made-up"
    title = "random bits"
    fused: tuple[str, ...] = ()
    published = None
    thread_safe = True

    def __init__(self, spec: SampleSpec) -> None:
        self.spec = spec

    def index(self, n_samples: int, **facts: Any) -> SampleIndex:
        """Return the index of so many samples."""
        return SampleIndex(self.spec, range(n_samples), provenance=facts)

    def files(self, locator: Locator) -> list[Path]:
        """Return no files."""
        return []

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return an index of ten samples."""
        return self.index(10)

    def read(self, where: int) -> list[bytes]:
        """Return the sample's number as bytes."""
        return [where.to_bytes(8, "little")]

    def decode(self, raw: Raw, where: int) -> Arrays:
        """Return the sample that belongs to the number."""
        return random_sample(self.spec, int.from_bytes(raw[0], "little"))

    def preprocess(self, arrays: Arrays, where: int) -> Sample:
        """Return the arrays as they are."""
        return arrays
