"""What is said where a server does not answer: why, and how to go on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from iobench.masking import mask_urls

__all__ = ["retry_command", "short_reason"]

LONGEST_REASON: Final = 300


def retry_command(run: Path, *, mlflow: str | None = None, wandb: str | None = None) -> str:
    """Return the command that tells a run again, without credentials."""
    words = ["iobench", "report", str(run)]
    if mlflow is not None:
        words += ["--mlflow", mask_urls(mlflow)]
    if wandb is not None:
        words += ["--wandb", wandb]
    return shlex.join(words)


def short_reason(text: str) -> str:
    """Return what went wrong: connection errors hold a line for each layer of a client."""
    for what in ("Connection refused", "timed out", "Name or service not known"):
        if what in text:
            return f"is not answering ({what.lower()})"
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."
