"""Folders of suites whose runs were really measured: once each, and copied for further rounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

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
        first = folder / "cells" / cell.folder / "round-0"
        words = ["profile", *cell.words, "--store-dir", str(stores), "--out", str(first)]
        assert main(words) == 0
        found = figures_of_run(first)
        for number in range(recipe.repeats):
            if number:
                shutil.copytree(first, first.with_name(f"round-{number}"))
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
                run=f"round-{number}",
                options={key: " ".join(each) for key, each in cell.options.items()},
            )
            write_result(first.parent, result)
    return folder
