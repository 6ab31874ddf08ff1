"""Credentials kept out of what is written down: user names and passwords inside URLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["MASK", "mask_options", "mask_urls", "mask_words"]

MASK: Final = "***"

# Up to the last "@" before the path, as URL parsers have it: a password may hold one.
_USERINFO: Final = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?#'\"\\]*)@")
# Of signed URLs and of those with a token in their query.
_SECRET_QUERY: Final = re.compile(
    r"([?&;](?:[A-Za-z0-9_.-]*(?:token|secret|password|passwd|signature|credential|api[_-]?key)|sig)"
    r"=)[^&;\s#'\"]+",
    re.IGNORECASE,
)


def mask_urls(text: str) -> str:
    """Return a text in which URLs tell neither user, password nor token.

    ``https://me:secret@host/path?token=abc`` becomes ``https://***@host/path?token=***``.
    """
    return _SECRET_QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1{MASK}@", text))


# ``--api-key``, ``WANDB_API_KEY``; not ``--tokens`` or ``--tokenizer``.
_SECRET_NAME: Final = re.compile(
    r"(?:token|password|passwd|secret|credentials?|(?:api|access|secret|private)[_-]?key)"
    r"(?:[_-]?\d+)?$",
    re.IGNORECASE,
)


def mask_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line without credentials.

    Those in URLs, and the values of options and variables that are called like a token, password,
    secret or key: ``--api-key abc``, ``--api-key=abc``, ``WANDB_API_KEY=abc``.
    """
    found: list[str] = []
    secret_follows = False
    for word in words:
        if secret_follows and not word.startswith("-"):
            found.append(MASK)
            secret_follows = False
            continue
        if " " in word and not (
            word.startswith("-") and _of_secret(word)
        ):  # a whole command in one word, for a shell
            found.append(" ".join(mask_words(word.split(" "))))
            continue
        name, equals, value = word.partition("=")
        is_secret = _of_secret(word)
        if is_secret and equals and value:
            found.append(f"{name}={MASK}")
        else:
            found.append(mask_urls(word))
        secret_follows = is_secret and not equals and name.startswith("-")
    return found


def mask_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by name without credentials: those in URLs, and those called like a secret."""
    return {
        name: MASK if value and _of_secret(name) else mask_urls(value)
        for name, value in options.items()
    }


def _of_secret(word: str) -> bool:
    """Tell whether an option or variable is called like a secret, which may be of several words."""
    name = word.partition("=")[0]
    return " " not in name and not name.startswith("/") and bool(_SECRET_NAME.search(name))
