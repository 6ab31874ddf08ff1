"""The folder of a suite: which recipe it is of, what is measured already, and by whom.

::

    recipe.json                     what is measured
    cells/CELL/round-N.result.json  what a run found; beside it round-N, its run directory, and
                                    round-N.log, what its process said
    hosts/HOST/                     claimed by the process that measures on that machine
"""

from __future__ import annotations

import fnmatch
import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec.structs import replace

from iobench.errors import IobenchError, OptionError, ProfileError, StorageError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.claims import CLAIM_NAME, claim, find_holder
from iobench.json_files import read_json
from iobench.recording.this_process import host_name, name_in_files
from iobench.suites.recipe import SuiteRecipe
from iobench.suites.results import (
    MEASURED,
    RESULT_SUFFIX,
    SkippedFile,
    SuiteResults,
    find_results,
    read_result,
    read_results,
)
from iobench.trials.interleaving import turn_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from iobench.suites.recipe import Cell
    from iobench.suites.results import Result

RECIPE_FILE: Final = "recipe.json"
CELLS, HOSTS = "cells", "hosts"


class Job(msgspec.Struct, frozen=True):
    """One run that a suite takes: a cell, and the round."""

    cell: Cell
    round: int


class SuiteFolder(msgspec.Struct, frozen=True):
    """A suite's folder.

    Parameters
    ----------
    order : tuple of int
        Places of the cells, shuffled by the recipe's seed.
    """

    path: Path
    recipe: SuiteRecipe
    cells: tuple[Cell, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, path: Path, recipe: SuiteRecipe) -> Self:
        """Return the folder of a suite, whether it is there yet or not."""
        cells = recipe.cells()
        order = list(range(len(cells)))
        random.Random(recipe.seed).shuffle(order)
        return cls(path, recipe, cells, tuple(order))

    @classmethod
    def found(cls, path: Path, recipe: SuiteRecipe) -> Self:
        """Return the folder of a suite as it is there, where only what is shown is another one."""
        folder = cls.of(path, recipe)
        if not (path / RECIPE_FILE).exists():
            return folder
        kept = read_folder_recipe(path)
        asked = replace(recipe, metrics=kept.metrics, title=kept.title)
        return cls.of(path, kept) if asked.digest == kept.digest else folder

    def make(self) -> None:
        """Make the folder, or go on with one of the same recipe.

        Raises
        ------
        OptionError
            If it is of another recipe, or holds something else.
        StorageError
            If it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror or error
            raise StorageError(
                f"--out {self.path}: cannot be made ({why}); name another folder"
            ) from error
        with claim(self.path):
            file = self.path / RECIPE_FILE
            if not file.exists():
                # Hidden are claims of others that are about to be made.
                if any(not each.name.startswith((".", CLAIM_NAME)) for each in self.path.iterdir()):
                    raise OptionError(
                        f"--out {self.path}: holds something else; name a new folder, or that of "
                        "the same suite"
                    )
                text = json.dumps(self.recipe.to_json(), indent=1, sort_keys=True)
                write_atomically(file, f"{text}\n".encode())
            self.check()

    def check(self) -> None:
        """Raise OptionError if the folder is there and of another recipe."""
        if not (self.path / RECIPE_FILE).exists():
            return
        other = read_folder_recipe(self.path)
        if other.digest != self.recipe.digest:
            raise OptionError(
                f"--out {self.path}: holds suite {other.name} of another recipe ({other.digest}, "
                f"not {self.recipe.digest}); continue with that one, or name a new folder"
            )

    def place(self, cell: Cell) -> Path:
        """Return the folder of a cell."""
        return self.path / CELLS / cell.folder

    def result_file(self, job: Job) -> Path:
        """Return where the result of a run is kept."""
        return self.place(job.cell) / f"round-{job.round}{RESULT_SUFFIX}"

    @property
    def host_place(self) -> Path:
        """The folder that the process claims which measures on this machine."""
        return self.path / HOSTS / name_in_files(host_name())

    def live_hosts(self) -> set[str]:
        """Return the machines on which a process of the suite is at work, as files name them."""
        folder = self.path / HOSTS
        places = sorted(folder.iterdir()) if folder.is_dir() else []
        return {each.name for each in places if find_holder(each) is not None}

    def results(self, skipped: list[SkippedFile] | None = None) -> tuple[Result, ...]:
        """Return all results.

        Raises
        ------
        ProfileError
            If one cannot be read and there is no ``skipped``.
        """
        return read_results(self.path, skipped)

    def forget_failed(self) -> None:
        """Remove the results without figures, so that their cells are measured again."""
        for path in list(find_results(self.path)):
            if read_result(path).status != MEASURED:
                with storage_errors(path):
                    path.unlink()

    def jobs(self) -> Iterator[Job]:
        """Yield all runs in their order: each round all cells, none favoured by its place."""
        for round in range(self.recipe.repeats):
            for place in turn_order(len(self.order), round):
                yield Job(self.cells[self.order[place]], round)

    def open_jobs(self, results: Iterable[Result]) -> list[Job]:
        """Return the runs that are left, in their order; a cell that failed has none any more."""
        results = tuple(results)
        done = {(each.key, each.round) for each in results}
        over = {each.key for each in results if each.status != MEASURED}
        return [
            job
            for job in self.jobs()
            if job.cell.key not in over and (job.cell.key, job.round) not in done
        ]

    def here(self, jobs: list[Job]) -> list[Job]:
        """Return those of some runs that are for this machine."""
        host = host_name()
        return [job for job in jobs if fnmatch.fnmatchcase(host, job.cell.machine)]


def read_folder_recipe(folder: Path) -> SuiteRecipe:
    """Return the recipe that a suite's folder is of.

    Raises
    ------
    ProfileError
        If it holds none that can be read.
    """
    file = folder / RECIPE_FILE
    try:
        told = read_json(file)
        if not isinstance(told, dict):
            raise ValueError("is no object")
        return SuiteRecipe.from_json(told, where=str(file))
    except OSError as error:
        raise ProfileError(
            f"{file}: {error.strerror or error}; expected a folder of 'iobench suite --out'"
        ) from error
    except IobenchError as error:
        raise ProfileError(f"{error}; use the iobench that wrote it") from error
    except ValueError as error:
        raise ProfileError(f"{file}: is damaged ({error}); name a new folder") from error


def read_suites(
    folders: Iterable[Path],
) -> tuple[tuple[SuiteResults, ...], tuple[SkippedFile, ...]]:
    """Return the suites in folders, however deep, and the files that cannot be read.

    A suite is the folder that holds its recipe; where there is none, the folder of its cells.
    """
    suites: list[SuiteResults] = []
    skipped: list[SkippedFile] = []
    for top in folders:
        results: dict[Path, list[Result]] = defaultdict(list)
        for file in find_results(top):
            place = file.relative_to(top)
            if any(part.startswith(".") for part in place.parts):
                continue
            try:
                results[_suite_of(file.parent, top)].append(read_result(file))
            except ProfileError as error:
                why = str(error).removeprefix(f"{file}: ")
                skipped.append(SkippedFile(place.as_posix(), why))
        for folder, found in results.items():
            name = folder.relative_to(top).as_posix() if folder != top else top.resolve().name
            drop = 0
            try:
                drop = read_folder_recipe(folder).drop if (folder / RECIPE_FILE).exists() else 0
            except ProfileError as error:
                skipped.append(SkippedFile(f"{name}/{RECIPE_FILE}", str(error)))
            suites.append(SuiteResults(name, tuple(found), drop))
    return tuple(suites), tuple(skipped)


def _suite_of(cell: Path, top: Path) -> Path:
    above = [cell, *cell.parents]
    within = above[: above.index(top) + 1]
    of_recipe = (each for each in within if (each / RECIPE_FILE).exists())
    return next(of_recipe, cell if cell == top else cell.parent)
