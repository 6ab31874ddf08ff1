"""Credentials kept out of what is written down: of URLs, options, variables, headers and JSON.

Loaded from its file in every process of ``iobench run``, so nothing but the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["MASK", "is_secret_name", "mask_options", "mask_urls", "mask_values", "mask_words"]

MASK: Final = "***"

_SIGN: Final = re.compile(r"://|token|pass|pw|secret|key|cred|auth|sig|bearer|basic", re.IGNORECASE)
"""What is in every text that may hold a credential; most hold none."""

# Up to the last "@" before the path, as URL parsers have it: a password may hold one.
_USERINFO: Final = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?#'\"\\]*)@")
# Of signed URLs and of those with a token in their query.
_SECRET_QUERY: Final = re.compile(
    r"([?&;](?:[A-Za-z0-9_.-]*(?:token|secret|password|passwd|signature|credential|api[_-]?key)|sig)"
    r"=)[^&;\s#'\"]+",
    re.IGNORECASE,
)
# ``--api-key``, ``WANDB_API_KEY``, ``DB_PASS``; not ``--tokens``, ``--bypass`` or ``$PWD``.
_NAME: Final = (
    r"(?:(?:token|password|passwd|passphrase|secret|credentials?|(?:api|access|secret|private)[_-]?key)"
    r"|(?<![A-Za-z0-9])(?:auth|pass|pw)|(?<=[A-Za-z0-9][_-])pwd)(?:[_-]?\d+)?"
)
_SECRET_NAME: Final = re.compile(rf"{_NAME}$", re.IGNORECASE)
_VALUE: Final = r"(?:\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|\\?'[^'\\]*\\?'|[^\s,;&)}\]\"']+)"
_SECRET_PAIR: Final = re.compile(
    # "secret": "x", {secret: x}; a header, X-Api-Key: x; dict(token="x"), a=1,token=x
    # No part of a name before its last word is matched: texts may be long.
    rf"((?:{_NAME}\\?[\"']\s*:\s*"
    rf"|[{{,]\s*[\w.-]{{0,64}}{_NAME}\s*:\s*"
    rf"|{_NAME}:\s+"
    rf"|{_NAME}\s*=\s*))(?!\s|[\[{{]|\\?[\"']\\?[\"'])({_VALUE})",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(  # all of what follows, spaces too
    rf"(-H|--header=)?([\"']?[\w.-]*{_NAME}:\s+)[^\"']+([\"']?)", re.IGNORECASE
)
_AUTHORIZATION: Final = r"(?i:authorization)\\?[\"']?\s*[:=]\s*\\?[\"']?"
_SCHEME: Final = re.compile(
    rf"((?:{_AUTHORIZATION}[\w-]+|\b(?:[Bb]earer|BEARER|Basic|BASIC))\s+)[^\s\"'\\]+"
)
_BARE_AUTHORIZATION: Final = re.compile(rf"({_AUTHORIZATION})[^\s\"'\\]+(?=[\"'\\]|$)")
# At the end of a word, which says that the next one is secret.
_SECRET_NEXT: Final = re.compile(
    rf"(?:^|[\"':=])(?:[Bb]earer|BEARER|Basic|BASIC)$|(?i:authorization[\"']?:"
    rf"|{_NAME}\\?[\"']:)$"
)
# Words of a shell with the spaces that its quotes keep; a quote without its other half is a sign.
_SHELL_WORD: Final = re.compile(r"(?:\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|\S)+", re.DOTALL)
_FOR_SHELL: Final = re.compile(r"-[A-Za-z]{0,4}c")


def mask_urls(text: str) -> str:
    """Return a text in which URLs tell neither user, password nor token.

    ``https://me:secret@host/path?token=abc`` becomes ``https://***@host/path?token=***``.
    """
    return _SECRET_QUERY.sub(rf"\1{MASK}", _USERINFO.sub(rf"\1{MASK}@", text))


def is_secret_name(name: str) -> bool:
    """Tell whether an option or a variable is called like a secret."""
    return not re.search(r"[\s/]", name) and bool(_SECRET_NAME.search(name))


def mask_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line without credentials.

    Those in URLs and in headers of HTTP; the values of options, variables and keys of JSON that
    are called like a token, password, secret or key: ``--api-key abc``, ``--api-key=abc``,
    ``WANDB_API_KEY=abc``, ``--with '{"secret": "abc"}'``. A word with spaces is read as a shell's
    command if it is the only one or follows ``-c``.
    """
    given = list(words)
    found: list[str] = []
    secret_follows = False
    for place, word in enumerate(given):
        if secret_follows and not word.startswith("-"):
            found.append(MASK)
            secret_follows = bool(_SECRET_NEXT.search(word))  # --auth Bearer abc
            continue
        for_shell = len(given) == 1 or bool(place and _FOR_SHELL.fullmatch(given[place - 1]))
        name, equals, value = word.partition("=")
        is_secret = is_secret_name(name)
        if for_shell and any(map(str.isspace, word)):
            found.append(_of_shell(word))
        elif is_secret and equals and value:
            found.append(f"{name}={MASK}")
        else:
            found.append(_mask_text(word))
        secret_follows = (is_secret and not equals and name.startswith("-")) or bool(
            _SECRET_NEXT.search(word)
        )
    return found


def mask_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by name without credentials: those in texts, and those called like one."""
    return {
        name: MASK if value and is_secret_name(name) else _mask_text(value)
        for name, value in options.items()
    }


def mask_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON holds them without credentials, however deep they lie.

    What is called like a secret is masked whole, unless it is empty, true, false or null.
    """
    masked: dict[str, Any] = _mask_value(dict(values))
    return masked


def _mask_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: MASK
            if is_secret_name(str(name)) and value[name] not in ("", None, True, False, [], {})
            else _mask_value(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mask_value(each) for each in value]
    return _mask_text(value) if isinstance(value, str) else value


def _mask_text(text: str) -> str:
    """Return one value or word, which may be JSON, a header, or hold pairs of name and value."""
    if not _SIGN.search(text):
        return text
    head, equals, tail = text.partition("=")
    option = f"{head}=" if equals and head.startswith("-") else ""
    document = tail if option else text
    if document[:1] in ("{", "["):
        try:
            told = json.loads(document)
        except (ValueError, RecursionError):
            told = None
        if told is not None:
            masked = _mask_value(told)
            return text if masked == told else option + json.dumps(masked, ensure_ascii=False)
    header = _HEADER.fullmatch(text)
    if header is not None:
        return f"{header[1] or ''}{header[2]}{MASK}{header[3]}"
    text = _SCHEME.sub(rf"\1{MASK}", mask_urls(text))
    text = _BARE_AUTHORIZATION.sub(rf"\1{MASK}", text)
    return _SECRET_PAIR.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name, value = found.groups()
    opened = re.match(r"\\?[\"']", value)
    quote = opened[0] if opened else ""
    return f"{name}{quote}{MASK}{quote}"


def _of_shell(command: str) -> str:
    """Return a shell's command without credentials, its quotes and spaces as they are."""
    matches = list(_SHELL_WORD.finditer(command))
    words = [match[0] for match in matches]
    masked = mask_words([*words, ""])[: len(words)]  # never taken for a command by itself
    pieces, start = [], 0
    for match, word in zip(matches, masked, strict=True):
        pieces += [command[start : match.start()], word]
        start = match.end()
        if word != match[0] and match[0].count("'") % 2 + match[0].count('"') % 2:
            return "".join(pieces)  # its quote never ends: nobody knows where the secret does
    return "".join([*pieces, command[start:]])
