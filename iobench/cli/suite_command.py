"""``iobench suite``: a matrix of profiles by a recipe, in rounds, that goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from iobench.cli.command import IobenchCommand, make_typer
from iobench.cli.documents import (
    Html,
    Json,
    Markdown,
    Renderer,
    print_answer,
    print_document,
    shown_as,
    write_document,
)
from iobench.cli.suite_mllog import mllog

if TYPE_CHECKING:
    from iobench.suites.recipe import Cell, SuiteRecipe
    from iobench.suites.suite_folder import SuiteFolder

INTERRUPTED: Final = 75
MLLOG: Final = "mllog"
"""The first word of ``iobench suite mllog DIR``."""


class SuiteCommand(IobenchCommand):
    """Measures the recipe that it is given, unless the first word is `MLLOG`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of this command, or of ``iobench suite mllog``."""
        if args[:1] != [MLLOG]:
            return super().make_context(info_name, args, parent, **extra)
        app = make_typer()
        app.command(MLLOG, cls=IobenchCommand)(mllog)
        command: Any = typer.main.get_command(app)
        return command.make_context(f"{info_name} {MLLOG}", args[1:], parent, **extra)


def suite(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help=("A .toml file, or the name of a recipe that comes with iobench."),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for results and runs; a suite begun there is continued."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change the recipe: repeats=3, format=source,zarr, tiny=true; repeatable.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure failed cells again.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help=("Check the recipe and print its cells and expected time.")),
    ] = False,
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code",
            help="Run what the recipe names as code: a command, MODULE:CALLABLE, a library.",
        ),
    ] = False,
    json: Json = False,
    markdown: Markdown = False,
    renderer: Renderer = "",
    html: Html = None,
) -> None:
    """Profile all cells of a recipe in rounds, and print each with its figures and their spread.

    Killed or out of time, the same command goes on where it was. Processes that are given one
    folder share its cells: machines take different ones, on each machine one process measures.
    iobench suite mllog DIR (see iobench suite mllog --help) writes its runs as MLPerf's logs.

    Recipes that come along: formats, loaders, maelstrom, mlperf-hpc, procurement, quick. Exits
    with 1 if a cell failed, with 75 if runs are left.
    """
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.suites.recipe import read_recipe
    from iobench.suites.suite_folder import SuiteFolder
    from iobench.suites.suite_run import run_suite
    from iobench.suites.suite_table import suite_document, suite_table

    told_as = shown_as(json=json, markdown=markdown, renderer=renderer)
    found = read_recipe(recipe, changes or ())
    if not (allow_code or dry_run) and (code := _code_of(found)):
        raise OptionError(f"{recipe}: {code} would be run as code; trust it with --allow-code")
    if out is None and not dry_run:
        raise OptionError("--out: expected a folder for results and runs, or --dry-run")
    folder = SuiteFolder.of(Path(), found) if out is None else SuiteFolder.found(out, found)
    for cell in folder.cells:
        _check_cell(cell)
    if out is not None:
        folder.check()
    if dry_run:
        _print_cells(folder, is_new=out is None, json=json)
        return
    if again:
        folder.forget_failed()
    run_suite(folder, TerminalScreen())
    table = suite_table(folder, found.metrics)
    document = suite_document(table)
    print_document(document, told_as)
    if html is not None:
        write_document(document, html)
    if table.n_failed or table.n_open:
        raise typer.Exit(1 if table.n_failed else INTERRUPTED)


def _code_of(recipe: SuiteRecipe) -> str:
    """Return the first option whose value would be run as code, ``""`` where none is."""
    from iobench.datasets.objects.targets import CLIMETLAB, is_object_target

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
    from iobench.cli.profile_command import checked_config
    from iobench.errors import IobenchError, OptionError
    from iobench.files.urls import URL, as_path
    from iobench.registry import find_dataset

    kind, *words = cell.words
    if kind == "run":
        return
    try:
        config = checked_config(words)
        n_ways = len(config.frameworks) * (len(config.formats) + len(config.stores))
        if n_ways * len(config.pipelines) != 1:
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


def _print_cells(folder: SuiteFolder, *, is_new: bool, json: bool) -> None:
    from iobench.masking import mask_words
    from iobench.report.document import Column, Sentence, Table
    from iobench.suites.suite_run import forecast

    results = () if is_new or not folder.path.is_dir() else folder.results()
    left = forecast(folder, results)
    n_open = {cell.number: 0 for cell in folder.cells}
    for job in folder.open_jobs(results):
        n_open[job.cell.number] += 1
    rows = tuple((each.name, f"{n_open[each.number]}") for each in folder.cells)
    recipe: SuiteRecipe = folder.recipe
    figures = {
        "suite": recipe.name,
        "recipe": recipe.to_json(),
        "recipe_digest": recipe.digest,
        "cells": [dict(each.values) for each in folder.cells],
        "commands": [["iobench", *mask_words(each.words)] for each in folder.cells],
        "n_left": left.n_left,
        "expected_s": left.expected_s,
        "most_s": left.most_s,
    }
    print_answer(
        f"{recipe.title} ({recipe.name}, recipe {recipe.digest})",
        Table("", (Column("cell"), Column("runs left")), rows),
        Sentence(f"{left.n_left} runs: {left.words}."),
        figures=figures,
        json=json,
    )
