"""The folder of a suite: its recipe, and a result of each run that is measured already.

::

    recipe.json                     what is measured
    cells/CELL/round-N.result.json  what a run measured; beside it round-N, its run directory, and
                                    round-N.log, what its process said

A result holds all that later questions need and never changes: the run directory may be gone.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from iobench.errors import IobenchError, OptionError, ProfileError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.locks import LOCK_NAME
from iobench.json_files import read_json
from iobench.suites.recipe import SuiteRecipe
from iobench.trials.interleaving import turn_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.suites.recipe import Cell

RECIPE_FILE: Final = "recipe.json"
RESULT_SUFFIX: Final = ".result.json"
Status = Literal["measured", "failed", "not available"]
MEASURED: Final = "measured"
FAILED: Final = "failed"
NOT_AVAILABLE: Final = "not available"
MAX_NBYTES: Final = 1 << 20


class Result(msgspec.Struct, frozen=True):
    """One run of one cell: ``cell`` and ``options`` are what varies, and all; ``started`` in UTC.

    ``figures`` are in the units that their names end in; ``run`` is the directory beside the file.
    """

    suite: str
    recipe_digest: str
    cell: Mapping[str, str]
    round: int
    status: Status
    started: str
    reason: str | None = None
    figures: Mapping[str, float] = {}
    machine: Mapping[str, Any] = {}
    versions: Mapping[str, str] = {}
    samples_digest: str | None = None
    stand_in: bool | None = None
    run: str | None = None
    options: Mapping[str, str] = {}
    kind: Literal["iobench suite result"] = "iobench suite result"
    version: Literal[1] = 1

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What tells its cell from others."""
        return tuple(sorted(self.cell.items()))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a document whole."""
    write_atomically(path, f"{json.dumps(values, indent=1, sort_keys=True)}\n".encode())


def write_result(folder: Path, result: Result) -> Path:
    """Write a result into the folder of its cell; return the file."""
    path = folder / f"round-{result.round}{RESULT_SUFFIX}"
    write_json(path, asdict(result))
    return path


def read_result(path: Path) -> Result:
    """Read one result."""
    try:
        return msgspec.convert(read_json(path, limit=MAX_NBYTES, finite=True), Result)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}; measure its cell again") from error
    except ValueError as error:
        raise ProfileError(f"{path}: is damaged ({error}); remove it to measure again") from error


def find_results(folder: Path) -> Iterator[Path]:
    """Yield the files of results below a folder, by name; run directories are not looked into."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        if "run.json" in names:
            folders.clear()
        else:
            yield from (Path(parent) / n for n in sorted(names) if n.endswith(RESULT_SUFFIX))


class Job(NamedTuple):
    """One run that a suite takes."""

    cell: Cell
    round: int


class SuiteFolder:
    """A suite's folder: of a recipe, whether it exists yet or not, or the one that is there."""

    def __init__(self, path: Path, recipe: SuiteRecipe | None = None) -> None:
        if recipe is None:
            recipe = read_folder_recipe(path)
        elif (path / RECIPE_FILE).exists():
            other = read_folder_recipe(path)
            # And not the other, which has no secrets.
            recipe = replace(recipe, metrics=other.metrics, title=other.title)
            if recipe.digest != other.digest:
                raise OptionError(
                    f"--out {path}: holds suite {other.name} of another recipe ({other.digest}, "
                    f"not {recipe.digest}); continue with that one, or name a new folder"
                )
        self.path, self.recipe, self.cells = path, recipe, recipe.cells()

    def create(self) -> None:
        """Create the folder with its recipe, or go on with it."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if (self.path / RECIPE_FILE).exists():
                return
            if any(not each.name.startswith((".", LOCK_NAME)) for each in self.path.iterdir()):
                raise OptionError(
                    f"--out {self.path}: holds something else; name a new folder, or that of "
                    "the same suite"
                )
            write_json(self.path / RECIPE_FILE, self.recipe.to_json())

    def place(self, cell: Cell) -> Path:
        """Return the folder of a cell."""
        return self.path / "cells" / cell.folder

    def results(self) -> tuple[Result, ...]:
        """Return all results; none where there is no folder."""
        return tuple(map(read_result, find_results(self.path)))

    def open_jobs(self) -> list[Job]:
        """Return the runs that are left: each round all cells, none favoured by its place.

        A cell that failed has none any more.
        """
        results = self.results()
        done = {(each.key, each.round) for each in results}
        over = {each.key for each in results if each.status != MEASURED}
        order = list(self.cells)
        random.Random(self.recipe.seed).shuffle(order)
        return [
            Job(order[place], number)
            for number in range(self.recipe.repeats)
            for place in turn_order(len(order), number)
            if order[place].key not in over and (order[place].key, number) not in done
        ]


def read_folder_recipe(folder: Path) -> SuiteRecipe:
    """Return the recipe that a suite's folder is of."""
    file = folder / RECIPE_FILE
    try:
        return SuiteRecipe.from_json(read_json(file), where=str(file))
    except OSError as error:
        why = f"{error.strerror or error}; expected the folder of a suite"
        raise ProfileError(f"{file}: {why}") from error
    except (IobenchError, ValueError) as error:
        raise ProfileError(f"{file}: is damaged ({error}); name a new folder") from error
