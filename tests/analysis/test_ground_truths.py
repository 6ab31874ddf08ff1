"""The synthetic ground truths of the definition (section 8), in ms, by its own recurrence."""

import pytest
from schedules import exposed, pool

from iobench.analysis.run import exposure

MS = 1_000_000


def steady_per_step(workers, stages, step, n_batches=400):
    sketch = pool([[ms * MS for ms in stages]] * n_batches, workers=workers, step_ns=step * MS)
    window = exposure(sketch.data()).steady
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


@pytest.mark.parametrize(
    ("workers", "stages", "step", "expected"),
    [
        (1, (60, 30, 10), 40, (36.06, 18.03, 6.01)),
        (4, (60, 30, 10), 15, (6.09, 3.04, 1.01)),
        (2, (60, 30, 10), 80, (0.15, 0.07, 0.03)),
    ],
)
def test_exposed_time_per_step_of_400_with_the_first_fill(workers, stages, step, expected):
    sketch = pool([[ms * MS for ms in stages]] * 400, workers=workers, step_ns=step * MS)
    found = exposed(sketch.data())
    per_step = [found.get(stage, 0) / 400 / MS for stage in ("read", "decode", "collate")]
    assert per_step == pytest.approx(expected, abs=0.006)


def test_one_slow_read_is_blamed_on_read():
    durations = [[20 * MS, 10 * MS, 0] for _ in range(400)]
    durations[200][0] += 400 * MS
    # At a step of exactly 15 ms no batch has slack, and the cause is the whole run's work.
    steady = exposed(pool(durations, workers=2, step_ns=16 * MS).data(), steady=True)
    assert steady["read"] > 0.9 * sum(steady.values()) > 0
