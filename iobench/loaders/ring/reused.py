"""Buffers that come back by count: nothing is allocated, and nobody is kept from stale batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from iobench.loaders.ring.buffers import BatchMemory, BufferPool
from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec


class ReusedBuffers(BufferPool):
    """Buffers that come back by count, whoever still looks at them.

    A batch is valid until ``depth`` - 1 further ones have been asked for. Nothing is allocated
    after the start; who keeps a batch longer sees another one in its place.

    Parameters
    ----------
    ahead : int
        Buffers that are filled meanwhile.
    spec, batch_size, depth, max_bytes, prepare, new_memory
        As of `BufferPool`.
    """

    def __init__(
        self,
        spec: SampleSpec,
        batch_size: int,
        *,
        depth: int,
        ahead: int,
        max_bytes: int | None = None,
        prepare: Callable[[BatchMemory], None] | None = None,
        new_memory: Callable[[int], BatchMemory] | None = None,
    ) -> None:
        super().__init__(
            spec, batch_size, depth=depth - 1 + ahead,
            max_bytes=max_bytes, prepare=prepare, new_memory=new_memory,
        )  # fmt: skip
        self._n_valid = depth - 1
        self._lent: dict[int, BatchMemory] = {}
        self._valid: deque[int] = deque()

    def lend(self, memory: BatchMemory, n_samples: int) -> tuple[int, dict[str, NDArray[Any]]]:
        """Return key and arrays of a buffer, which do not keep it."""
        key = next(self._keys)
        self._lent[key] = memory
        return key, self._layout.arrays(memory.pages, n_samples)

    def hand_out(self, key: int) -> None:
        """Count a batch as valid, and those handed out too long ago as not."""
        self._valid.append(key)
        while len(self._valid) > self._n_valid:
            self._reclaim(self._valid.popleft())

    @property
    def n_held(self) -> int:
        """Batches that are valid."""
        return len(self._valid)

    def drop(self, key: int) -> None:
        """Take back a buffer that was lent and will not be handed out."""
        self._reclaim(key)

    def discard(self) -> None:
        """Let go of all buffers, lent ones as well."""
        super().discard()
        self._lent.clear()
        self._valid.clear()

    def _reclaim(self, key: int) -> None:
        memory = self._lent.pop(key)
        memory.freed_ns = now_ns()
        self._free.put(memory)
