"""Busy and exposed time by delivery and stage: what the windows of a run are summed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.partition import Pieces
    from iobench.analysis.stages import StageTable

__all__ = ["Ledger", "apportion"]

Integers = NDArray[np.int64]


class Ledger:
    """Tables of one row per delivery and one column per stage; integers, exact.

    The last row takes what belongs to no delivery, so that -1 means "none".

    Attributes
    ----------
    busy_ns, exposed_ns : ndarray of int64, shape (n_deliveries + 1, n_stages)
    n_spans, nbytes, cpu_ns : ndarray of int64, same shape
    nbytes_unknown, cpu_unknown : ndarray of int64, same shape
        How many spans do not tell.
    """

    __slots__ = (
        "busy_ns",
        "cpu_ns",
        "cpu_unknown",
        "exposed_ns",
        "n_spans",
        "nbytes",
        "nbytes_unknown",
    )

    def __init__(self, n_deliveries: int, n_stages: int) -> None:
        shape = (n_deliveries + 1, n_stages)
        self.busy_ns: Integers = np.zeros(shape, dtype=np.int64)
        self.exposed_ns: Integers = np.zeros(shape, dtype=np.int64)
        self.n_spans: Integers = np.zeros(shape, dtype=np.int64)
        self.nbytes: Integers = np.zeros(shape, dtype=np.int64)
        self.nbytes_unknown: Integers = np.zeros(shape, dtype=np.int64)
        self.cpu_ns: Integers = np.zeros(shape, dtype=np.int64)
        self.cpu_unknown: Integers = np.zeros(shape, dtype=np.int64)

    def count(
        self, spans: NDArray[Any], pieces: Pieces, stage: Integers, delivery: Integers
    ) -> None:
        """Count spans, bytes and CPU time, each span once, where its first piece is.

        Parameters
        ----------
        spans : ndarray of SPAN_DTYPE
            What ``pieces.span`` points into.
        pieces : Pieces
        stage, delivery : ndarray of int64, shape (n_pieces,)
        """
        first = np.flatnonzero(pieces.first)
        place = delivery[first], stage[first]
        of_first = spans[pieces.span[first]]
        summed = (of_first["flags"] & Flag.SUMMED) != 0
        np.add.at(self.n_spans, place, np.where(summed, of_first["pieces"], 1))
        for known, values, total in (
            (of_first["nbytes"], self.nbytes, self.nbytes_unknown),
            (pieces.cpu_ns[first], self.cpu_ns, self.cpu_unknown),
        ):
            np.add.at(values, place, np.maximum(known, 0))
            np.add.at(total, place, known < 0)

    def settle(self, stages: StageTable) -> None:
        """Give stages that are waiting themselves the busy time that was waited for."""
        self.busy_ns[:, stages.waiting] = self.exposed_ns[:, stages.waiting]


def apportion(amount: int, weights: list[int]) -> list[int]:
    """Split an amount in proportion to weights, by largest remainders; exact, in integers.

    Parameters
    ----------
    amount : int
        Not negative, at most ``sum(weights)``, which is not 0 unless the amount is.
    weights : list of int
        Not negative.

    Returns
    -------
    list of int
        Parts that add up to ``amount``; no part exceeds its weight. Of equal remainders the
        larger weight, then the earlier one, is rounded up.
    """
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    parts = [amount * weight // total for weight in weights]
    remainders = [amount * weight % total for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-remainders[i], -weights[i], i))
    for index in order[: amount - sum(parts)]:
        parts[index] += 1
    return parts
