"""The last look: whether any name that was to be replaced is left, anywhere, in any file."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.bundling.span_copy import texts_of_spans

if TYPE_CHECKING:
    from iobench.bundling.pseudonyms import Pseudonyms

PREFIX: Final = 3
BINARY: Final = (".spans", ".bin", ".samples")
LEAST_IN_BINARY: Final = 6
"""Shorter names are found in figures by chance; the texts of these files are looked through."""
PACKED: Final = re.compile(rb"[A-Za-z0-9+/]{200,}={0,2}")
LETTER: Final = re.compile(r"[^\W_]")


def find_leftovers(
    files: Mapping[str, bytes], names: Pseudonyms, more: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """Return the names that are left, with the file each is in.

    Names are looked for as they are, in the texts of JSON, and in what pages hold deflated. Names
    that are also words of reports are looked for as parts of paths.

    Parameters
    ----------
    files : mapping of str to bytes
        By name; names of files are looked through as well.
    more : iterable of str
        Further texts that may be nowhere.
    """
    wanted = _forms([*names.searched(), *more])
    parts = {name for name in names.only_told() if LETTER.search(name) and len(name) > 1}
    found = []
    for file, data in files.items():
        left = set(_names_in(file, data, wanted, names, set(more)))
        found += [(name, file) for name in sorted(left)]
        if not file.endswith(BINARY):
            found += [(name, file) for name in sorted(_parts_in(data, parts))]
    return found


def _forms(names: Iterable[str]) -> dict[bytes, str]:
    """Return each name in the bytes that may stand for it, in lower case."""
    found: dict[bytes, str] = {}
    for name in names:
        lowered = name.lower()
        for form in (
            lowered,
            json.dumps(lowered)[1:-1],
            json.dumps(lowered, ensure_ascii=False)[1:-1],
        ):
            found[form.encode("utf-8", "backslashreplace")] = name
    return found


def _names_in(
    file: str, data: bytes, wanted: Mapping[bytes, str], names: Pseudonyms, more: set[str]
) -> Iterator[str]:
    binary = file.endswith(BINARY)
    pieces = _unpacked(data, binary=binary)
    for piece in (file.encode("utf-8", "backslashreplace"), *map(_without_escapes, pieces)):
        yield from _found(piece, wanted, names, more, least=LEAST_IN_BINARY if binary else PREFIX)
    if file.endswith(".spans"):
        for text in texts_of_spans(data):
            yield from _found(text.encode(), wanted, names, more, least=PREFIX)
    if file.endswith(".samples"):
        yield from _found(data.partition(b"\n")[0], wanted, names, more, least=PREFIX)


def _without_escapes(data: bytes) -> bytes:
    """Return the texts of what is JSON, a document or lines of it; what is none, as it is.

    Its escapes would make names of parts of others: of a newline and "ode" they make "node".
    """
    try:
        told = json.loads(data) if data[:1] in (b"{", b"[") else None
    except ValueError:
        try:
            told = [json.loads(line) for line in data.splitlines()]
        except (ValueError, RecursionError):
            return data
    except RecursionError:
        return data
    if not isinstance(told, dict | list):
        return data
    return "\n".join(_texts_in(told)).encode("utf-8", "backslashreplace")


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts_in(each)
    elif value is not None:
        yield str(value)


def _unpacked(data: bytes, *, binary: bool) -> Iterator[bytes]:
    """Yield the file without what is packed in it, then what that holds."""
    if binary:
        yield data
        return
    yield PACKED.sub(b" ", data)
    for found in PACKED.finditer(data):
        try:
            packed = base64.b64decode(found[0] + b"=" * (-len(found[0]) % 4))
        except binascii.Error:
            continue
        for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS, zlib.MAX_WBITS | 16):
            try:
                yield zlib.decompress(packed, bits)
                break
            except zlib.error:
                continue


def _found(
    data: bytes, wanted: Mapping[bytes, str], names: Pseudonyms, more: set[str], *, least: int
) -> Iterator[str]:
    starts: dict[bytes, list[bytes]] = defaultdict(list)
    for form in wanted:
        if len(form) >= least:
            starts[form[:PREFIX]].append(form)
    lowered = data.lower()
    for place in _places(lowered, starts):
        for form in starts[lowered[place : place + PREFIX]]:
            if lowered.startswith(form, place) and (
                wanted[form] in more
                or names.is_found(wanted[form], *_neighbours(data, place, place + len(form)))
            ):
                yield wanted[form]


def _places(data: bytes, starts: Iterable[bytes]) -> list[int]:
    """Return where one of these three bytes stand."""
    if len(data) < PREFIX:
        return []
    signs = np.frombuffer(data, np.uint8).astype(np.uint32)
    codes = (signs[:-2] << 16) | (signs[1:-1] << 8) | signs[2:]
    table = np.zeros(1 << 24, dtype=bool)
    for start in starts:
        table[int.from_bytes(start, "big")] = True
    places: list[int] = np.flatnonzero(table[codes]).tolist()
    return places


def _neighbours(data: bytes, start: int, end: int) -> tuple[str, str]:
    """Return the characters before and after a place."""
    before = data[max(0, start - 4) : start].decode("utf-8", "ignore")[-1:]
    return before, data[end : end + 4].decode("utf-8", "ignore")[:1]


def _parts_in(data: bytes, parts: set[str]) -> set[str]:
    """Return the names that stand between the strokes of a path."""
    text = data.decode("utf-8", "replace")
    between = set(re.findall(r"(?<=/)[^/\s\"'<>|:,;()]+(?=/)", text))
    return {part for part in parts & between if f"/{part}/" in text}
