"""Gathers the commands, in the order one uses them."""

from __future__ import annotations

from typing import Final

import typer

from iobench.cli.advise_command import advise
from iobench.cli.bundle_command import bundle
from iobench.cli.cache_command import cache
from iobench.cli.check_command import CheckCommand, check
from iobench.cli.command import IobenchCommand, make_typer
from iobench.cli.compare_command import compare
from iobench.cli.convert_command import convert
from iobench.cli.doctor_command import doctor
from iobench.cli.history_command import history
from iobench.cli.info_command import info
from iobench.cli.limits_command import limits
from iobench.cli.list_command import list_
from iobench.cli.profile_command import profile
from iobench.cli.report_command import report
from iobench.cli.run_command import run
from iobench.cli.simulate_command import simulate
from iobench.cli.stage_command import stage
from iobench.cli.suite_command import SuiteCommand, suite
from iobench.cli.synthesize_command import synthesize
from iobench.cli.verify_command import verify

__all__ = ["make_app"]


def make_app() -> typer.Typer:
    """Return the command line application."""
    app = make_typer(
        help="Where does training on weather and climate data wait for its data, and why?",
        invoke_without_command=True,
    )
    app.command(cls=IobenchCommand)(profile)
    # What follows the command's first word is the command's own, with or without the "--".
    app.command(cls=IobenchCommand, context_settings={"allow_interspersed_args": False})(run)
    app.command(cls=IobenchCommand)(report)
    # Behind the first "--" are the commands that are compared, with all that is in them.
    app.command(cls=CheckCommand)(check)
    app.command(cls=IobenchCommand)(compare)
    app.command(cls=SuiteCommand)(suite)
    app.command(cls=IobenchCommand)(history)
    app.command(cls=IobenchCommand)(bundle)
    # What it does not know are options of the profile that it makes first.
    app.command(cls=IobenchCommand, context_settings={"ignore_unknown_options": True})(advise)
    app.command(cls=IobenchCommand)(simulate)
    app.command(cls=IobenchCommand)(convert)
    app.command(cls=IobenchCommand)(verify)
    app.command(cls=IobenchCommand)(stage)
    app.command("list", cls=IobenchCommand)(list_)
    app.command(cls=IobenchCommand)(info)
    app.command(cls=IobenchCommand)(limits)
    app.command(cls=IobenchCommand)(synthesize)
    app.command(cls=IobenchCommand)(cache)
    app.command(cls=IobenchCommand)(doctor)
    app.callback()(_version)
    return app


FIRST_STEPS: Final = """\
iobench: where does training on weather and climate data wait for its data, and why?

  your files    iobench profile forecasts/*.nc
  your script   iobench run -- python train.py
  an example    iobench profile maelstrom-ens10
  faster data   iobench convert forecasts/*.nc samples.zarr --to zarr --sample-dim time
  what is here  iobench list; iobench doctor; all commands: iobench --help"""
"""What a user does first; what ``iobench`` alone says."""


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"iobench {version('iobench')}")
        raise typer.Exit


def _version(
    context: typer.Context,
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version and exit.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    """I/O pipeline profiler and data-format accelerator for weather and climate training."""
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS)
