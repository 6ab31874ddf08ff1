"""Which spans a page shows where there are too many for it, and what it says of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.timeline import Timeline

__all__ = ["choose_spans"]


def choose_spans(timeline: Timeline, limit: int) -> tuple[NDArray[np.int64], dict[str, Any] | None]:
    """Choose what is shown of a timeline.

    All waits, the longest where even these are too many; half of what is left of ``limit`` for
    the spans with most exposed time, the other half for a uniform sample of the rest, always the
    same for the same run.

    Parameters
    ----------
    timeline : Timeline
    limit : int

    Returns
    -------
    rows : ndarray of int64
        In ascending order.
    left_out : dict or None
        None where nothing is. Else ``n_spans``, ``length_ns`` and ``exposed_ns`` of what is left
        out; ``n_waits``, ``n_worst`` and ``n_sampled`` of what is not, and ``n_waits_left_out``;
        ``stages``: ``[{stage, n_spans, length_ns, exposed_ns}]`` of what is left out.

    Raises
    ------
    ValueError
        If the limit is negative.
    """
    if limit < 0:
        raise ValueError(f"limit is {limit}; expected a number of spans, 0 or more")
    n_spans = len(timeline)
    if n_spans <= limit:
        return np.arange(n_spans, dtype=np.int64), None
    is_wait = timeline.spans["kind"] == Kind.WAIT
    length_ns = timeline.spans["end_ns"] - timeline.spans["start_ns"]
    waits = _longest(np.flatnonzero(is_wait), length_ns, limit)
    room = limit - len(waits)
    others = np.flatnonzero(~is_wait)
    exposed = others[timeline.exposed_ns[others] > 0]
    worst = _longest(exposed, timeline.exposed_ns, room // 2)
    rest = np.setdiff1d(others, worst, assume_unique=True)
    # Drawn and not every n-th: stages follow each other in a period as well.
    random = np.random.default_rng(0)
    sampled = random.choice(rest, min(room - len(worst), len(rest)), replace=False, shuffle=False)
    rows = np.sort(np.concatenate((waits, worst, sampled)))
    counts = {
        "n_waits": len(waits),
        "n_waits_left_out": int(is_wait.sum()) - len(waits),
        "n_worst": len(worst),
        "n_sampled": len(sampled),
    }
    return rows, {**_left_out(timeline, rows), **counts}


def _longest(rows: NDArray[np.int64], by: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the rows of the greatest values; of equal ones, the first."""
    return np.sort(rows[np.argsort(-by[rows], kind="stable")[:most]])


def _left_out(timeline: Timeline, rows: NDArray[np.int64]) -> dict[str, Any]:
    gone = np.ones(len(timeline), dtype=bool)
    gone[rows] = False
    spans, stage = timeline.spans[gone], timeline.stage[gone]
    length = spans["end_ns"] - spans["start_ns"]
    exposed = np.maximum(timeline.exposed_ns[gone], 0)
    stages = []
    for number in np.unique(stage).tolist():
        of_stage = stage == number
        stages.append(
            {
                "stage": timeline.stages[number],
                "n_spans": int(of_stage.sum()),
                "length_ns": int(length[of_stage].sum()),
                "exposed_ns": int(exposed[of_stage].sum()),
            }
        )
    return {
        "n_spans": len(spans),
        "length_ns": int(length.sum()),
        "exposed_ns": int(exposed.sum()),
        "stages": stages,
    }
