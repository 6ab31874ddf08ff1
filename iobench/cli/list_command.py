"""``iobench list``: the datasets and formats that are installed."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["list_"]


def list_(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the datasets and store formats by the names other commands take."""
    from iobench.registry import SOURCE, dataset_names, format_names

    datasets = [{"name": name, "title": _title(name)} for name in dataset_names()]
    formats = [SOURCE, *format_names()]
    if json:
        import json as json_text

        typer.echo(json_text.dumps({"datasets": datasets, "formats": formats}, indent=1))
        return
    width = max((len(row["name"]) for row in datasets), default=0)
    typer.echo("datasets")
    for row in datasets:
        typer.echo(f"  {row['name']:{width}}  {row['title']}")
    typer.echo("formats\n  " + "\n  ".join(formats))


def _title(name: str) -> str:
    """Return a dataset's title; of one that cannot be made without an option, which it needs."""
    from iobench.errors import OptionError
    from iobench.registry import find_dataset

    try:
        return find_dataset(name).title
    except OptionError as error:
        return str(error).removeprefix(f"{name}: ")
