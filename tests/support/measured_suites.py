"""Folders of suites whose runs were really measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.suites.metrics import figures_of_run
from iobench.suites.recipe import SuiteRecipe
from iobench.suites.results import MEASURED, Result, write_result


def write_suite(folder: Path, stores: Path, tables: dict[str, Any]) -> Path:
    """Measure each cell of a recipe in this process, and return the folder of the suite."""
    recipe = SuiteRecipe.from_json(tables, where="here")
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(recipe.to_json()))
    for cell in recipe.cells():
        for number in range(recipe.repeats):
            run = folder / "cells" / cell.folder / f"round-{number}"
            words = [*cell.words, "--store-dir", str(stores), "--out", str(run)]
            with pytest.MonkeyPatch.context() as patch:
                for name, value in cell.environment.items():
                    patch.setenv(name, value)
                assert main(words) == 0
            found = figures_of_run(run)
            result = Result(
                suite=recipe.name,
                recipe_digest=recipe.digest,
                cell=cell.values,
                round=number,
                status=MEASURED,
                started="2026-11-27T22:00:00+00:00",
                figures=found.figures,
                machine={"host": "workstation-of-alice"},
                versions={"numpy": "2.4"},
                samples_digest=found.samples_digest,
                run=run.name,
                options={key: " ".join(each) for key, each in cell.options.items()},
            )
            write_result(run.parent, result)
    return folder
