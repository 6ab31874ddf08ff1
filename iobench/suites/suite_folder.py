"""The folder of a suite: which recipe it is of, and what is measured already.

::

    recipe.json                     what is measured
    cells/CELL/round-N.result.json  what a run measured; beside it round-N, its run directory, and
                                    round-N.log, what its process said
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec.structs import replace

from iobench.errors import IobenchError, OptionError, ProfileError, StorageError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.claims import CLAIM_NAME, claim
from iobench.json_files import read_json
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
    from collections.abc import Iterable
    from pathlib import Path

    from iobench.suites.recipe import Cell
    from iobench.suites.results import Result

RECIPE_FILE: Final = "recipe.json"


class Job(msgspec.Struct, frozen=True):
    """One run that a suite takes: a cell, and the round."""

    cell: Cell
    round: int


class SuiteFolder(msgspec.Struct, frozen=True):
    """A suite's folder, whether it exists yet or not."""

    path: Path
    recipe: SuiteRecipe
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, path: Path, recipe: SuiteRecipe) -> Self:
        """Return the folder of a suite; of one whose recipe shows other figures, that recipe.

        Raises
        ------
        OptionError
            If it is of another recipe.
        """
        if (path / RECIPE_FILE).exists():
            other = read_folder_recipe(path)
            same = replace(recipe, metrics=other.metrics, title=other.title)
            if same.digest != other.digest:
                raise OptionError(
                    f"--out {path}: holds suite {other.name} of another recipe ({other.digest}, "
                    f"not {recipe.digest}); continue with that one, or name a new folder"
                )
            recipe = same  # and not the other, which has no secrets
        return cls(path, recipe, recipe.cells())

    def create(self) -> None:
        """Create the folder with its recipe, or go on with it.

        Raises
        ------
        OptionError
            If it holds something else.
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
            if (self.path / RECIPE_FILE).exists():
                self.of(self.path, self.recipe)  # somebody else's by now
                return
            # Hidden are claims of others that are about to be made.
            if any(not each.name.startswith((".", CLAIM_NAME)) for each in self.path.iterdir()):
                raise OptionError(
                    f"--out {self.path}: holds something else; name a new folder, or that of "
                    "the same suite"
                )
            text = json.dumps(self.recipe.to_json(), indent=1, sort_keys=True)
            write_atomically(self.path / RECIPE_FILE, f"{text}\n".encode())

    def place(self, cell: Cell) -> Path:
        """Return the folder of a cell."""
        return self.path / "cells" / cell.folder

    def result_file(self, job: Job) -> Path:
        """Return where the result of a run is kept."""
        return self.place(job.cell) / f"round-{job.round}{RESULT_SUFFIX}"

    def results(self, skipped: list[SkippedFile] | None = None) -> tuple[Result, ...]:
        """Return all results, as `read_results`; none where there is no folder."""
        return read_results(self.path, skipped) if self.path.is_dir() else ()

    def forget_failed(self) -> None:
        """Remove the results without figures, so that their cells are measured again."""
        for path in list(find_results(self.path)):
            if read_result(path).status != MEASURED:
                with storage_errors(path):
                    path.unlink()

    def jobs(self) -> list[Job]:
        """Return all runs in their order: each round all cells, none favoured by its place."""
        order = list(range(len(self.cells)))
        random.Random(self.recipe.seed).shuffle(order)
        return [
            Job(self.cells[order[place]], number)
            for number in range(self.recipe.repeats)
            for place in turn_order(len(order), number)
        ]

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


def read_folder_recipe(folder: Path) -> SuiteRecipe:
    """Return the recipe that a suite's folder is of.

    Raises
    ------
    ProfileError
        If it holds none that can be read.
    """
    file = folder / RECIPE_FILE
    try:
        tables = read_json(file)
        if not isinstance(tables, dict):
            raise ValueError("is no object")
        return SuiteRecipe.from_json(tables, where=str(file))
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
        for folder, of_suite in results.items():
            name = folder.relative_to(top).as_posix() if folder != top else top.resolve().name
            drop = 0
            try:
                drop = read_folder_recipe(folder).drop if (folder / RECIPE_FILE).exists() else 0
            except ProfileError as error:
                skipped.append(SkippedFile(f"{name}/{RECIPE_FILE}", str(error)))
            suites.append(SuiteResults(name, tuple(of_suite), drop))
    return tuple(suites), tuple(skipped)


def _suite_of(cell: Path, top: Path) -> Path:
    above = [cell, *cell.parents]
    within = above[: above.index(top) + 1]
    of_recipe = (each for each in within if (each / RECIPE_FILE).exists())
    return next(of_recipe, cell if cell == top else cell.parent)
