"""Names and values as tracking servers take them: legal on all of them, and none too long."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "iobench/"
"""Before every name: a training run that is joined has parameters and metrics of its own."""
LONGEST_NAME: Final = 200
"""MLflow takes 250 characters; the rest is for what is put behind."""
LONGEST_VALUE: Final = 500
"""Of a parameter. MLflow takes 6000 today, servers that are still in use 500."""

_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def legal_name(text: str) -> str:
    """Return a text as one part of a name: letters, digits, ``_``, ``.`` and ``-``.

    A stage's kind and label are told apart by a dot: a colon is legal on some systems only.
    """
    name = _ILLEGAL.sub("_", text.replace(":", ".", 1)).strip(".")
    return name[:LONGEST_NAME] or "_"


def legal_names(texts: Iterable[str]) -> dict[str, str]:
    """Return a legal name for each text, no two the same; the first of two keeps its own."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for text in texts:
        name, number = legal_name(text), 2
        while name in taken:
            name, number = f"{legal_name(text)}-{number}", number + 1
        taken.add(name)
        found.setdefault(text, name)
    return found


def cut(text: str, longest: int = LONGEST_VALUE) -> tuple[str, bool]:
    """Return a text that is not too long, saying so in itself, and whether it was."""
    text = " ".join(text.split())
    if len(text) <= longest:
        return text, False
    said = f"... (cut, {len(text):,} characters)"
    return text[: longest - len(said)] + said, True
