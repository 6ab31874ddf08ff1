"""Recipes: what is read, what is refused before anything runs, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.errors import IobenchError, StorageError, UnknownNameError
from iobench.suites.recipe import SuiteRecipe, read_recipe, recipe_names

RECIPE = """
[suite]
repeats = 5
limit = "2min"
metrics = ["step_s", "wait_s"]

[fixed]
batches = 8
tiny = true
option = ["a=b", "c=d"]

[vary]
dataset = ["one", "two"]
format = ["source", "zarr", "zarr:dtype=float16,codec=zlib"]
framework = ["native", "tensorflow"]

[[skip]]
framework = "tensorflow"
format = ["source", "zarr:*"]
"""


def recipe(tmp_path: Path, text: str = RECIPE, *changes: str) -> SuiteRecipe:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_recipe(path, changes)


def test_cells_are_the_product_without_what_is_skipped(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    assert (found.name, found.repeats, found.drop, found.limit_s) == ("mine", 5, 1, 120.0)
    cells = found.cells()
    assert [each.name for each in cells if each.values["dataset"] == "one"] == [
        "one source native",
        "one zarr native",
        "one zarr tensorflow",
        "one zarr:dtype=float16,codec=zlib native",
    ]
    assert len(cells) == 8
    assert cells[0].words == [
        "profile", "one", "--pipeline=own", "--batches=8", "--tiny", "--option=a=b", "--option=c=d",
        "--format=source", "--framework=native",
    ]  # fmt: skip
    assert cells[0].values == {"dataset": "one", "format": "source", "framework": "native"}
    assert len({each.folder for each in cells}) == 8


def test_a_recipe_is_the_same_after_json(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    again = SuiteRecipe.from_json(found.to_json(), where="suite.json")
    assert again.to_json() == found.to_json()
    assert again.digest == found.digest


def test_changes_say_what_is_fixed_and_what_varies(tmp_path: Path) -> None:
    one = recipe(tmp_path)
    found = recipe(
        tmp_path, RECIPE, "repeats=3", "format=source,zarr:dtype=float16,codec=zlib,numpy",
        "framework=native", "batch_size=4", "workers=0,2", "metrics=step_s,utilisation",
    )  # fmt: skip
    assert found.repeats == 3
    assert found.vary["format"] == (("source",), ("zarr:dtype=float16,codec=zlib",), ("numpy",))
    assert found.vary["workers"] == (("0",), ("2",))
    assert found.vary["framework"] == (("native",),)
    assert found.fixed["batch-size"] == ("4",)
    assert found.metrics == ("step_s", "utilisation")
    assert found.digest != one.digest
    assert len(found.cells()) == 12


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("batches = 8", "batchs = 8", "did you mean batches"),
        ("[vary]", "[varies]", "varies"),
        ("repeats = 5", "repeats = 2", "repeats"),
        ('"2min"', '"soon"', "limit soon"),
        ('"wait_s"', '"waits_s"', "did you mean wait_s"),
        ("tiny = true", "tiny = 3", "tiny"),
        ("batches = 8", "format = 'zarr'", "format"),
        ('dataset = ["one", "two"]', "", "dataset"),
        ('["one", "two"]', '"one"', r"\$.vary"),
        ('["one", "two"]', '["one", "one"]', "distinct"),
        ('format = ["source", "zarr:*"]', 'formt = "x"', "did you mean format"),
        ("[fixed]", "[fixed", "is no TOML"),
        ("[[skip]]", '[[skip]]\ndataset = "*"\n[[skip]]', "no cell is left"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, before: str, after: str, names: str
) -> None:
    assert before in RECIPE
    with pytest.raises(IobenchError, match=f"mine.toml.*{names}") as caught:
        recipe(tmp_path, RECIPE.replace(before, after))
    assert "\n" not in str(caught.value)


def test_what_a_change_leaves_nothing_of_may_be_skipped(tmp_path: Path) -> None:
    assert len(recipe(tmp_path, RECIPE, "framework=native").cells()) == 6
    kept = recipe(tmp_path).to_json() | {"skip": [{}]}  # as folders have it that were made before
    assert len(SuiteRecipe.from_json(kept, where="recipe.json").cells()) == 12


@pytest.mark.parametrize("change", ["repets=3", "qzx=1", "repeats", "=3"])
def test_a_change_that_is_none(tmp_path: Path, change: str) -> None:
    with pytest.raises(IobenchError, match=f"--set {change}"):
        recipe(tmp_path, RECIPE, change)


def test_what_is_a_key_and_an_option_is_proposed_once(tmp_path: Path) -> None:
    with pytest.raises(IobenchError, match=r"did you mean seed\?$"):
        recipe(tmp_path, RECIPE, "seeed=1")


def test_unknown_recipes() -> None:
    with pytest.raises(UnknownNameError, match="did you mean quick"):
        read_recipe("quik")
    with pytest.raises(StorageError, match=r"nowhere\.toml: No such file"):
        read_recipe("nowhere.toml")


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_that_come_along_are_sound(name: str) -> None:
    found = read_recipe(name)
    assert found.name == name
    assert found.cells()
