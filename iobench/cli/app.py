"""Gathers the commands, in the order one uses them; loads the one that is asked for alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from inspect import getdoc
from typing import Any, Final

import typer

from iobench.cli.command import IobenchCommand, make_typer

COMMANDS: Final[dict[str, dict[str, Any]]] = {
    "profile": {},
    # What follows the command's first word is the command's own, with or without the "--".
    "run": {"allow_interspersed_args": False},
    "report": {},
    "check": {},
    "compare": {},
    "suite": {},
    # What it does not know are options of the profile that it makes first.
    "advise": {"ignore_unknown_options": True},
    "simulate": {},
    "convert": {},
    "verify": {},
    "stage": {},
    "list": {},
    "info": {},
    "limits": {},
    "synthesize": {},
    "cache": {},
    "doctor": {},
}
"""Settings of each; ``NAME_command`` has its function, and a class ``NameCommand`` at need."""


def make_app(words: Sequence[str] | None = None) -> typer.Typer:
    """Return the command line application: with all commands, or the one that these words name.

    Where they name none, as ``--help``, all are there without options, which take a third of it.
    """
    app = make_typer(
        help="Where does training on weather and climate data wait for its data, and why?"
    )
    is_named = words is None or not COMMANDS.keys().isdisjoint(words)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = import_module(f"iobench.cli.{name}_command")
        cls = getattr(module, f"{name.capitalize()}Command", IobenchCommand)
        command = getattr(module, "list_" if name == "list" else name)
        told = None if is_named else getdoc(command)
        app.command(name, cls=cls, context_settings=COMMANDS[name], help=told)(
            command if is_named else lambda: None
        )
    app.callback()(_version)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"iobench {version('iobench')}")
        raise typer.Exit


def _version(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    """I/O pipeline profiler and data-format accelerator for weather and climate training."""
