"""Credentials kept out of what is said and written: of URLs, options, variables, headers and JSON.

Every message and file passes here: each `IobenchError` when it is made, stdout and stderr of the
command line, ``run.json`` and what processes tell of themselves, texts of spans, manifests.
Loaded from its file in every process of ``iobench run``, so nothing but the standard library.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from pathlib import Path

MASK: Final = "***"

_SIGN: Final = re.compile(
    r":/|@|%3A|token|pass|pw|secret|key|cred|auth|sig|bearer|basic|[?&;#]se=", re.IGNORECASE
)
"""What is in every text that may hold a credential; most hold none."""

# Up to the last "@" before the path, as URL parsers have it: a password may hold one. Then what
# no parser takes: a password with a slash or a question mark in it. One slash after the colon is
# what `pathlib` leaves of two. Azure writes CONTAINER@ACCOUNT, which is no secret.
_USERINFO: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])((?!(?i:abfss?|wasbs?|az|adl)://[^\s/?#'\"\\:@]*@)"
    r"[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z][A-Za-z0-9+.-]+:/(?=[^\s/?#'\"\\@]*:)|(?i:https?|s3|gs|ftp):/)"
    r"([^\s/?#'\"\\]*|[^\s/?#'\"\\@:\[]+:(?!:|\d*[/?#])[^\s'\"\\@]*)@"
)
# The same, spelled as part of another URL's query.
_ENCODED_USERINFO: Final = re.compile(
    r"(%3A%2F%2F)((?:(?!%2F|%3F|%23|%40)[^\s/?#&'\"\\@])*)(%40|@)", re.IGNORECASE
)
# Of signed URLs and of those with a token in their query.
_QUERY_NAME: Final = (
    r"(?:[A-Za-z0-9_.-]*(?:token|secret|password|passwd|passphrase|signature|credentials?"
    r"|(?:api|access|private)[_-]?key(?:[_-]?id)?|access[_-]?id)"
    r"|sig|se|sas|key|jwt|auth|authorization|pass|pwd|pw)"
)
_SECRET_QUERY: Final = re.compile(rf"([?&;#]{_QUERY_NAME}=)[^&;\s#'\"\\]+", re.IGNORECASE)
_WHOLE_QUERY: Final = re.compile(r"\?\S*")
_ENCODED_QUERY: Final = re.compile(
    rf"((?:%3F|%26|%23|[?&;#]){_QUERY_NAME}%3D)(?:(?!%26)[^&;\s#'\"\\])+", re.IGNORECASE
)
# Tokens by their shape, and keys of connection strings and of shared access signatures.
_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9_-])(?:hf_(?=[a-z]*[A-Z0-9]|[a-z]{20})[A-Za-z0-9]{8,}"
    r"|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|sk-(?=[a-z_-]*[A-Z0-9])[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
_ACCOUNT_KEY: Final = re.compile(
    r"((?:AccountKey|SharedAccessKey|SharedAccessSignature|(?<![A-Za-z0-9])sig)=)[^;&,\s'\"\\]+",
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
# ``-u me:password`` of curl and its like; not ``-u 1000:1000`` and not ``python -u train.py``.
_USER_OPTION: Final = re.compile(r"-[uU]|--(?:proxy-)?user(?:name)?")
_USER_AND_SECRET: Final = re.compile(r"(?!\d+:\d+$)([^\s:/@='\"]+:)(?!//)[^\s]+")
# ``me:password@host`` without a scheme; an image's ``name:tag@sha256:...`` is no such thing.
_BARE_USERINFO: Final = re.compile(
    r"(?<![\w/.:@%+-])[\w.+%-]+:[^\s/@:'\"\\]+@(?!sha\d)(?=[A-Za-z0-9\[])"
)

_SECRET_VARIABLE: Final = re.compile(
    # Not ``TOKENIZERS_PARALLELISM`` and ``MAX_TOKENS``, whose values are words and figures of runs.
    r"(?:TOKEN(?!S|IZ)|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_?KEY|CREDENTIAL)"
    r"(?!.*_(?:FILE|PATH|DIR)$)",
    re.IGNORECASE,
)
_SHORTEST: Final = 4
"""Values shorter than this are words of the message, not secrets."""
_ANYWHERE: Final = 8
"""Shorter ones are looked for as words of their own, not inside others."""
_LONGEST: Final = 10_000
_known: set[str] = set()
"""What this process was given as a secret, whoever repeats it: see `note_secrets`."""


def note_secrets(words: Iterable[str]) -> None:
    """Remember the secrets of a command line or a URL, so that `mask_text` finds them anywhere."""
    given = list(words)
    for word, masked in zip(given, mask_words(given), strict=True):
        if word == masked or len(word) > _LONGEST:
            continue
        result = re.fullmatch("(.+?)".join(map(re.escape, masked.split(MASK))), word, re.DOTALL)
        for secret in result.groups() if result else ():
            _known.update(_spellings(secret))


def _spellings(secret: str) -> set[str]:
    """Return a secret and, of ``user:password``, the password, as they may be spelled."""
    _, colon, password = secret.partition(":")
    result = {password} if colon and password else {secret}
    if colon:
        result.add(secret)
        result.add(base64.b64encode(unquote(secret).encode()).decode())
    result |= {unquote(each) for each in result} | {quote(each, safe="") for each in result}
    return {each for each in result if len(each) >= _SHORTEST}


def mask_text(text: str) -> str:
    """Return a message or a line without credentials: of URLs, the environment, this command."""
    secrets = _known | {
        value
        for name, value in os.environ.items()
        if len(value) >= _SHORTEST and _SECRET_VARIABLE.search(name)
    }
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin as another
        if secret not in text:
            continue
        if len(secret) >= _ANYWHERE:
            text = text.replace(secret, MASK)
        else:
            alone = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
            text = re.sub(alone, MASK, text)
    return mask_urls(text)


def mask_line(text: str) -> str:
    """Return a text in one line that tells no credentials, of options and headers in it either."""
    return " ".join(mask_words(mask_text(text).split()))


def as_typed(path: Path) -> Path:
    """Return a path as one would type it here: from the working directory, where it is below."""
    from pathlib import Path

    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def printable(text: str) -> str:
    """Return a text as any line, terminal and font can hold it; other signs become escapes."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def mask_urls(text: str) -> str:
    """Return a text in which URLs tell neither user, password nor token, and no token by shape is.

    ``https://me:secret@host/path?token=abc`` becomes ``https://***@host/path?token=***``.
    """
    text = _TOKEN.sub(MASK, text)
    if ":/" in text:
        text = _USERINFO.sub(rf"\1{MASK}@", text)
    if "=" in text:
        text = _SECRET_QUERY.sub(rf"\1{MASK}", text)
        text = _ACCOUNT_KEY.sub(rf"\1{MASK}", text)
    if "%" in text:
        text = _ENCODED_USERINFO.sub(rf"\1{MASK}\3", text)
        text = _ENCODED_QUERY.sub(rf"\1{MASK}", text)
    return text


