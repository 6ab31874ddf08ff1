"""``iobench report``: the report of a run, again, from its run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TextIO

import typer

__all__ = ["print_report", "report", "write_json"]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of a report.")
    ] = False,
) -> None:
    """Print what a run measured; works for runs that were killed, too."""
    print_report(run, json=json)


def print_report(run: Path, *, json: bool, file: TextIO | None = None) -> None:
    """Print the report of a run directory, by default to stdout.

    Raises
    ------
    ProfileError
        If it is none.
    """
    from iobench.profiles import open_profiles
    from iobench.report import render_terminal

    if json:
        typer.echo(_as_json(run), file=file)
    else:
        render_terminal(open_profiles(run), file=file)


def write_json(run: Path, path: Path) -> None:
    """Write the result of a run directory to a file.

    Raises
    ------
    ProfileError
        If it is none.
    StorageError
        If the file cannot be written.
    """
    from iobench.errors import StorageError

    text = _as_json(run)
    try:
        path.write_text(f"{text}\n", "utf-8")
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); "
            "name another file, or use iobench report --json"
        ) from error


def _as_json(run: Path) -> str:
    import json

    from iobench.profiles import open_profiles
    from iobench.report import to_json

    return json.dumps(to_json(open_profiles(run)), indent=1, allow_nan=False)
