"""Reading groups of samples ahead of those that are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["GroupsAhead"]


class GroupsAhead:
    """What is stored of groups, read before it is needed where there is room for it.

    Parameters
    ----------
    reader : ThreadPoolExecutor
        One thread.
    read : callable
        Reads a group.
    fits : callable
        Takes the number of a group, and how many groups as stored would be in memory with it.
    groups : sequence of sequences of int
        The numbers of their samples.
    """

    def __init__(
        self,
        reader: ThreadPoolExecutor,
        read: Callable[[Sequence[int]], Any],
        fits: Callable[[int, int], bool],
        groups: Sequence[Sequence[int]],
    ) -> None:
        self.groups = groups
        self._reader = reader
        self._read = read
        self._fits = fits
        self._coming: dict[int, Future[Any]] = {}

    def read(self, number: int, *, n_read: int) -> None:
        """Begin to read a group, unless that was begun, or there is none, or no room for it."""
        if number < len(self.groups) and number not in self._coming and self._fits(number, n_read):
            self._coming[number] = self._reader.submit(self._read, self.groups[number])

    def take(self, number: int) -> Any:
        """Return a group as stored, and let go of it here."""
        coming = self._coming.pop(number, None)
        return self._read(self.groups[number]) if coming is None else coming.result()

    def cancel(self) -> None:
        """Read no more."""
        for coming in list(self._coming.values()):
            coming.cancel()
