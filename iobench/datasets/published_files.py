"""A dataset of files that are published one by one: which there are, at hand or as a stand-in.

What is in them is `iobench.datasets.recipes` to say where they are NetCDF, a subclass's own where
they are GRIB or TFRecord.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.dataset_options import Option, parse_options
from iobench.datasets.locate import in_mirror
from iobench.datasets.standins import PlannedFile, write_planned_files
from iobench.errors import MissingFileError, OptionError

if TYPE_CHECKING:
    from iobench.datasets.contract import Locator, PublishedStep
    from iobench.datasets.recipe_data import FileKey, Key

MOST_LISTED = 5


class StandIn(msgspec.Struct, frozen=True):
    """What a stand-in holds."""

    seed: int  # of its random numbers
    keys: tuple[Mapping[str, str], ...]  # its files
    n_steps: int = 0  # indexes along the sample dimension in each, at most; 0 for all of a real one
    tiny: bool = False  # whether it is the one of tests


class PublishedFiles:
    """The half of a `Dataset` that finds files, and a `Synthesizer`.

    A subclass is what the entry point names: it is called with the user's options.
    """

    name: str
    title: str
    url: str = ""
    keys: tuple[Key, ...] = ()
    options: tuple[Option, ...] = ()
    terms_of_use: str = ""
    citation: str = ""
    published: PublishedStep | None = None
    tiny: tuple[str, ...] = ()
    ordinary: tuple[str, ...] = ()
    tiny_steps: int = 8
    ordinary_steps: int = 0
    synthesis_version: int = 2

    def __init__(self, **options: str) -> None:
        self.chosen: dict[str, Any] = parse_options(self.name, self.all_options(), options)
        self.fused: tuple[str, ...] = ()

    @classmethod
    def all_options(cls) -> list[Option]:
        """Return the options: one for each key that is not among `options`, and those."""
        own = {each.name for each in cls.options}
        text = "By default all that are found."
        of_keys = [
            Option(key.name, key.text or text, (), key.values, many=True)
            for key in cls.keys
            if key.name not in own
        ]
        return [*of_keys, *cls.options]

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: libraries that fuse steps cannot."""
        return not self.fused

    @property
    def stand_in_name(self) -> str:
        """What stand-ins are told apart by."""
        return self.name

    def combined(self, values: Sequence[Sequence[str]]) -> list[FileKey]:
        """Return the key of each file, of these values of each of `keys`."""
        names = [key.name for key in self.keys]
        return [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]

    def file_keys(self) -> list[FileKey]:
        """Return the key of each file that the options choose, all where they choose none."""
        return self.combined([self.chosen.get(key.name) or key.values for key in self.keys])

    def file_url(self, key: FileKey) -> str:
        """Return where a file is published."""
        return self.url.format(**key)

    @property
    def is_chosen(self) -> bool:
        """Whether options choose files."""
        return any(self.chosen.get(key.name) for key in self.keys)

    def needs_all(self, *, stand_in: bool) -> bool:
        """Return whether a file that is not at hand is missed: where options choose files."""
        return self.is_chosen

    def files(self, locator: Locator) -> list[Path]:
        """Return the files: all that were chosen, else those at hand."""
        urls = list(map(self.file_url, self.file_keys()))
        paths = locator.find(urls)
        missing = [url for url, path in zip(urls, paths, strict=True) if path is None]
        needs_all = self.needs_all(stand_in=locator.stand_in)
        if missing and (needs_all or len(missing) == len(urls)):
            raise MissingFileError(
                f"{self.name}: {_listed(missing)} not found in {locator.searched()}; fetch the "
                "files and name their folder with --data-dir"
            )
        return [path for path in paths if path is not None]

    def facts(self, files: Sequence[Path]) -> dict[str, Any]:
        """Return what every provenance says: the dataset, its files, the terms."""
        known = {
            "dataset": self.name,
            "files": [{"name": path.name, "nbytes": path.stat().st_size} for path in files],
            "terms_of_use": self.terms_of_use,
        }
        return {**known, "citation": self.citation} if self.citation else known

    # ---- the stand-in

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        """Return what a stand-in holds: tiny, ordinary, or a share of all files."""
        first, *others = self.keys
        every, n_steps = tuple(first.values), 0
        if tiny:
            values, n_steps = self.tiny or every[:2], self.tiny_steps
        elif scale is None:
            values, n_steps = self.ordinary or every[:4], self.ordinary_steps
        else:
            count = max(1, round(scale * len(every)))
            values = tuple(every[n * len(every) // count] for n in range(count))
        keys = self.combined([values, *(key.values for key in others)])
        return StandIn(seed, tuple(keys), n_steps, tiny)

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        """Write a file of a stand-in."""
        raise NotImplementedError

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of a stand-in."""
        raise NotImplementedError

    def planned_files(self, plan: StandIn) -> list[PlannedFile]:
        """Return the files of a stand-in, where a mirror of their URLs has them."""
        return [
            PlannedFile(
                in_mirror(self.file_url(key)),
                self.file_nbytes(key, plan),
                functools.partial(self.write, plan, key),
            )
            for key in plan.keys
        ]

    def _planned(self, *, scale: float | None, tiny: bool, seed: int = 0) -> list[PlannedFile]:
        """Return the files of a stand-in; refuse one that lacks what was asked for."""
        files = self.planned_files(self.stand_in(scale=scale, tiny=tiny, seed=seed))
        names = {file.name for file in files}
        urls = list(map(self.file_url, self.file_keys())) if self.is_chosen else []
        missing = [url for url in urls if in_mirror(url) not in names]
        if missing and (self.needs_all(stand_in=True) or len(missing) == len(urls)):
            held = [file.name.rpartition("/")[2] for file in files]
            raise OptionError(
                f"{self.name}: {missing[0]} was not found, and the stand-in holds only "
                f"{_listed(held)}; choose among them, give --data-dir, or a larger --scale"
            )
        return files

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        return sum(file.nbytes for file in self._planned(scale=scale, tiny=tiny))

    def synthesize(
        self,
        root: Path,
        *,
        scale: float | None,
        tiny: bool,
        seed: int,
        progress: Progress = no_progress,
    ) -> list[Path]:
        """Write the stand-in under ``root`` and return its files."""
        files = self._planned(scale=scale, tiny=tiny, seed=seed)
        return write_planned_files(root, files, progress=progress)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
