"""Recipes and results: what is read, and what is refused before anything runs, in a line."""

from __future__ import annotations

import json

import pytest

from iobench.errors import IobenchError, ProfileError, StorageError, UnknownNameError
from iobench.suites.recipe import SuiteRecipe, read_recipe, recipe_names
from iobench.suites.results import (
    FAILED,
    MEASURED,
    Result,
    find_results,
    read_result,
    write_result,
)

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


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe, some of it replaced, and read it with changes."""

    def read(*changes, replaced=("", "")):
        assert replaced[0] in RECIPE
        path = tmp_path / "mine.toml"
        path.write_text(RECIPE.replace(*replaced) if replaced[0] else RECIPE)
        return read_recipe(path, changes)

    return read


def test_cells_are_the_product_without_what_is_skipped(recipe):
    found = recipe()
    assert (found.name, found.repeats, found.drop, found.limit_s) == ("mine", 5, 1, 120.0)
    cells = found.cells()
    assert [each.name for each in cells if each.values["dataset"] == "one"] == [
        "one source native",
        "one zarr native",
        "one zarr tensorflow",
        "one zarr:dtype=float16,codec=zlib native",
    ]
    assert len({each.folder for each in cells}) == len(cells) == 8
    assert cells[0].words == [
        "profile", "one", "--pipeline=own", "--batches=8", "--tiny", "--option=a=b", "--option=c=d",
        "--format=source", "--framework=native",
    ]  # fmt: skip
    assert cells[0].values == {"dataset": "one", "format": "source", "framework": "native"}
    again = SuiteRecipe.from_json(found.to_json(), where="suite.json")
    assert (again.to_json(), again.digest) == (found.to_json(), found.digest)
    older = found.to_json() | {"skip": [{}]}  # as folders have it that were made before
    assert len(SuiteRecipe.from_json(older, where="recipe.json").cells()) == 12


def test_changes_say_what_is_fixed_and_what_varies(recipe):
    found = recipe(
        "repeats=3", "format=source,zarr:dtype=float16,codec=zlib,numpy", "framework=native",
        "batch_size=4", "workers=0,2", "metrics=step_s,utilisation",
    )  # fmt: skip
    assert found.repeats == 3
    assert found.vary["format"] == (("source",), ("zarr:dtype=float16,codec=zlib",), ("numpy",))
    assert found.vary["workers"] == (("0",), ("2",))
    assert found.vary["framework"] == (("native",),)
    assert found.fixed["batch-size"] == ("4",)
    assert found.metrics == ("step_s", "utilisation")
    assert found.digest != recipe().digest
    assert len(found.cells()) == 12
    assert len(recipe("framework=native").cells()) == 6  # what it leaves nothing of may be skipped


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
def test_what_is_wrong_is_said_in_one_line(recipe, before, after, names):
    with pytest.raises(IobenchError, match=f"mine.toml.*{names}") as caught:
        recipe(replaced=(before, after))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        *((change, IobenchError, f"--set {change}") for change in ("repets=3", "qzx=1", "=3")),
        ("seeed=1", IobenchError, r"did you mean seed\?$"),  # a key and an option, proposed once
        ("quik", UnknownNameError, "did you mean quick"),
        ("nowhere.toml", StorageError, r"nowhere\.toml: No such file"),
    ],
)
def test_a_change_or_a_recipe_that_is_none(recipe, change, error, said):
    with pytest.raises(error, match=said):
        recipe(change) if "=" in change else read_recipe(change)


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_that_come_along_are_sound(name):
    found = read_recipe(name)
    assert found.name == name
    assert found.cells()


# -- results ------------------------------------------------------------------------------

FOUND = Result(
    suite="mine", recipe_digest="0" * 16, cell={"dataset": "one", "format": "zarr"}, round=2,
    status=MEASURED, started="2026-11-27T22:00:00+00:00", figures={"step_s": 0.1},
    machine={"host": "a", "cores": 2}, versions={"iobench": "1"}, run="run",
)  # fmt: skip


def test_results_are_read_as_they_were_written_and_run_directories_not_looked_into(tmp_path):
    failed = Result("mine", "0" * 16, {"dataset": "two"}, 0, FAILED, "2026", reason="a reason")
    for folder, result in ((tmp_path / "a" / "b", FOUND), (tmp_path / "c", failed)):
        folder.mkdir(parents=True)
        write_result(folder, result)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    write_result(run, FOUND)
    assert [*map(read_result, find_results(tmp_path))] == [FOUND, failed]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 7}, "is damaged .Invalid enum value 7"),
        ({"status": "fine"}, "is damaged .Invalid enum value 'fine'"),
        ({"figures": {"step_s": "fast"}}, "is damaged"),
        ({"round": None}, "is damaged"),
        (None, "is damaged"),
    ],
)
def test_a_result_that_cannot_be_read_is_told(tmp_path, change, told):
    path = write_result(tmp_path, FOUND)
    text = path.read_text()
    path.write_text(text[:-20] if change is None else json.dumps(json.loads(text) | change))
    with pytest.raises(ProfileError, match=told) as caught:
        read_result(path)
    assert str(caught.value).startswith(str(path))
