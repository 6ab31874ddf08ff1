"""What processes of a loader do with a batch: tell how many chunks they decoded for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from iobench.chunks.decoded_chunks import take_decode_counts


def with_decodes(batch: dict[str, Any]) -> dict[str, Any]:
    """Return how many chunks this process decoded since the last batch, and which samples."""
    counts = take_decode_counts()
    made = np.zeros(len(batch["a"]), np.int64)
    made[0] = 0 if counts is None else counts.n_decoded
    return {"a": batch["a"], "made": made}
