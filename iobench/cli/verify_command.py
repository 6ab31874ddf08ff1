"""``iobench verify``: whether a store is as it was written, and as its source has it."""

from __future__ import annotations

from typing import Annotated

import typer

from iobench.cli.documents import Json, print_answer
from iobench.cli.source_options import (
    DataDir,
    FilesGlob,
    Memory,
    StoreDir,
    split_options,
)


def verify(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="Folder of the store, or s3://bucket/prefix.")
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help=(
                "Make every sample again from this dataset or these files and compare; repeatable."
            ),
        ),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Share of the samples to compare, spread evenly.")
    ] = 1.0,
    workers: Annotated[
        int | None, typer.Option(help="Threads that read and compare. [default: usable CPUs]")
    ] = None,
    memory: Memory = None,
    data_dir: DataDir = None,
    files: FilesGlob = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the dataset, instead of the one the store was made with."),
    ] = None,
    store_dir: StoreDir = None,
    json: Json = False,
) -> None:
    """Read every byte of a store, compare all checksums, and the samples with their source."""
    import json as json_text

    from iobench.cli.conversion_text import verification_told
    from iobench.cli.screen import TerminalScreen
    from iobench.conversion.checking import VerifyRequest
    from iobench.conversion.checking import verify as check
    from iobench.errors import StoreError
    from iobench.files.urls import as_path
    from iobench.sizes import parse_nbytes

    request = VerifyRequest(
        store=as_path(store),
        targets=tuple(against or ()),
        data_dir=None if data_dir is None else as_path(data_dir),
        files=files,
        options=split_options(option or []),
        store_dir=store_dir,
        share=share,
        workers=workers,
        memory_nbytes=None if memory is None else parse_nbytes("--memory", memory),
    )
    try:
        found = check(request, TerminalScreen())
    except StoreError as error:
        if json:
            facts = {"kind": "verification", "as_written": False, "error": str(error)}
            typer.echo(json_text.dumps(facts, indent=1))
        raise
    title, told = verification_told(found)
    facts = {"kind": "verification", "as_written": True, **found.to_dict()}
    print_answer(title, *told, figures=facts, json=json)
