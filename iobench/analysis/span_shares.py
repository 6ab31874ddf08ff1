"""What share of each span's own time the training loop waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.attribution import Attribution
    from iobench.profiles.contents import Profile

__all__ = ["ChargedWork", "share_of_spans"]


@dataclass(frozen=True, slots=True)
class ChargedWork:
    """Parts of the spans that load, each in the delivery that counts it as busy time.

    Parameters
    ----------
    row : ndarray of int64
        Of the span, in ``Profile.spans``; a span may have several parts.
    stage : ndarray of int64
    delivery : ndarray of int64
        -1 where no delivery counts it.
    length_ns : ndarray of int64
        The parts of a span add up to its own time.
    """

    row: NDArray[np.int64]
    stage: NDArray[np.int64]
    delivery: NDArray[np.int64]
    length_ns: NDArray[np.int64]

    @classmethod
    def joined(cls, *parts: ChargedWork) -> ChargedWork:
        """Return all parts as one."""
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("row", "stage", "delivery", "length_ns")
            )
        )


def share_of_spans(profile: Profile, attribution: Attribution) -> NDArray[np.float64]:
    """Return the exposed share of each span of a profile, NaN where it is not known.

    A stage's exposed time in a delivery is spread over its busy time there evenly. Spans without
    time of their own, those of kinds that are waiting themselves, and what the training loop
    computes have no share; a sample's span beside a summed one has that one's.
    """
    ledger, work = attribution.ledger, attribution.work()
    busy_ns = ledger.busy_ns[work.delivery, work.stage]
    exposed_ns = ledger.exposed_ns[work.delivery, work.stage]
    waited_for = np.where(
        work.delivery >= 0, work.length_ns * exposed_ns / np.maximum(busy_ns, 1), 0
    )
    waiting = attribution.stages.waiting[work.stage]
    n_spans = len(profile.spans)
    own_ns: NDArray[Any] = np.bincount(work.row[~waiting], work.length_ns[~waiting], n_spans)
    waited_for_ns: NDArray[Any] = np.bincount(work.row[~waiting], waited_for[~waiting], n_spans)
    share = np.full(n_spans, np.nan)
    np.divide(waited_for_ns, own_ns, out=share, where=own_ns > 0)
    _share_of_samples(profile.spans, own_ns, waited_for_ns, share)
    return share


def _share_of_samples(
    spans: NDArray[Any],
    own_ns: NDArray[Any],
    waited_for_ns: NDArray[Any],
    share: NDArray[np.float64],
) -> None:
    """Give samples' spans the share of the summed ones of their batch, thread and stage."""
    flags = spans["flags"]
    details = np.flatnonzero((flags & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL)
    sums = np.flatnonzero(((flags & Flag.SUMMED) != 0) & (own_ns > 0))
    if not len(details) or not len(sums):
        return
    names = ["process", "thread", "batch", "kind", "label"]
    keys = spans[names][np.concatenate((sums, details))]
    distinct, number = np.unique(keys, return_inverse=True)
    number = number.reshape(-1)
    of_sum, of_detail = number[: len(sums)], number[len(sums) :]
    own = np.bincount(of_sum, own_ns[sums], len(distinct))
    waited_for = np.bincount(of_sum, waited_for_ns[sums], len(distinct))
    found = own[of_detail] > 0
    share[details[found]] = waited_for[of_detail[found]] / own[of_detail[found]]
