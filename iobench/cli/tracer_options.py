"""The options by which commands that run something say what else is recorded meanwhile."""

from __future__ import annotations

from typing import Annotated, Final

import typer

__all__ = ["AUTO", "Darshan", "Energy", "darshan_words"]

AUTO: Final = "auto"

Darshan = Annotated[
    list[str] | None,
    typer.Option(
        "--darshan",
        metavar="auto|off|LOG",
        help="Trace every read with Darshan, if a runtime is there; or logs of your own Darshan, "
        "repeatable. [default: off]",
    ),
]
Energy = Annotated[
    str,
    typer.Option(
        "--energy",
        metavar="auto|off",
        help="Read what counters of energy of GPUs and processors may be read, 10 times a second.",
    ),
]


def darshan_words(asked: list[str] | None) -> tuple[str, ...]:
    """Return what was asked for, ``("off",)`` where that was nothing."""
    return tuple(asked or ["off"])
