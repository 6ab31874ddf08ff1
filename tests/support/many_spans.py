"""Runs of any number of spans, as samples' spans of worker pools are: for sizes and for frames."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.recording.kinds import Kind

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))

from schedules import pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.runs.contents import RunData

BATCH_SIZE = 8
NBYTES = {Kind.READ: 23_913_120, Kind.DECODE: 47_826_240}
FILES = 480


def many_spans(n_spans: int, *, workers: int = 4, seed: int = 0) -> RunData:
    """Return a run of about that many spans: reads and decodes of samples in shuffled order.

    Times are lognormal to the nanosecond, so they pack no better than those that were measured.
    """
    random = np.random.default_rng(seed)
    n_batches = max(n_spans // (2 * BATCH_SIZE + 4), 2)
    means = np.array([2.0e6, 1.0e6, 0.3e6]) * BATCH_SIZE
    times = (random.lognormal(0, 0.5, (n_batches, 3)) * means).astype(np.int64)
    run = pool(times.tolist(), workers=workers, step_ns=8_000_000, handover_ns=20_000).data()
    files = [f"/data/ens10/ECMWF_ENS10_plev_{number:06d}.grib" for number in range(FILES)]
    order = random.permutation(n_batches * BATCH_SIZE)
    rest = run.spans[~np.isin(run.spans["kind"], [*NBYTES])]
    parts = [rest, *(_samples(run, kind, order, random) for kind in NBYTES)]
    return replace(run, spans=np.concatenate(parts), strings=(*run.strings, *files), ranks=(0,))


def _samples(
    run: RunData, kind: Kind, order: NDArray[Any], random: np.random.Generator
) -> NDArray[Any]:
    """Return the spans of samples in place of those of batches: shares of them, with gaps."""
    batches = run.spans[run.spans["kind"] == kind]
    shares = random.lognormal(0, 0.4, (len(batches), BATCH_SIZE))
    until = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
    length = (batches["end_ns"] - batches["start_ns"])[:, None]
    ends = (until * length).astype(np.int64)
    spans = np.repeat(batches, BATCH_SIZE)
    first = np.repeat(batches["start_ns"], BATCH_SIZE)
    spans["start_ns"] = first + np.hstack([np.zeros((len(ends), 1), int), ends[:, :-1]]).ravel()
    gaps = random.integers(200, 2000, len(spans))
    spans["end_ns"] = np.maximum(first + ends.ravel() - gaps, spans["start_ns"])
    places = batches["batch"].astype(np.int64)[:, None] * BATCH_SIZE + np.arange(BATCH_SIZE)
    spans["sample"] = order[places.ravel()]
    spans["detail"] = len(run.strings) + spans["sample"] % FILES
    spans["nbytes"] = NBYTES[kind]
    return spans


def two_ranks() -> RunData:
    """Return a job of two ranks: the second's workers are twice as slow."""
    parts = []
    for rank in (0, 1):
        times_ns = [(400 * (rank + 1), 300, 20)] * 8
        part = pool(times_ns, workers=2, step_ns=100).data()
        processes = tuple(replace(each, rank=rank) for each in part.processes)
        parts.append(replace(part, processes=processes))
    spans = [part.spans.copy() for part in parts]
    spans[1]["process"] += len(parts[0].processes)
    assert parts[0].strings == parts[1].strings
    return replace(
        parts[0],
        processes=parts[0].processes + parts[1].processes,
        spans=np.concatenate(spans[::-1]),
        ranks=(0, 1),
    )
