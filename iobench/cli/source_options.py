"""The options by which several commands name a source, and how their values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "DataDir",
    "DatasetOptions",
    "Download",
    "DownloadTimeout",
    "FilesGlob",
    "SampleDim",
    "StandInScale",
    "StandInSeed",
    "StandInTiny",
    "StoreDir",
    "VariableNames",
    "split_names",
    "split_options",
]

DataDir = Annotated[
    Path | None, typer.Option(help="The dataset's files: a CliMetLab mirror, or a flat folder.")
]
FilesGlob = Annotated[
    str | None,
    typer.Option(
        metavar="GLOB",
        help="Your own layout of the dataset: paths with {year}, {month}, {day}; quoted.",
    ),
]
DatasetOptions = Annotated[
    list[str] | None, typer.Option(help="An option of the dataset, NAME=VALUE; repeatable.")
]
StoreDir = Annotated[
    Path | None,
    typer.Option(help="Where stores, stand-ins and indexes go. [default: $IOBENCH_STORE_DIR, ...]"),
]
SampleDim = Annotated[
    str | None, typer.Option(help="Own files: the dimension along which samples lie.")
]
VariableNames = Annotated[
    str | None, typer.Option(help="Own files: the variables to take, with commas.")
]
Download = Annotated[
    bool,
    typer.Option(
        "--download", help="Fetch files that are not at hand, through the CliMetLab plugin."
    ),
]
DownloadTimeout = Annotated[float, typer.Option(help="Seconds the download may take.")]
StandInTiny = Annotated[bool, typer.Option("--tiny", help="Use the small stand-in that tests use.")]
StandInScale = Annotated[
    float | None, typer.Option(help="Use a stand-in with this share of the real samples.")
]
StandInSeed = Annotated[int, typer.Option(help="Of the stand-in; in a profile also of the order.")]


def split_names(text: str) -> tuple[str, ...]:
    """Return names written with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def split_options(pairs: list[str], *, spelled: str = "--option") -> dict[str, str]:
    """Return ``NAME=VALUE`` pairs as a mapping; ``spelled`` is the option, for the message.

    Raises
    ------
    OptionError
        If one has no ``=``, or a name is given twice.
    """
    from iobench.errors import OptionError

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"{spelled} {pair}: expected NAME=VALUE")
        if name in options:
            raise OptionError(f"{spelled} {pair}: {name} is given twice; give it once")
        options[name] = value
    return options
