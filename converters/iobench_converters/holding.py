"""What a sample holds in memory while it is made: more, where it is made of more than it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HeldBytes", "nbytes_of"]

COPIES = 3
"""Of a sample that is being made, as far as nothing else is known: read, decoded, preprocessed."""


class HeldBytes:
    """The most that making one sample has held so far; starts with a guess.

    Mean and deviation of ten members are two arrays, and were ten: only making one tells.

    Parameters
    ----------
    sample_nbytes : int
        Of a finished sample.
    """

    def __init__(self, sample_nbytes: int) -> None:
        self.nbytes = COPIES * sample_nbytes
        self.is_learnt = False

    def expect(self, nbytes: int) -> None:
        """Take note of what is known before any sample is made."""
        self.nbytes = max(self.nbytes, nbytes)

    def learn(self, made_nbytes: Sequence[int], count: int) -> None:
        """Take note of what some samples held that were made together.

        Threads may call it at once: of two that do, the next to learn makes up for one.

        Parameters
        ----------
        made_nbytes : sequence of int
            What each step made of all of them, 0 where it handed on what it was given. A step
            holds what it is given and what it makes.
        count : int
            How many samples.
        """
        held = given = 0
        for nbytes in made_nbytes:
            held = max(held, given + nbytes)
            given = nbytes or given
        self.nbytes = max(self.nbytes, -(-held // max(1, count)))
        self.is_learnt = True


def nbytes_of(value: Any) -> int:
    """Return the bytes of what a step returned, of buffers or arrays; 0 where it is not told."""
    return max(0, handed_on_nbytes(value))