def shown_url(url: str) -> str:
    """Return a URL as it may be shown and kept: without user, password, token and signature."""
    return _WHOLE_QUERY.sub("", mask_urls(url)).replace(f"{MASK}@", "")


def _is_secret_name(name: str) -> bool:
    """Tell whether an option or a variable is called like a secret."""
    return not re.search(r"[\s/]", name) and bool(_SECRET_NAME.search(name))


def mask_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line without credentials.

    Those in URLs and headers, and of what is called like a secret: ``--api-key abc``,
    ``WANDB_API_KEY=abc``, ``--with '{"secret": "abc"}'``. A word with spaces is a shell's command
    if it is the only one or follows ``-c``.
    """
    given = list(words)
    result: list[str] = []
    secret_follows = False
    for place, word in enumerate(given):
        if secret_follows and not word.startswith("-"):
            result.append(MASK)
            secret_follows = bool(_SECRET_NEXT.search(word))  # --auth Bearer abc
            continue
        for_shell = len(given) == 1 or bool(place and _FOR_SHELL.fullmatch(given[place - 1]))
        name, equals, value = word.partition("=")
        is_secret = _is_secret_name(name)
        if place and _USER_OPTION.fullmatch(given[place - 1]) and _USER_AND_SECRET.fullmatch(word):
            result.append(_USER_AND_SECRET.sub(rf"\1{MASK}", word))
        elif equals and _USER_OPTION.fullmatch(name) and _USER_AND_SECRET.fullmatch(value):
            result.append(name + equals + _USER_AND_SECRET.sub(rf"\1{MASK}", value))
        elif for_shell and any(map(str.isspace, word)):
            result.append(_of_shell(word))
        elif is_secret and equals and value:
            result.append(f"{name}={MASK}")
        else:
            result.append(_mask_text(word))
        secret_follows = (is_secret and not equals and name.startswith("-")) or bool(
            _SECRET_NEXT.search(word)
        )
    return result


def mask_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON holds them without credentials, however deep they lie."""
    masked: dict[str, Any] = _mask_value(dict(values))
    return masked


def _mask_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: MASK
            if _is_secret_name(str(name)) and value[name] not in ("", None, True, False, [], {})
            else _mask_value(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mask_value(each) for each in value]
    return _mask_text(value) if isinstance(value, str) else value


def _mask_text(text: str) -> str:
    """Return one value or word, which may be JSON, a header, or hold pairs of name and value."""
    if not _SIGN.search(text):
        return _TOKEN.sub(MASK, text)
    head, equals, tail = text.partition("=")
    option = f"{head}=" if equals and head.startswith("-") else ""
    document = tail if option else text
    if document[:1] in ("{", "["):
        try:
            payload = json.loads(document)
        except (ValueError, RecursionError):
            payload = None
        if payload is not None:
            masked = _mask_value(payload)
            return text if masked == payload else option + json.dumps(masked, ensure_ascii=False)
    header = _HEADER.fullmatch(text)
    if header is not None:
        return f"{header[1] or ''}{header[2]}{MASK}{header[3]}"
    text = _SCHEME.sub(rf"\1{MASK}", _BARE_USERINFO.sub(f"{MASK}@", mask_urls(text)))
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
