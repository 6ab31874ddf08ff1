"""``iobench suite mllog``: runs of a suite as MLPerf's logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.documents import Json, print_answer


def mllog(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder written by iobench suite --out.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the logs, one per run.")],
    tell: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=(
                "A value that no run records: submission_org=NAME, opt_name=Adam, ...; repeatable."
            ),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write each run as lines of MLPerf's logging (:::MLLOG): what was measured, or is told."""
    from iobench.report.document import Sentence
    from iobench.report.units import count
    from iobench.suites.mllog import parse_told, write_mllog

    logs = write_mllog(folder, out, parse_told(tell or ()))
    unknown = logs[0].unknown
    told = [
        Sentence(
            f"MLPerf HPC requires these values, which are missing: {', '.join(unknown)}. Give them "
            "with --tell."
        )
    ] * bool(unknown)
    print_answer(
        f"{out}: {count(len(logs))} logs",
        *told,
        Sentence(
            "Each log ends as aborted: a suite does not train to a target quality, and MLPerf "
            "counts nothing else as success."
        ),
        figures={"logs": [each.name for each in logs], "unknown": unknown},
        json=json,
    )
