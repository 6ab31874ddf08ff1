"""The option that says whether Darshan traces a run."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Darshan", "darshan_words"]

Darshan = Annotated[
    list[str] | None,
    typer.Option(
        "--darshan",
        metavar="auto|off|LOG",
        help="Trace every read with Darshan, if a runtime is there; or logs of your own Darshan, "
        "repeatable. [default: off]",
    ),
]


def darshan_words(asked: list[str] | None) -> tuple[str, ...]:
    """Return what was asked for, ``("off",)`` where that was nothing."""
    return tuple(asked or ["off"])
