"""Dataset ``stations``: hourly observations of one weather station, a CSV file for each day."""

from __future__ import annotations

import io
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import SampleIndex, in_mirror
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.datasets import Arrays, Locator, PublishedStep, Raw
    from iobench.samples import Sample

URL = "https://stations.example.org/bergen/{day}.csv"
FIRST_DAY = date(2024, 1, 1)
HOURS = 24
COLUMNS = ("t2m", "rh2m", "wind")
SPEC = SampleSpec(
    (
        Variable("observations", (HOURS, 3), "<f4", ("hour", "quantity")),
        Variable("daily_mean_t2m", (), "<f4", (), units="degC", role="target"),
    )
)


def stations(days: str = "60") -> Stations:
    """Return the dataset; ``--option days=N`` takes the first N days."""
    if not days.isdigit() or int(days) < 1:
        raise OptionError(f"stations: days={days}, expected a whole number from 1")
    return Stations(int(days))


class Stations:
    """One sample is one day."""

    name = "stations"
    title = "hourly observations of one weather station"
    fused: tuple[str, ...] = ()
    published: PublishedStep | None = None
    synthesis_version = 1

    def __init__(self, n_days: int) -> None:
        self.days = [FIRST_DAY + timedelta(days=number) for number in range(n_days)]

    def files(self, locator: Locator) -> list[Path]:
        """Return one file for each day, or say which are missing."""
        urls = [URL.format(day=day) for day in self.days]
        found = locator.find(urls)
        missing = [url for url, path in zip(urls, found, strict=True) if path is None]
        if missing:
            raise MissingFileError(
                f"{', '.join(missing)}: not in {locator.searched()}; download and give --data-dir"
            )
        return [path for path in found if path is not None]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample for each file, its own path as the place its bytes are at."""
        return SampleIndex(
            spec=SPEC,
            where=[str(path) for path in files],
            coordinate=[day.isoformat() for day in self.days],
            provenance={"schema": "stations-1", "options": {"days": len(self.days)}},
        )

    def read(self, where: str) -> Raw:
        """Return the bytes of the file."""
        try:
            return [Path(where).read_bytes()]
        except FileNotFoundError as error:
            raise MissingFileError(f"{where}: no such file any more; download it again") from error

    def decode(self, raw: Raw, where: str) -> Arrays:
        """Return the numbers in the text."""
        header, _, table = bytes(raw[0]).decode().partition("\n")
        if not table:
            raise FileFormatError(f"{where}: is empty; download it again")
        try:
            values = np.loadtxt(io.StringIO(table), delimiter=",", dtype="f4", ndmin=2)
        except ValueError as error:
            raise FileFormatError(f"{where}: {error}; download it again") from error
        if header != ",".join(COLUMNS) or values.shape != (HOURS, len(COLUMNS)):
            raise FileFormatError(
                f"{where}: has columns {header!r} and a table of shape {values.shape}, expected "
                f"{','.join(COLUMNS)!r} for {HOURS} hours; download it again"
            )
        return {"table": values}

    def preprocess(self, arrays: Arrays, where: str) -> Sample:
        """Return the observations scaled, and what a model shall learn to tell from them."""
        table = arrays["table"]
        return {
            "observations": table / np.array([10, 100, 10], "f4"),
            "daily_mean_t2m": np.asarray(table[:, 0].mean()),
        }

    def stand_in_files(
        self, *, scale: float | None, tiny: bool, seed: int
    ) -> dict[str, Callable[[Path], None]]:
        """Return what writes each file, where a mirror of the URLs would have it."""
        return {
            in_mirror(URL.format(day=day)): partial(write_day, seed, number)
            for number, day in enumerate(self.days)
        }


def write_day(seed: int, number: int, path: Path) -> None:
    """Write a file of the published layout."""
    values = np.random.default_rng((seed, number)).normal((8, 70, 5), (6, 10, 2), (HOURS, 3))
    rows = "".join("{:.1f},{:.1f},{:.1f}\n".format(*row) for row in values)
    path.write_text(",".join(COLUMNS) + "\n" + rows)
