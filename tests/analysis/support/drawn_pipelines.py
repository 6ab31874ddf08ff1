"""Pipelines drawn from a seed, tuned to nothing."""

from __future__ import annotations

import numpy as np

MS = 1_000_000
RULES = ("serial", "pool", "threads", "stream")


def drawn_run(seed: int) -> dict[str, object]:
    """Return the fields of a `LoaderRun`, with the rule as a text; streams and pools out of order
    are drawn as well, so that the draws of others stay.
    """
    random = np.random.default_rng(seed)
    rule = RULES[seed % 4]
    n_rounds = int(random.integers(1, 4))
    n = n_rounds + int(random.integers(0, 40))

    def times(*shape: int) -> np.ndarray:
        # So long that no two things happen at one instant but by design.
        found = random.integers(0, 30 * MS, shape)
        return np.where(random.random(shape) < 0.2, 0, found)

    work = times(n, 3)
    cpu = np.rint(work * random.random(work.shape)).astype(np.int64)
    workers = 0 if rule == "serial" else int(random.integers(1, 9))
    in_order = rule != "pool" or bool(random.integers(0, 2))
    if rule == "stream":
        n_groups = int(random.integers(1, 4))
        for low, high, n_drawn in ((0, n_groups, 3), (1, 5, n_groups), (1, 7, n_groups)):
            random.integers(low, high, n_drawn)
        random.integers(1, 13)
        if n_groups > 1:
            random.integers(0, 2)
    started = 0 if rule == "stream" else 1
    known = random.random() < 0.3
    return {
        "name": f"seed {seed}",
        "rule": rule,
        "workers": workers,
        "prefetch": 0 if rule == "serial" else int(random.integers(1, 5)),
        "batch_size": 1,
        "stages": ("decode", "read", "serialise"),
        "round": np.sort(
            np.append(np.arange(n_rounds), random.integers(0, n_rounds, n - n_rounds))
        ),
        "work_ns": work,
        "cpu_ns": np.where(random.random(cpu.shape) < 0.2, -1, cpu),
        "read_nbytes": random.integers(-1, 10_000_000, n),
        "gap_ns": times(n) // 10,
        "submit_ns": started * (times(n) // 10 - 2 * MS * int(random.integers(0, 2))),
        "transit_ns": times(n) // 10 * (rule != "serial"),
        "pickup_ns": times(n) // 10,
        "compute_ns": times(n),
        "startup_ns": times(n_rounds),
        "shutdown_ns": times(n_rounds),
        "wall_ns": 1,
        "wait_ns": 1,
        "steady": random.random(n) < 0.7,
        "async_ns": work * np.array([0, 0, int(random.integers(0, 2))]),
        "iter_ns": times(n_rounds),
        "before_first_ns": times(n_rounds),
        "number": np.arange(n) if in_order else random.permutation(n),
        "worker": random.integers(-1, workers, n) if known and rule == "pool" else np.full(n, -1),
        "loop_stages": (),
        "loop_ns": np.zeros((n, 0), dtype=np.int64),
        "repeated": np.zeros(n_rounds, dtype=bool),
    }
