"""Credentials kept out of messages: those in URLs, and those of the environment."""

from __future__ import annotations

import os
import re
from typing import Final

from iobench.recording.masking import MASK, mask_words

__all__ = ["masked"]

# Not ``TOKENIZERS_PARALLELISM`` and ``MAX_TOKENS``, whose values are words and figures of runs.
_SECRET: Final = re.compile(
    r"TOKEN(?!S|IZ)|PASSWORD|PASSWD|SECRET|API_?KEY|CREDENTIAL", re.IGNORECASE
)
_SHORTEST: Final = 4
"""Values shorter than this are words of the message, not secrets."""


def masked(text: str) -> str:
    """Return a text in one line that tells no credentials of URLs, options or the environment."""
    secrets = {
        value
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST and _SECRET.search(name)
    }
    for value in sorted(secrets, key=len, reverse=True):  # one may begin as another
        text = text.replace(value, MASK)
    return " ".join(mask_words(text.split()))
