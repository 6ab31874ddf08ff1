"""Dataset ``stations``: hourly observations of one weather station, a CSV file for each day."""

from __future__ import annotations

import io
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import SampleIndex, in_mirror
from iobench.errors import FileFormatError, MissingFileError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.datasets import Arrays, Locator, PublishedStep, Raw
    from iobench.samples import Sample

URL = "https://stations.example.org/bergen/{day}.csv"
FIRST_DAY = date(2024, 1, 1)
OBSERVATIONS = Variable("observations", (24, 3), "<f4", ("hour", "quantity"))


class Stations:
    """One sample is one day; ``--option days=N`` takes the first N days."""

    name = "stations"
    title = "hourly observations of one weather station"
    fused: tuple[str, ...] = ()
    published: PublishedStep | None = None
    synthesis_version = 1

    def __init__(self, days: str = "60") -> None:
        self.days = [str(FIRST_DAY + timedelta(days=number)) for number in range(int(days))]
        self.urls = [URL.format(day=day) for day in self.days]

    def files(self, locator: Locator) -> list[Path]:
        """Return one file for each day, or say which are missing."""
        found = [path for path in locator.find(self.urls) if path is not None]
        if len(found) < len(self.urls):
            raise MissingFileError(
                f"{self.urls[-1]}: not in {locator.searched()}; download and give --data-dir"
            )
        return found

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample for each file, its own path as the place its bytes are at."""
        return SampleIndex(SampleSpec((OBSERVATIONS,)), list(map(str, files)), coordinate=self.days)

    def read(self, where: str) -> Raw:
        """Return the bytes of the file."""
        return [Path(where).read_bytes()]

    def decode(self, raw: Raw, where: str) -> Arrays:
        """Return the numbers in the text."""
        table = np.loadtxt(io.BytesIO(raw[0]), delimiter=",", dtype="f4", ndmin=2, skiprows=1)
        if table.shape != OBSERVATIONS.shape:
            raise FileFormatError(
                f"{where}: a table of shape {table.shape}, expected {OBSERVATIONS.shape}; download "
                "it again"
            )
        return {"observations": table}

    def preprocess(self, arrays: Arrays, where: str) -> Sample:
        """Return the observations scaled."""
        return {"observations": arrays["observations"] / np.array([10, 100, 10], "f4")}

    def stand_in_files(
        self, *, scale: float | None, tiny: bool, seed: int
    ) -> dict[str, Callable[[Path], None]]:
        """Return what writes each file, where a mirror of the URLs would have it."""
        return {
            in_mirror(url): partial(write_day, seed, number) for number, url in enumerate(self.urls)
        }


def write_day(seed: int, number: int, path: Path) -> None:
    """Write a file of the published layout."""
    values = np.random.default_rng((seed, number)).normal((8, 70, 5), (6, 10, 2), (24, 3))
    np.savetxt(path, values, "%.1f", ",", header="t2m,rh2m,wind", comments="")
