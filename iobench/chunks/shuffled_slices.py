"""Shuffled bytes, slice by slice, put where the numbers go."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.pieces import PiecePart

STAGED_NBYTES = 1 << 18
"""Gathered before they are put in their place: room in the cache for four times as much there."""


def put_slices(slices: Iterable[bytes], chunk: tuple[int, ...], parts: Sequence[PiecePart]) -> None:
    """Put byte 0 of all numbers of a chunk, then byte 1 of all, and so on, in their place."""
    targets: list[NDArray[Any]] = [part.target[..., None].view(np.uint8) for part in parts]
    stretches = _stretches(chunk)
    staged = np.empty(max(math.prod(each.shape) for each in stretches), dtype=np.uint8)
    waiting = iter(stretches)
    stretch, byte, n_staged = next(waiting), 0, 0
    for inflated in slices:
        values = np.frombuffer(inflated, dtype=np.uint8)
        while len(values):
            n_bytes = min(stretch.size - n_staged, len(values))
            staged[n_staged : n_staged + n_bytes] = values[:n_bytes]
            n_staged, values = n_staged + n_bytes, values[n_bytes:]
            if n_staged == stretch.size:
                stretch.put(staged[:n_staged], byte, targets, parts)
                n_staged = 0
                following = next(waiting, None)
                if following is None:
                    byte, waiting = byte + 1, iter(stretches)
                    following = next(waiting)
                stretch = following


class _Stretch:
    """Numbers of a chunk that lie together: some along one axis, all along those behind it."""

    def __init__(self, before: tuple[int, ...], start: int, shape: tuple[int, ...]) -> None:
        self._before = before
        self._start = start
        self.shape = shape
        self.size = math.prod(shape)

    def put(
        self,
        staged: NDArray[np.uint8],
        byte: int,
        targets: Sequence[NDArray[Any]],
        parts: Sequence[PiecePart],
    ) -> None:
        """Put one byte of each number in its place."""
        axis = len(self._before)
        values = staged.reshape(self.shape)
        for part, target in zip(parts, targets, strict=True):
            wanted = part.source[:-1]  # without the ellipsis
            if any(n not in _range(along) for n, along in zip(self._before, wanted, strict=False)):
                continue
            along = wanted[axis]
            start = max(self._start, along.start)
            stop = min(self._start + self.shape[0], along.stop)
            if start >= stop:
                continue
            at = tuple(n - each.start for n, each in zip(self._before, wanted, strict=False))
            inside = slice(start - along.start, stop - along.start)
            source = slice(start - self._start, stop - self._start)
            target[(*at, inside, ..., byte)] = values[(source, *wanted[axis + 1 :])]


def _range(along: slice) -> range:
    return range(along.start, along.stop)


def _stretches(chunk: tuple[int, ...]) -> list[_Stretch]:
    """Return what a chunk consists of, in C order."""
    axis = 0
    while axis < len(chunk) - 1 and math.prod(chunk[axis + 1 :]) > STAGED_NBYTES:
        axis += 1
    step = max(1, STAGED_NBYTES // math.prod(chunk[axis + 1 :]))
    return list(_cut(chunk, axis, step))


def _cut(chunk: tuple[int, ...], axis: int, step: int) -> Iterator[_Stretch]:
    for before in itertools.product(*map(range, chunk[:axis])):
        for start in range(0, chunk[axis], step):
            length = min(step, chunk[axis] - start)
            yield _Stretch(before, start, (length, *chunk[axis + 1 :]))
