"""``iobench compare --quarterly``: the table of D2.3 from folders of suites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.cli import main
from iobench.suites.recipe import read_recipe
from iobench.suites.results import MEASURED, Result, SuiteFolder, write_result

if TYPE_CHECKING:
    import pytest

RECIPE = """
[suite]
repeats = 3
[fixed]
dataset = "own"
[vary]
format = ["zarr", "source"]
workers = [0, 2]
"""


def suite_of(path: Path, day: int, step_s: float, **figures: float) -> Path:
    """Write a suite's results; of three runs the lowest and highest are dropped."""
    recipe = path.with_suffix(".toml")
    recipe.write_text(RECIPE)
    folder = SuiteFolder(path, read_recipe(recipe))
    folder.create()
    for job in folder.open_jobs():
        place = folder.place(job.cell)
        place.mkdir(parents=True, exist_ok=True)
        took_s = (step_s / 2, step_s, 9.0)[job.round]
        write_result(place, Result(
            path.name, folder.recipe.digest, job.cell.values, job.round, MEASURED,
            f"2026-11-0{day}T00:00:00+00:00", machine={"cores": 2, "cpu_model": "a CPU"},
            figures={"step_s": took_s, "wait_s": took_s / 4, **figures},
            options=job.cell.masked_options,
        ))  # fmt: skip
    return path


def test_the_newest_of_each_cell_stands_beside_what_was_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = suite_of(tmp_path / "old", 1, 0.5)
    new = suite_of(tmp_path / "new", 2, 0.25, published_step_s=2.0, published_wait_s=0.5,
                   **{"metric:loss": 3.0, "energy_j": 7.0})  # fmt: skip
    for folder in (new / "cells").iterdir():
        if folder.name.endswith("zarr-2"):
            for file in folder.iterdir():
                file.unlink()
    assert main(["compare", str(new), str(old), "--quarterly", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    # The original files first; what the newer suite has not is of the older.
    assert [(row["format"], row["others"], row["suite"]) for row in rows] == [
        ("source", "workers 0", str(new)), ("source", "workers 2", str(new)),
        ("zarr", "workers 0", str(new)), ("zarr", "workers 2", str(old)), ("", "", None),
    ]  # fmt: skip
    assert [row["means_s"]["batch"] for row in rows] == [0.25, 0.25, 0.25, 0.5, 2.0]
    assert [row["exposed_fraction"] for row in rows] == [0.25] * 5
    assert rows[0]["figures"] == {"loss": 3.0, "energy_j": 7.0}
    assert (rows[0]["n_runs"], rows[4]["means_s"]) == (3, {"batch": 2.0, "I/O": 0.5})
    assert main(["compare", str(new), str(old), "--quarterly"]) == 0
    text = capsys.readouterr().out
    assert "loss" in text
    assert text.index("native source workers 2") < text.index("as published")
    (tmp_path / "recipe.json").write_text("{")
    assert main(["compare", str(tmp_path), "--quarterly"]) == 1
    assert "is damaged" in capsys.readouterr().err
