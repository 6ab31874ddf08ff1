"""One number for two columns of spans, the first one above bit 32: a stage, a lane, a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def key_of(high: int, low: int) -> int:
    """Return the number of a pair."""
    return high << 32 | low


def halves(key: int) -> tuple[int, int]:
    """Return the pair of a number."""
    return key >> 32, key & 0xFFFFFFFF


def stage_keys(spans: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each span's kind and label."""
    key: NDArray[np.int64] = spans["kind"].astype(np.int64) << 32 | spans["label"]
    return key


def lane_keys(spans: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each span's process and thread."""
    key: NDArray[np.int64] = spans["process"].astype(np.int64) << 32 | spans["thread"]
    return key


def batch_keys(spans: NDArray[Any], of: str = "process") -> NDArray[np.int64]:
    """Return the number of each span's batch within its process, or another column's value."""
    key: NDArray[np.int64] = (spans[of].astype(np.int64) << 32) + spans["batch"] + 1
    return key


def stages_of(
    spans: NDArray[Any], strings: Sequence[str]
) -> tuple[list[tuple[Kind, str]], NDArray[np.int64]]:
    """Return kind and label of the stages of spans, and which is each one's."""
    keys, number = np.unique(stage_keys(spans), return_inverse=True)
    pairs = [(Kind(kind), strings[label]) for kind, label in map(halves, keys.tolist())]
    return pairs, number.reshape(-1).astype(np.int64)
