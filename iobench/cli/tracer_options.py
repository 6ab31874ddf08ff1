"""The options by which commands that run something say what else is recorded meanwhile."""

from __future__ import annotations

from typing import Annotated, Final

from iobench.cli.command import declared

AUTO: Final = "auto"

Darshan = Annotated[list[str] | None, declared("--darshan")]
Energy = Annotated[str, declared("--energy")]
Monitor = Annotated[str, declared("--monitor")]


def darshan_words(asked: list[str] | None) -> tuple[str, ...]:
    """Return what was asked for, ``("off",)`` where that was nothing."""
    return tuple(asked or ["off"])
