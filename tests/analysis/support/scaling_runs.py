"""Recorded runs of known batches, for simulations on more ranks."""

from __future__ import annotations

import numpy as np

from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun

MS = 1_000_000


def make_run(
    *,
    rule: LoaderRule = LoaderRule.POOL,
    n: int = 64,
    workers: int = 2,
    prefetch: int = 2,
    batch_size: int = 1,
    read_ms: object = 10.0,
    decode_ms: object = 5.0,
    step_ms: object = 25.0,
    nbytes: object = 4_000_000,
    stages: tuple[str, str] = ("read", "decode"),
    **more: object,
) -> RecordedRun:
    """Return a run of n batches; each quantity is a number or an array of n."""

    def column(value: object, unit: int = 1) -> np.ndarray:
        return np.broadcast_to(np.rint(np.asarray(value) * unit), n).astype(np.int64)

    none = np.zeros(n, dtype=np.int64)
    given = {
        "name": "run-1",
        "rule": rule,
        "in_order": True,
        "workers": 0 if rule is LoaderRule.SERIAL else workers,
        "prefetch": 0 if rule is LoaderRule.SERIAL else prefetch,
        "batch_size": batch_size,
        "stages": stages,
        "round": none,
        "work_ns": np.stack([column(read_ms, MS), column(decode_ms, MS)], axis=1),
        "cpu_ns": np.full((n, 2), -1, dtype=np.int64),
        "read_nbytes": column(nbytes),
        "gap_ns": none,
        "submit_ns": none,
        "transit_ns": none,
        "pickup_ns": none,
        "compute_ns": column(step_ms, MS),
        "startup_ns": np.zeros(1, dtype=np.int64),
        "shutdown_ns": np.zeros(1, dtype=np.int64),
        "wall_ns": n * 25 * MS,
        "wait_ns": 0,
        "steady": np.ones(n, dtype=bool),
    }
    return RecordedRun(**{**given, **more})
