"""The synthetic ground truths of the definition (section 8), in ms, by its own recurrence."""

import pytest
from schedules import exposed, pool

MS = 1_000_000


def steady_per_step(workers, stages, step, n_batches=400):
    sketch = pool([[ms * MS for ms in stages]] * n_batches, workers=workers, step_ns=step * MS)
    window = sketch.profile().exposure().steady
    rows = {row.stage: row for row in window.stages}
    return [
        tuple(
            getattr(rows[stage], name) / window.n_batches / MS if stage in rows else 0.0
            for stage in ("read", "decode", "collate")
        )
        for name in ("exposed_ns", "hidden_ns")
    ]


@pytest.mark.parametrize(
    ("workers", "stages", "step", "expected"),
    [
        (0, (60, 30, 10), 15, (60, 30, 10)),
        (1, (60, 30, 10), 40, (36, 18, 6)),
        (4, (60, 30, 10), 15, (6, 3, 1)),
        (2, (60, 30, 10), 80, (0, 0, 0)),
    ],
)
def test_exposed_time_per_steady_step(workers, stages, step, expected):
    exposed_ms, _ = steady_per_step(workers, stages, step)
    assert exposed_ms == pytest.approx(expected, abs=0.05)


def test_what_is_fully_prefetched_is_all_hidden():
    _, hidden_ms = steady_per_step(2, (60, 30, 10), 80)
    assert hidden_ms == pytest.approx((60, 30, 10))


def test_one_slow_read_is_blamed_on_read():
    durations = [[20 * MS, 10 * MS, 0] for _ in range(400)]
    durations[200][0] += 400 * MS
    # At a step of exactly 15 ms no batch has slack, and the cause is the whole run's work.
    steady = exposed(pool(durations, workers=2, step_ns=16 * MS).profile(), steady=True)
    assert steady["read"] > 0.9 * sum(steady.values()) > 0


def test_two_workers_with_opposite_costs_all_fall_on_one_stage():
    # Halving either stage alone gains nothing here; attribution says where the wait was.
    durations = [[100 * MS, 0, 0] if batch % 2 else [0, 100 * MS, 0] for batch in range(100)]
    steady = exposed(pool(durations, workers=2, step_ns=5 * MS).profile(), steady=True)
    assert set(steady) <= {"read", "decode"}
    assert max(steady.values()) / sum(steady.values()) > 0.99
