"""What every server is to do that runs are told to, and what is said where it does not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from iobench.masking import mask_urls

if TYPE_CHECKING:
    from iobench.tracking.run_metrics import RunContents

LONGEST_REASON: Final = 300


class Tracker(Protocol):
    """The runs of one run directory at one server; whatever is done may be done again.

    Every method raises a `TrackingError` if the server does not answer, or refuses, and a
    `StorageError` if the run directory cannot be written.
    """

    title: str

    def begin(self, contents: RunContents, *, title: str, several: bool = False) -> Any:
        """Return the server's run of a training process; what was begun before goes on.

        Parameters
        ----------
        title : str
            Of the run directory.
        several : bool
            Whether it is one of several, which are kept together.
        """

    def tell(self, run: Any, contents: RunContents) -> None:
        """Log what the server does not have yet of a training process; ``run`` is from `begin`."""

    def add_files(self, run: Any, files: Sequence[Path]) -> None:
        """Keep files with a run, of several with them all; those of the same name are replaced."""

    def end(self, run: Any, contents: RunContents, *, failed: bool = False) -> None:
        """Say that a training process is over, or could not be told of; a joined one goes on."""

    def address(self, run: Any) -> str:
        """Return where people look at a run, without credentials."""

    def close(self) -> None:
        """Say that all is told."""


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


@contextmanager
def with_defaults(defaults: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment what it does not have, and take that away again."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
