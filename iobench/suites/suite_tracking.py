"""A suite told to whoever keeps experiments: the means of its cells in one run there."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.suites.recipe import said_cell
from iobench.suites.suite_folder import SuiteFolder, read_folder_recipe
from iobench.suites.suite_table import SuiteTable, suite_table
from iobench.tracking.legal_names import PREFIX, cut, legal_names
from iobench.tracking.run_logging import log_contents
from iobench.tracking.run_metrics import RunContents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from iobench.suites.results import Result

PROJECT = Path(__file__).parent / "mlproject"
"""The folder that ``mlflow run`` takes."""


def log_suite(
    folder: Path,
    *,
    mlflow: str | None = None,
    wandb: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[str, ...]:
    """Tell servers of a suite; as `iobench.tracking.run_logging.log_run` of a run.

    Its recipe is parameters, and of each cell the mean and spread of each figure are metrics, as
    ``iobench/CELL/FIGURE``.

    Raises
    ------
    ProfileError
        If it is no suite.
    OptionError, MissingExtraError, TrackingError, StorageError
        As `log_run`.
    """
    suite = SuiteFolder.of(folder, read_folder_recipe(folder))
    table, results = suite_table(suite), suite.results([])
    return log_contents(
        folder,
        lambda: (_contents(table, suite, results),),
        tuple,  # no files: figures and pages are made of the suite's folder
        title=table.title,
        mlflow=mlflow,
        wandb=wandb,
        say=say,
        command=("suite", "tell"),
    )


def _contents(table: SuiteTable, suite: SuiteFolder, results: Iterable[Result]) -> RunContents:
    recipe = suite.recipe
    told = {
        "suite": table.suite,
        "recipe_digest": table.recipe_digest,
        "repeats": table.repeats,
        "drop": table.drop,
        **{key: " ".join(values) for key, values in recipe.fixed.items()},
        **{f"vary/{key}": ", ".join(map(" ".join, each)) for key, each in recipe.vary.items()},
    }
    kept = {f"{PREFIX}{name}": cut(str(value)) for name, value in told.items()}
    names = legal_names(said_cell(row.cell) for row in table.cells)
    totals: dict[str, float] = {}
    for row in table.cells:
        for figure, each in row.figures.items():
            name = f"{PREFIX}{names[said_cell(row.cell)]}/{figure}"
            totals |= {name: each.mean.value} if each.mean.value is not None else {}
            totals |= {f"{name}/spread": each.spread} if each.spread is not None else {}
    failed = [said_cell(row.cell) for row in table.cells if row.reason is not None]
    times = [(_ms(each.started), each.took_s) for each in results]
    return RunContents(
        name="",
        parameters={name: text for name, (text, _) in kept.items()},
        cut=tuple(name for name, (_, is_cut) in kept.items() if is_cut),
        epochs=(),
        totals=totals,
        tags={"iobench.version": version("iobench")}
        | ({"iobench.failed": cut(", ".join(failed))[0]} if failed else {}),
        start_ms=min((at for at, _ in times), default=0),
        end_ms=max((at + round(took_s * 1000) for at, took_s in times), default=0),
    )


def _ms(started: str) -> int:
    try:
        return max(0, round(datetime.fromisoformat(started).timestamp() * 1000))
    except ValueError:
        return 0
