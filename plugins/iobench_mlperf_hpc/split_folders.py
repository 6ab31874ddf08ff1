"""What both data sets of MLPerf HPC share: folders of splits, and in them one file for a sample.

Which files there are is published nowhere but in the folders themselves: those at hand are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from iobench.coordinates import SampleLabels
from iobench.datasets import (
    FileKey,
    Key,
    LazySequence,
    Locator,
    PublishedFiles,
    SampleIndex,
    StandIn,
)
from iobench.errors import MissingFileError

if TYPE_CHECKING:
    from iobench.samples import SampleSpec

SPLITS: Final = ("train", "validation", "test")
"""Folders, as both reference implementations name them."""

Where = tuple[int, int]  # the file's number, and the place of its only sample


class SplitFolders(PublishedFiles):
    """Files of ``train``, ``validation`` and ``test``, a sample each."""

    suffix: str
    left_out: Mapping[str, str] = {}
    n_published: ClassVar[tuple[int, int, int]]  # files of each split, as of the two below
    tiny_files: ClassVar[tuple[int, int, int]]
    ordinary_files: ClassVar[tuple[int, int, int]]
    keys = (Key("split", SPLITS, "Folders. By default all that are found."),)
    terms_of_use = (
        "No licence of the data is stated where the benchmark publishes them (mlcommons/hpc, its "
        "README); ask NERSC before handing them on"
    )

    def files(self, locator: Locator) -> list[Path]:
        chosen: Sequence[str] = self.chosen["split"]
        by_split = {
            split: locator.list_folder(f"{self.url}/{split}", self.suffix)
            for split in chosen or SPLITS
        }
        missing = [split for split, files in by_split.items() if not files]
        if missing and (chosen or len(missing) == len(by_split)):
            raise MissingFileError(
                f"{self.name}: no file *{self.suffix} of {' nor '.join(missing)} in "
                f"{locator.searched()}; fetch {self.url} and name the folder that holds "
                f"{', '.join(SPLITS)} with --data-dir"
            )
        return [file for files in by_split.values() for file in files]

    def index(
        self, spec: SampleSpec, files: Sequence[Path], locator: Locator, **facts: Any
    ) -> SampleIndex:
        """Return the samples of these files, one each."""
        splits: dict[str, Sequence[int]] = {}
        for split in SPLITS:
            numbers = [n for n, file in enumerate(files) if file.parent.name == split]
            if numbers:  # side by side, as `files` returns them
                splits[split] = range(numbers[0], numbers[-1] + 1)
        return SampleIndex(
            spec=spec,
            where=LazySequence(len(files), _only_sample),
            splits=splits,
            coordinate=[file.stem for file in files],
            provenance={**self.facts(), **facts, "stand_in": locator.stand_in},
            meteorology=SampleLabels(("sample",), left_out=self.left_out),
        )

    # ---- the stand-in

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        counts: Sequence[int] = self.tiny_files if tiny else self.ordinary_files
        if scale is not None and not tiny:
            counts = [max(1, round(scale * count)) for count in self.n_published]
        keys: list[FileKey] = []
        for split, count in zip(SPLITS, counts, strict=True):
            names = [self.stand_in_file(len(keys) + number) for number in range(count)]
            keys += [{"split": split, "name": name} for name in names]
        return StandIn(seed, tuple(keys), 0, tiny)

    def stand_in_file(self, number: int) -> str:
        """Return the name of a file of a stand-in."""
        raise NotImplementedError

    def file_url(self, key: FileKey) -> str:
        return "/".join((self.url, *key.values()))


def _only_sample(number: int) -> Where:
    return number, 0
