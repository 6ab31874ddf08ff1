"""``iobench compare``: runs side by side, and whether they saw the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = ["compare"]

MOST: Final = 8
"""Runs that fit beside each other."""


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN...", help="Run directories, two to eight.")
    ],
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON instead of tables.")
    ] = False,
) -> None:
    """Set runs side by side: exposed shares, throughput, and whether their samples are the same.

    Whether samples are the same is known of runs made with --digests.
    """
    from iobench.errors import OptionError
    from iobench.report.compared_runs import compare_runs

    if not 2 <= len(runs) <= MOST:
        raise OptionError(f"iobench compare: expected 2 to {MOST} run directories, got {len(runs)}")
    found = compare_runs(runs)
    if json:
        import json as json_text

        from iobench.report.compare_json import comparison_to_json

        typer.echo(json_text.dumps(comparison_to_json(found), indent=1, allow_nan=False))
        return
    from iobench.report.compare_text import print_comparison
    from iobench.report.terminal_page import TerminalPage

    print_comparison(found, TerminalPage())
