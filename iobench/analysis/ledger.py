"""The one table that every figure of a stage is a sum of: time by delivery and stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.partition import Pieces
    from iobench.analysis.stage_table import StageTable

Integers = NDArray[np.int64]
TABLES: Final = (
    "busy_ns", "exposed_ns", "n_spans", "nbytes", "nbytes_unknown", "cpu_ns", "cpu_unknown",
    "compute_ns", "n_computed",
)  # fmt: skip


class Ledger:
    """Tables of one row per delivery (or per process) and one column per stage; exact integers.

    The last row takes what belongs to no delivery, so that -1 means "none". Columns are of
    ``stages``.
    """

    __slots__ = ("between_ns", "ending_ns", "stages", *TABLES)

    busy_ns: Integers  # work of loading,
    exposed_ns: Integers  # and what of it was waited for
    n_spans: Integers
    nbytes: Integers
    nbytes_unknown: Integers  # how many spans do not report
    cpu_ns: Integers
    cpu_unknown: Integers
    # What the training loop did itself outside of its waits, in whose share of the wall time,
    compute_ns: Integers
    n_computed: Integers  # and in how many spans, where each began
    # By delivery alone: of that share what lies before the forward pass, in none of these spans;
    # -1 where no forward pass follows, or nobody noted who asked
    between_ns: Integers
    ending_ns: Integers  # of that share, in which workers of loaders ended; not in ``between_ns``

    def __init__(self, n_deliveries: int, stages: StageTable) -> None:
        self.stages = stages
        self.between_ns = np.full(n_deliveries, -1, dtype=np.int64)
        self.ending_ns = np.zeros(n_deliveries, dtype=np.int64)
        for name in TABLES:
            setattr(self, name, np.zeros((n_deliveries + 1, len(stages)), dtype=np.int64))

    def sum(self, by: NDArray[Any], of: str, n_groups: int | None = None) -> Integers:
        """Sum a table, ``of``, over deliveries, for each stage.

        ``by`` marks those to sum, or has the group of each from 0, -1 for none; then there is a
        row of sums for each of ``n_groups``.
        """
        table: Integers = getattr(self, of)
        if by.dtype == bool:
            total: Integers = table[np.flatnonzero(by)].sum(axis=0)
            return total
        rows = np.flatnonzero(by >= 0)
        rows = rows[np.argsort(by[rows], kind="stable")]
        groups, first = np.unique(by[rows], return_index=True)
        n_groups = int(by.max(initial=-1)) + 1 if n_groups is None else n_groups
        result = np.zeros((n_groups, table.shape[1]), dtype=np.int64)
        if len(rows):
            result[groups] = np.add.reduceat(table[rows], first, axis=0)
        return result

    def count(
        self, spans: NDArray[Any], pieces: Pieces, stage: Integers, delivery: Integers
    ) -> None:
        """Count spans, bytes and CPU time, each span once, where its first piece is."""
        first = np.flatnonzero(pieces.first)
        place = delivery[first] * len(self.stages) + stage[first]
        row = pieces.span[first]
        summed = (spans["flags"][row] & Flag.SUMMED) != 0
        np.add.at(self.n_spans.reshape(-1), place, np.where(summed, spans["pieces"][row], 1))
        for known, values, total in (
            (spans["nbytes"][row], self.nbytes, self.nbytes_unknown),
            (pieces.cpu_ns[first], self.cpu_ns, self.cpu_unknown),
        ):
            np.add.at(values.reshape(-1), place, np.maximum(known, 0))
            np.add.at(total.reshape(-1), place, (known < 0).astype(np.int64))

    def settle(self) -> None:
        """Give stages that are waiting themselves the busy time that was waited for."""
        waiting = self.stages.waiting
        self.busy_ns[:, waiting] = self.exposed_ns[:, waiting]


class ChargedWork(msgspec.Struct, frozen=True):
    """Parts of the spans that load, each in the delivery that counts it as busy time."""

    row: Integers  # of the span, in ``RunData.spans``; a span may have several parts
    stage: Integers
    delivery: Integers  # -1 where no delivery counts it
    length_ns: Integers  # the parts of a span add up to its own time

    @classmethod
    def joined(cls, *parts: ChargedWork) -> ChargedWork:
        """Return all parts as one."""
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("row", "stage", "delivery", "length_ns")
            )
        )


def apportion(amount: int, weights: list[int]) -> list[int]:
    """Split an amount in proportion to weights, by largest remainders; exact, in integers.

    The amount is at most the sum of the weights. Parts add up to it, and none exceeds its weight.
    Of equal remainders the larger weight, then the earlier one, is rounded up.
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
