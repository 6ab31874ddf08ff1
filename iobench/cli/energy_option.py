"""The option that says whether counters of energy are read during a run."""

from __future__ import annotations

from typing import Annotated, Final

import typer

__all__ = ["AUTO", "Energy"]

AUTO: Final = "auto"

Energy = Annotated[
    str,
    typer.Option(
        "--energy",
        metavar="auto|off",
        help="Read what counters of energy of GPUs and processors may be read, 10 times a second.",
    ),
]
