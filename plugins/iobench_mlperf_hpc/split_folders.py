"""What both data sets of MLPerf HPC share: folders of splits, and in them one file for a sample.

Which files there are is published nowhere but in the folders themselves: those at hand are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from iobench.coordinates import SampleLabels
from iobench.datasets import (
    Arrays,
    Baseline,
    ChunkedFields,
    FileKey,
    Key,
    LazySequence,
    Locator,
    NetcdfFile,
    PublishedFiles,
    Raw,
    SampleIndex,
    StandIn,
    VariablePart,
    inspect_files,
    listed_files,
    make_plain_loop,
    only_variables,
    range_file,
    read_boxes,
    where_slab,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError

if TYPE_CHECKING:
    from iobench.samples import Sample, SampleSpec

SPLITS: Final = ("train", "validation", "test")
"""Folders, as both reference implementations name them."""

Where = tuple[int, int]
"""The file's number, and the place of its only sample."""


class SplitFolders(PublishedFiles, ChunkedFields):
    """Files of ``train``, ``validation`` and ``test``, a sample each."""

    suffix: str
    group: ClassVar[str] = ""
    left_out: ClassVar[Mapping[str, str]] = {}
    n_published: ClassVar[tuple[int, int, int]]  # files of each split, as of the two below
    tiny_files: ClassVar[tuple[int, int, int]]
    ordinary_files: ClassVar[tuple[int, int, int]]
    keys = (Key("split", SPLITS, "Folders. By default all that are found."),)
    terms_of_use = (
        "No licence of the data is stated where the benchmark publishes them (mlcommons/hpc, its "
        "README); ask NERSC before handing them on"
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.paths: tuple[str, ...] = ()
        self.opened: tuple[NetcdfFile, ...] = ()  # of HDF5 files

    def files(self, locator: Locator) -> list[Path]:
        chosen: Sequence[str] = self.chosen["split"]
        by_split = {
            split: listed_files(locator, f"{self.url}/{split}", self.suffix)
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
        self.paths = tuple(map(range_file, files))
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
            provenance={**self.facts(files), **facts, "stand_in": locator.stand_in},
            meteorology=SampleLabels(("sample",), left_out=self.left_out),
        )

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample of the decoded arrays."""
        raise NotImplementedError

    # ---- files that are HDF5

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        if not self.opened:
            raise OptionError(
                f"--pipeline upstream: the plain loop reads HDF5, {self.name} has {self.suffix} "
                "files; iobench run -- python train.py measures a script that reads them"
            )
        return make_plain_loop(
            index, self._parts_of, self.preprocess,
            engine="h5netcdf", group=self.group or None, phony_dims="access",
        )  # fmt: skip

    def _parts_of(self, where: Where) -> list[VariablePart]:
        file = self.opened[where[0]]
        return [VariablePart(str(file.path), name, {}) for name in file.variables]

    def open(self, files: Sequence[Path], locator: Locator, names: Sequence[str]) -> NetcdfFile:
        """Find out where the variables of HDF5 files lie, which are as those of the first file."""
        every = inspect_files(
            files, cache_dir=locator.cache_dir, progress=locator.progress, group=self.group
        )
        shapes = {name: each.shape for name, each in every[0].variables.items()}
        for file in every:
            for name in names:
                variable = file.variables.get(name)
                if variable is None or variable.shape != shapes.get(name):
                    has = "no such variable" if variable is None else str(variable.shape)
                    raise FileFormatError(
                        f"{file.path}: variable {name!r}: expected "
                        f"{shapes.get(name, 'one')}, found {has}; fetch the file again"
                    )
                if variable.only_library:
                    raise FileFormatError(
                        f"{file.path}: variable {name!r} is stored with {variable.only_library}, "
                        "which iobench does not read; write it again, with gzip or none"
                    )
        self.opened = tuple(only_variables(file, names) for file in every)
        stored = [each for file in self.opened for each in file.variables.values()]
        self._find_chunks("sample", stored)
        return self.opened[0]

    def read(self, where: Where) -> Raw:
        file = self.opened[where[0]]
        boxes = [where_slab(file, each, dim=None, index=-1) for each in file.variables.values()]
        return read_boxes(self._chunks, boxes, where)

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return the variables of a file by name."""
        return dict(zip(self.opened[where[0]].variables, raw.arrays(), strict=True))

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
