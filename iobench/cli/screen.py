"""What every command shows on stderr: notes, and progress of work that takes over a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from iobench.cli.command import IS_QUIET

if TYPE_CHECKING:
    from iobench.datasets.contract import Progress

JUPYTER_KERNEL: Final = "JPY_PARENT_PID"
"""Set by Jupyter for its kernels, and so for what their cells start."""


def is_quiet() -> bool:
    """Return whether the command was given ``--quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and IS_QUIET in context.meta


class TerminalScreen:
    """Notes and progress bars on stderr; bars only when it is a terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._is_quiet = is_quiet()
        still = JUPYTER_KERNEL in os.environ or os.environ.get("TERM") in ("dumb", "unknown")
        self.has_bars = not (still or self._is_quiet) and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Say one line."""
        from iobench.masking import printable

        if self._is_quiet:
            return
        self._console.print(printable(text), markup=False)

    @contextmanager
    def progress(self, title: str, *, in_bytes: bool = False) -> Iterator[Progress]:
        """Yield a function of (done, total) that moves a bar named ``title``."""
        from iobench.datasets.contract import no_progress

        if not self.has_bars:
            yield no_progress
            return
        from rich import progress as bars

        from iobench.masking import printable

        counts: tuple[bars.ProgressColumn, ...] = (bars.MofNCompleteColumn(),)
        if in_bytes:
            counts = bars.DownloadColumn(), bars.TransferSpeedColumn()
        text, times = bars.TextColumn("{task.description}", markup=False), bars.TimeElapsedColumn()
        columns = text, bars.BarColumn(), *counts, times, bars.TimeRemainingColumn()
        bar = bars.Progress(*columns, console=self._console, auto_refresh=False, transient=True)
        with bar:
            task = bar.add_task(printable(title), total=None)
            drawn = -1

            def move(done: int, total: int) -> None:
                # About a hundred redraws at the most, whatever the number of steps.
                nonlocal drawn
                bar.update(task, completed=done, total=total)
                share = 100 * done // max(1, total) if total > 100 else done
                if share != drawn:
                    drawn = share
                    bar.refresh()

            yield move
