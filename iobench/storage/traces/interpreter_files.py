"""Which files are Python's own: its code, libraries and packages, which no loader reads."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_of_interpreter"]

_INTERPRETER: Final = re.compile(
    r"(?:/lib(?:64)?/python\d[\d.]*(?:/|\.?zip$)|/(?:site|dist)-packages/|/pyvenv\.cfg$"
    r"|\.py$|\.py[co](?:\.\d+)?$|\.so(?:\.[\d.]+)?$|\.pth$)"
)


def is_of_interpreter(name: str) -> bool:
    """Return whether a file is Python's own: code, libraries, anything in a packages folder."""
    return _INTERPRETER.search(name) is not None
