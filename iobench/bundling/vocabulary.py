"""The words of iobench itself: what a report may say, and what stays when names are scrubbed."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WORD: Final = re.compile(r"[^\W_]+")
TEXTS: Final = {".py", ".js", ".css", ".html", ".j2", ".md"}
GROUPS: Final = ("iobench.datasets", "iobench.formats", "iobench.converters")
MOST_NBYTES: Final = 4_000_000
FEWEST_LETTERS: Final = 3


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case: runs of letters and digits."""
    return WORD.findall(text.lower())


@cache
def vocabulary() -> frozenset[str]:
    """Return every word that iobench, its datasets and its formats may print.

    They are the words of the sources: so a stage, a key of JSON or a word of a sentence is never
    taken for somebody's name, however that somebody is called. Names of installed libraries count.
    """
    packages = {"iobench"}
    names: list[str] = []
    for group in GROUPS:
        for entry in metadata.entry_points(group=group):
            packages.add(entry.module.partition(".")[0])
            names.append(entry.name)
    names += [found.name for found in metadata.distributions() if found.name]
    found = {word for name in names for word in words_of(name)}
    for path in _sources(packages):
        found.update(words_of(path.read_text("utf-8", "ignore")))
    return frozenset(found)


def _sources(packages: Iterable[str]) -> Iterator[Path]:
    for package in sorted(packages):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for path in Path(folder).rglob("*"):
                if path.suffix in TEXTS and path.is_file() and path.stat().st_size < MOST_NBYTES:
                    yield path


def is_common(name: str, known: frozenset[str]) -> bool:
    """Tell whether a name cannot be told from words of reports: replaced anywhere, it wrecks them.

    It is short, or all its words are figures or known.
    """
    if len(name) < FEWEST_LETTERS:
        return True
    return all(word in known or word.isdecimal() or len(word) == 1 for word in words_of(name))
