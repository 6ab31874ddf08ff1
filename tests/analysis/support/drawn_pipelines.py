"""Pipelines drawn from a seed, tuned to nothing: one loader's run, or the steps of a job."""

from __future__ import annotations

import numpy as np

MS = 1_000_000
RULES = ("serial", "pool", "threads", "stream")
JOB_TIMES = ("served", "read", "rest", "submit", "transit", "pickup", "compute")


def drawn_run(seed: int) -> dict[str, object]:
    """Return the fields of a `RecordedRun`; rule and shape of a stream as plain values."""
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
    shape = None
    if rule == "stream":
        n_groups = int(random.integers(1, 4))
        shape = {
            "group": tuple(sorted(random.integers(0, n_groups, 3).tolist())),
            "threads": tuple(random.integers(1, 5, n_groups).tolist()),
            "ahead": tuple(random.integers(1, 7, n_groups).tolist()),
            "items": int(random.integers(1, 13)),
            "batches_apart": n_groups > 1 and bool(random.integers(0, 2)),
        }
    started = 0 if rule == "stream" else 1
    known = random.random() < 0.3
    return {
        "name": f"seed {seed}",
        "rule": rule,
        "in_order": in_order,
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
        "transit_ns": times(n) // 10,
        "pickup_ns": times(n) // 10,
        "compute_ns": times(n),
        "startup_ns": times(n_rounds),
        "shutdown_ns": times(n_rounds),
        "wall_ns": 1,
        "wait_ns": 1,
        "steady": random.random(n) < 0.7,
        "beside_ns": work * np.array([0, 0, int(random.integers(0, 2))]),
        "opening_ns": times(n_rounds),
        "lead_ns": times(n_rounds),
        "stream": shape,
        "batch": None if in_order else random.permutation(n),
        "maker": random.integers(-1, workers, n) if known and rule == "pool" else None,
    }


def drawn_machine(seed: int) -> dict[str, float]:
    """Return the fields of a `Machine` that may be short of everything."""
    random = np.random.default_rng((seed, 1))
    return {
        "cores": float(random.uniform(0.5, 6)),
        "read_nbytes_per_s": float(10 ** random.uniform(6, 10)),
        "loop_cpu_fraction": float(random.uniform(0, 2)),
    }


def drawn_job(seed: int) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Return how a job's ranks load, and what their batches take, in ns of float."""
    random = np.random.default_rng((seed, 2))
    ranks = int(random.integers(1, 10))
    how = {
        "rule": RULES[seed % 3],
        "workers": int(random.integers(1, 9)),
        "prefetch": int(random.integers(1, 4)),
    }
    most = {"served": random.choice([0, 1, 20])}
    most |= {"read": 60, "rest": 20, "submit": 1, "transit": 2, "pickup": 1, "compute": 30}
    return how, {name: random.uniform(0, most[name] * MS, (24, ranks)) for name in JOB_TIMES}
