"""``iobench suite``: a matrix of profiles by a recipe, in rounds, that goes on where it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.cli.documents import print_answer, print_document, shown_as, write_document
from iobench.cli.profile_command import checked_config
from iobench.cli.screen import TerminalScreen
from iobench.datasets.python_objects import CLIMETLAB, is_object_target
from iobench.errors import IobenchError, OptionError
from iobench.files.urls import URL, as_path
from iobench.masking import mask_words
from iobench.registry import find_dataset
from iobench.report.document import Column, Sentence, Table
from iobench.suites.recipe import read_recipe
from iobench.suites.results import SuiteFolder
from iobench.suites.suite_run import run_suite, runs_left
from iobench.suites.suite_table import suite_document, suite_table

if TYPE_CHECKING:
    from iobench.suites.recipe import Cell, SuiteRecipe

INTERRUPTED: Final = 75


def suite(
    *,
    recipe: str,
    out: Path | None,
    changes: Sequence[str],
    dry_run: bool,
    allow_code: bool,
    json: bool,
    markdown: bool,
    html: Path | None,
) -> None:
    """Measure the cells of a recipe, and print their table; exit 1 or 75 where some are left."""
    spelled = shown_as(json=json, markdown=markdown)
    spec = read_recipe(recipe, changes)
    if not (allow_code or dry_run) and (code := _code_of(spec)):
        raise OptionError(f"{recipe}: {code} would be run as code; trust it with --allow-code")
    if out is None and not dry_run:
        raise OptionError("--out: expected a folder for results and runs, or --dry-run")
    folder = SuiteFolder(out or Path(os.devnull), spec)
    for cell in folder.cells:
        _check_cell(cell)
    if dry_run:
        _print_cells(folder, json=json)
        return
    run_suite(folder, TerminalScreen())
    table = suite_table(folder, spec.metrics)
    document = suite_document(table)
    print_document(document, spelled)
    if html is not None:
        write_document(document, html)
    if table.n_failed or table.n_open:
        sys.exit(1 if table.n_failed else INTERRUPTED)


def _code_of(recipe: SuiteRecipe) -> str:
    """Return the first option whose value would be run as code, ``""`` where none is."""
    for cell in recipe.cells():
        for name, values in cell.options.items():
            for value in values:
                is_object = name == "dataset" and not value.startswith(CLIMETLAB)
                is_library = name == "darshan" and value not in ("auto", "off")
                if name == "command" or is_library or (is_object and is_object_target(value)):
                    return f"{name} {value!r}"
    return ""


def _check_cell(cell: Cell) -> None:
    """Raise OptionError for a cell that no profile could be made of."""
    kind, *words = cell.words
    if kind == "run":
        return
    try:
        environ = {**os.environ, **cell.environment}
        config = checked_config(words, environ)
        n_methods = len(config.frameworks) * (len(config.formats) + len(config.stores))
        if n_methods * len(config.pipelines) != 1:
            raise OptionError("expected one format, framework and pipeline; let them vary instead")
        for target in config.targets:
            path = as_path(target)
            if isinstance(path, URL) or ":" in target or path.exists():
                continue
            if path.name != target or path.suffix:
                raise OptionError(f"{target}: there is no such file or folder")
            find_dataset(target, **config.options)
    except IobenchError as error:
        raise OptionError(
            f"cell {cell.name}: {error}; correct the recipe, or leave the cell out with a [[skip]]"
        ) from error


def _print_cells(folder: SuiteFolder, *, json: bool) -> None:
    n_open = {cell.number: 0 for cell in folder.cells}
    for job in folder.open_jobs():
        n_open[job.cell.number] += 1
    n_left = sum(n_open.values())
    rows = tuple((each.name, f"{n_open[each.number]}") for each in folder.cells)
    recipe = folder.recipe
    figures = {
        "suite": recipe.name,
        "recipe": recipe.to_json(),
        "recipe_digest": recipe.digest,
        "cells": [dict(each.values) for each in folder.cells],
        "commands": [["iobench", *mask_words(each.words)] for each in folder.cells],
        "n_left": n_left,
        "most_s": n_left * recipe.limit_s,
    }
    print_answer(
        f"{recipe.title} ({recipe.name}, recipe {recipe.digest})",
        Table("", (Column("cell"), Column("runs left")), rows),
        Sentence(f"{runs_left(folder, n_left)}."),
        figures=figures,
        json=json,
    )
