"""Whole chunks that a library decodes for a selection, as its layout and its cache have it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording import span_file as layout
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.recording.outside import OutsideSpan

_INTEGERS = (int, np.integer)
Picked = tuple[Sequence[int], int]
"""Chunks along a dimension, and how many values of it are selected."""


class ChunkCounter:
    """What one open array decoded: as many chunks as fit stay decoded, the latest used ones."""

    def __init__(self, array: Any, chunks: Sequence[int], cache_nbytes: int, name: str) -> None:
        self.shape, self.chunks, self.name = tuple(array.shape), tuple(chunks), name
        self.item_nbytes = 0 if array.dtype.hasobject else int(array.dtype.itemsize)
        self.nbytes = prod(self.chunks) * self.item_nbytes
        self.capacity = cache_nbytes // self.nbytes if self.nbytes else 0
        self.decoded: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def note(self, span: OutsideSpan, selection: Any, dims: Sequence[str]) -> None:
        """Record what a selection took beside a span: the counter of `Flag.DECODED`."""
        picked = self._picked(selection)
        if picked is None or not self.nbytes:
            return
        decoded = self._count([chunks for chunks, _ in picked]) * self.nbytes
        used = prod(number for _, number in picked) * self.item_nbytes
        parts = (at for at, each in enumerate(picked) if each[1] < self.shape[at])
        along, lane = next(parts, None), span.lane
        string, now = lane.recorder.string, lane.now_ns()
        sample, batch, epoch = layout.POSITION.unpack(lane.position)
        lane.recorder.emit(
            Kind.DECODE, now, now, decoded, used, batch, epoch, sample,
            0 if along is None else string(dims[along]), string(self.name),
            Flag.IO | Flag.DECODED,
        )  # fmt: skip

    def _count(self, chunks: Sequence[Sequence[int]]) -> int:
        needed = prod(map(len, chunks))
        if needed > self.capacity:
            self.decoded.clear()
            return needed
        n_decoded = 0
        for place in product(*chunks):
            n_decoded += self.decoded.pop(place, place) is not None
            self.decoded[place] = None
        while len(self.decoded) > self.capacity:
            self.decoded.popitem(last=False)
        return n_decoded

    def _picked(self, selection: Any) -> list[Picked] | None:
        """Return what a selection by orthogonal indices picks; None of one by other means."""
        keys = list(selection) if isinstance(selection, tuple) else [selection]
        fill = next((at for at, key in enumerate(keys) if key is Ellipsis), len(keys))
        missing = len(self.shape) - sum(key is not Ellipsis for key in keys)
        keys[fill : fill + 1] = [slice(None)] * missing
        if missing < 0 or len(keys) != len(self.shape):
            return None
        result: list[Picked] = []
        for key, length, chunk in zip(keys, self.shape, self.chunks, strict=True):
            along = _along(key, length, chunk)
            if along is None:
                return None
            result.append(along)
        return result


def _along(key: Any, length: int, chunk: int) -> Picked | None:
    if isinstance(key, _INTEGERS):
        return [int(key) % length // chunk], 1
    if isinstance(key, slice):
        picked = range(*key.indices(length))
        if not picked or abs(picked.step) <= chunk:
            low, high = sorted((picked[0], picked[-1])) if picked else (0, -1)
            return range(low // chunk, high // chunk + 1), len(picked)
        return sorted({each // chunk for each in picked}), len(picked)
    index = np.asarray(key)
    index = np.flatnonzero(index) if index.dtype == bool else index
    if index.dtype.kind not in "iu" or index.ndim != 1:
        return None
    return np.unique(index % length // chunk).tolist(), len(index)
