"""``iobench report``: the report of a run, again, from its run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["print_report", "report"]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a report.")
    ] = False,
) -> None:
    """Print what a run measured; works for runs that were killed, too."""
    print_report(run, json=json)


def print_report(run: Path, *, json: bool) -> None:
    """Print the report of a run directory to stdout.

    Raises
    ------
    ProfileError
        If it is none.
    """
    from iobench.profiles import open_profiles
    from iobench.report import render_terminal, to_json

    profiles = open_profiles(run)
    if json:
        import json as json_text

        typer.echo(json_text.dumps(to_json(profiles), indent=1, allow_nan=False))
    else:
        render_terminal(profiles)
