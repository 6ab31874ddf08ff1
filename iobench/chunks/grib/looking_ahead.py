"""Where the next messages of a GRIB file probably begin, so that a remote one is indexed in time.

A message tells its length, and only then is the next one known: one request after another, 20 ms
each, for thousands of messages. Their lengths come again and again, though. So the places where
the next ones would begin if they did are asked for side by side; a guess that is wrong costs a
KiB and is never believed: whoever reads there looks for the marks of a message.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from iobench.files.open_file import OpenFile

if TYPE_CHECKING:
    from iobench.files.source_files import SourceBytes

MOST_GUESSES = 64
SHORT_NBYTES = 16384
"""Messages up to this are read in pages, with their data: fewer requests, and not many bytes."""
PAGE_NBYTES = 1 << 18
HISTORY = 4096
"""Messages back to where the lengths may begin to come again."""


class HeadReader:
    """Reads the beginnings of messages, of a remote file some ahead."""

    def __init__(self, opened: SourceBytes, nbytes: int) -> None:
        self._opened = opened
        self._nbytes = nbytes
        self._is_local = isinstance(opened, OpenFile)
        self._lengths: list[int] = []
        self._n_guesses = 1
        self._guessed: dict[int, bytes] = {}
        self._page_start, self._page = 0, b""

    def read(self, offset: int) -> bytes:
        """Return the bytes at an offset; fewer where the file ends."""
        return self._from_page(offset, self._nbytes) or self._opened.read_at(offset, self._nbytes)

    def read_after(self, offset: int, length: int, *, with_nbytes: int) -> bytes:
        """Return the bytes behind a message, with its own last few."""
        start, nbytes = offset + length - with_nbytes, self._nbytes + with_nbytes
        if self._is_local:
            return self._opened.read_at(start, nbytes)
        self._lengths.append(length)
        known = self._guessed.pop(start, None) or self._from_page(start, nbytes)
        return known or self._fetch(start, nbytes, length)

    def _fetch(self, start: int, nbytes: int, length: int) -> bytes:
        if length <= SHORT_NBYTES:
            self._page_start = start
            self._page = self._opened.read_at(start, PAGE_NBYTES)
            return self._page[:nbytes]
        # Guesses left over were wrong.
        self._n_guesses = 1 if self._guessed else min(2 * self._n_guesses, MOST_GUESSES)
        places = [start + n for n in accumulate(self._repeated(self._n_guesses - 1), initial=0)]
        places = [place for place in places if place == start or place < self._opened.nbytes]
        first, *others = self._opened.read_each(places, nbytes)
        self._guessed = dict(zip(places[1:], others, strict=True))
        return first

    def _repeated(self, count: int) -> list[int]:
        """Return the next lengths if they go on as they did since the last one came before."""
        lengths = self._lengths
        back = range(2, min(len(lengths), HISTORY) + 1)
        before = next((n for n in back if lengths[-n] == lengths[-1]), None)
        if before is None:
            return [lengths[-1]] * count
        cycle = lengths[-before + 1 :]
        return [cycle[n % len(cycle)] for n in range(count)]

    def _from_page(self, start: int, nbytes: int) -> bytes:
        """Return bytes of the page read last, none if it does not hold them all."""
        first = start - self._page_start
        if first < 0 or not self._page:
            return b""
        found = self._page[first : first + nbytes]
        ends_file = self._page_start + len(self._page) >= self._opened.nbytes
        return found if len(found) == nbytes or ends_file else b""
