"""Large arrays whose memory is used again: zeroing fresh pages took a third of decoding."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RecycledMemory:
    """Hands out float32 arrays, again once nothing refers to them or to a view of them.

    Threads may share one. It holds as many arrays as were in use at once, of the last size asked
    for; a copy in another process starts with none.
    """

    def __init__(self) -> None:
        self._spare: list[memoryview] = []

    def __reduce__(self) -> Any:
        return RecycledMemory, ()

    def array(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return an array of this shape, its values undefined."""
        nbytes = 4 * math.prod(shape)
        buffer = self._take(nbytes)
        flat = np.frombuffer(buffer, dtype=np.float32)
        # Views refer to ``flat``, not to what it lies on (that is no array): it goes last.
        weakref.finalize(flat, self._spare.append, buffer).atexit = False
        return flat.reshape(shape)

    def _take(self, nbytes: int) -> memoryview:
        while True:
            try:
                buffer = self._spare.pop()
            except IndexError:
                return np.empty(nbytes, dtype=np.uint8).data
            if buffer.nbytes == nbytes:
                return buffer
