"""Lines of text for people: what cannot be shown is spelled out, and no figure is broken."""

from __future__ import annotations

import re
import textwrap
from typing import Final

from iobench.masking import printable

# The space of "21.1 ms", "88 %", "< 0.1 %", not to be broken at; held by a character of no text.
QUANTITY: Final = re.compile(
    r"(?<=\d) (?=(?:[num]?s|[kMGTP]?B(?:/s)?|[KMGT]iB|%|samples/s|[umkM]?J|W)(?![\w/]))"
    r"|(?<=[<>]) (?=\d)"
)
GLUE: Final = "\x1f"


def wrapped(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Return lines of at most ``width``, broken between words and never inside a quantity."""
    retained = QUANTITY.sub(GLUE, printable(text))
    spaces = " " * indent
    lines = textwrap.wrap(
        retained, width, initial_indent=spaces, subsequent_indent=spaces,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(GLUE, " ") for line in lines]


def whole_sentences(text: str, longest: int) -> str:
    """Return the first sentence, and those after it that end within ``longest`` characters."""
    text = printable(text)
    first = text.find(". ") + 1 or len(text)
    return text if len(text) <= longest else text[: max(first, text.rfind(". ", 0, longest) + 1)]


def shortened(text: str, longest: int) -> str:
    """Return at most ``longest`` characters of a command or a title, words up to ``...``."""
    text = printable(text)
    if len(text) <= longest:
        return text
    end = text.rfind(" ", longest // 2, longest - 3)
    return f"{text[:end]} ..." if end > 0 else f"{text[: longest - 3]}..."
