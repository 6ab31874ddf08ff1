"""The options by which several commands name a source, and how their values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.command import declared

DataDir = Annotated[str | None, declared("--data-dir")]
FilesGlob = Annotated[str | None, declared("--files")]
DatasetOptions = Annotated[list[str] | None, declared("--option")]
OneSplit = Annotated[str | None, declared("--split")]
SplitsBy = Annotated[list[str] | None, declared("--split-by")]
AllowGaps = Annotated[bool, declared("--allow-gaps")]
Memory = Annotated[
    str | None,
    typer.Option(
        help=(
            "Memory for samples being made. [default: enough for samples that share chunks; at "
            "least 256MiB, and above that at most a quarter of the free memory]"
        )
    ),
]
StoreDir = Annotated[Path | None, declared("--store-dir")]
SampleDim = Annotated[str | None, declared("--sample-dim")]
VariableNames = Annotated[str | None, declared("--variables")]
Download = Annotated[bool, declared("--download")]
DownloadTimeout = Annotated[float, declared("--download-timeout")]
StandInTiny = Annotated[bool, declared("--tiny")]
StandInScale = Annotated[float | None, declared("--scale")]
StandInSeed = Annotated[int, declared("--seed")]


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
