"""A screen for `iobench.profiling.profile_run.profile` that shows nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

__all__ = ["QuietScreen"]


class QuietScreen:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def progress(
        self, title: str, *, in_bytes: bool = False
    ) -> AbstractContextManager[Callable[[int, int], None]]:
        """Show nothing."""
        return contextlib.nullcontext(lambda done, total: None)
