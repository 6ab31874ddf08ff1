"""Which name is replaced by which: the same name by the same, two names never by one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from iobench.bundling.vocabulary import is_common

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ANYWHERE: Final = 5
"""Names of so many characters are replaced inside of words, too; shorter ones as words only."""
PREFIX: Final = 3
UNMISTAKABLE: Final = {"id", "ip", "mail"}
"""Kinds of names that no word of reports looks like."""
ONE_WORD: Final = re.compile(r"[\w.+@-]+")
NEIGHBOUR: Final = re.compile(r"[^\W_]")


class Pseudonyms:
    """What stands for each name.

    A name that is also a word of reports (``is_common``) is replaced where a path, a user or a host
    is told, and nowhere else: a user called "data" must not wreck every line.

    Parameters
    ----------
    known : frozenset of str
        Words of reports.
    keep : collection of str
        Names that stay.
    taken : collection of str
        Words of what is scrubbed: no pseudonym is one of them, so that none is taken for a name.
    """

    def __init__(
        self, known: frozenset[str], keep: Iterable[str] = (), taken: Iterable[str] = ()
    ) -> None:
        self.known = known
        self.keep = frozenset(keep)
        self.kept: set[str] = set()
        self._taken = {word.lower() for word in taken}
        self._given: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._issued: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._starts: dict[str, list[str]] = defaultdict(list)
        self._lowered: dict[str, str] = {}
        self._spaced: list[str] = []
        self._inside = " ".join(sorted(known))

    def give(self, kind: str, name: str) -> str:
        """Return what stands for a name: always the same; the name where it is to be kept.

        Parameters
        ----------
        kind : str
            What it is, the first part of its pseudonym: ``"user"``, ``"host"``, ``"p"``.
        """
        if not name or name in self._issued:
            return name
        if name in self.keep:
            self.kept.add(name)
            return name
        if name not in self._given:
            self._assign(name, self._next(kind), kind)
        return self._given[name]

    def alias(self, name: str, pseudonym: str) -> None:
        """Let another form of a name, such as a host's without its domain, stand for the same."""
        if name and name not in self._given and name not in self._issued | self.keep:
            self._assign(name, pseudonym, self._kind_of(pseudonym))

    def is_given(self, name: str) -> bool:
        """Tell whether something stands for a name already."""
        return name in self._given

    def is_pseudonym(self, name: str) -> bool:
        """Tell whether a name stands for another one."""
        return name in self._issued

    def replaced(self, text: str) -> str:
        """Return a text with all names in it replaced but those that are words of reports."""
        pieces: list[str] = []
        lowered = text.lower()
        # Letters whose lower case is longer would shift all places.
        lowered = lowered if len(lowered) == len(text) else text
        start = place = 0
        while place < len(text):
            name = self._name_at(lowered, place)
            if name is None:
                place += 1
                continue
            pieces += [text[start:place], self._pseudonym_of(text[place : place + len(name)])]
            start = place = place + len(name)
        return "".join([*pieces, text[start:]])

    def replaced_whole(self, text: str) -> str:
        """Return a text with those names replaced that are several words, wherever they stand."""
        return self.replaced(text) if any(name in text.lower() for name in self._spaced) else text

    def _name_at(self, lowered: str, place: int) -> str | None:
        for name in self._starts.get(lowered[place : place + PREFIX], ()):
            if lowered.startswith(name, place) and self._stands_alone(lowered, place, name):
                return name
        return None

    def _stands_alone(self, text: str, place: int, name: str) -> bool:
        end = place + len(name)
        return self.is_found(name, text[place - 1 : place] if place else "", text[end : end + 1])

    def is_found(self, name: str, before: str, after: str) -> bool:
        """Tell whether a name between these characters is meant, and not part of another word.

        Long ones that are in no word of reports are found inside of words, too; a figure at their
        end is a whole one.
        """
        if len(name) < ANYWHERE or name.lower() in self._inside:
            return not (NEIGHBOUR.match(before) or NEIGHBOUR.match(after))
        return not (
            (name[0].isdecimal() and before.isdecimal())
            or (name[-1].isdecimal() and after.isdecimal())
        )

    def _pseudonym_of(self, text: str) -> str:
        return self._given.get(text) or self._given[self._lowered[text.lower()]]

    def _assign(self, name: str, pseudonym: str, kind: str) -> None:
        self._given[name] = pseudonym
        self._kinds[name] = kind
        self._issued.add(pseudonym)
        lowered = name.lower()
        if len(lowered) == len(name) and (kind in UNMISTAKABLE or not is_common(name, self.known)):
            if lowered not in self._lowered:
                names = self._starts[lowered[:PREFIX]]
                names.append(lowered)
                names.sort(key=len, reverse=True)
            self._lowered.setdefault(lowered, name)
            if not ONE_WORD.fullmatch(name):
                self._spaced.append(lowered)

    def _next(self, kind: str) -> str:
        while True:
            self._counts[kind] += 1
            found = f"{kind}{'' if len(kind) == 1 else '-'}{self._counts[kind]}"
            if found not in self._taken and found not in self._issued:
                return found

    def _kind_of(self, pseudonym: str) -> str:
        return next(self._kinds[name] for name, each in self._given.items() if each == pseudonym)

    def told(self) -> list[tuple[str, str, str, bool]]:
        """Return kind, name, pseudonym and whether it is replaced in all texts, in their order."""
        return [
            (self._kinds[name], name, pseudonym, name.lower() in self._lowered)
            for name, pseudonym in self._given.items()
        ]

    def searched(self) -> Iterator[str]:
        """Yield the names that may be nowhere, in lower case."""
        yield from self._lowered

    def only_told(self) -> Iterator[str]:
        """Yield the names that are replaced only where a path, a user or a host is told."""
        for name in self._given:
            if name.lower() not in self._lowered:
                yield name
