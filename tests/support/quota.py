"""A quota that files written by Python meet, wherever they lie."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def quota(nbytes: int) -> Iterator[None]:
    """Refuse what is written in binary beyond so many bytes."""
    left, real = [nbytes], Path.open

    class Limited(io.FileIO):
        def write(self, data: Any) -> int:
            left[0] -= len(data)
            if left[0] < 0:
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            return super().write(data)

    def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        return Limited(path, mode) if mode in ("xb", "wb") else real(path, mode, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        yield
