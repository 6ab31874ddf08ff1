"""``iobench verify``: whether a store is as it was written, and as its source has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["verify"]


def verify(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The folder of a store.")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="Make every sample again of this dataset or these files; repeatable.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The dataset's files, as for convert.")
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Your own layout of the dataset, as for convert."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the dataset, instead of the one the store was made with."),
    ] = None,
    store_dir: Annotated[
        Path | None,
        typer.Option(help="Where stand-ins and indexes go. [default: $IOBENCH_STORE_DIR, ...]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Read every byte of a store, compare all checksums, and the samples with their source."""
    import json as json_text

    from iobench.cli.conversion_text import verification_lines
    from iobench.cli.profile_command import _options
    from iobench.cli.screen import TerminalScreen
    from iobench.conversion import VerifyRequest
    from iobench.conversion import verify as check

    request = VerifyRequest(
        store=store,
        targets=tuple(against or ()),
        data_dir=data_dir,
        files=files,
        options=_options(option or []),
        store_dir=store_dir,
    )
    found = check(request, TerminalScreen())
    if json:
        facts = {"kind": "verification", **found.to_dict()}
        typer.echo(json_text.dumps(facts, indent=1, allow_nan=False))
        return
    for line in verification_lines(found):
        typer.echo(line)
