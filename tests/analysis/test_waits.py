"""Statistics of the wait per step, and the few long waits that a median hides."""

import itertools

import numpy as np
import pytest
from schedules import CONSUMER, Sketch, pool

from iobench.analysis.exposure_figures import Coincidence
from iobench.analysis.run import exposure
from iobench.analysis.waits import step_statistics
from iobench.recording.kinds import Kind


def serial_run(waits, step_ns=100, epochs=None, files=None, rounds=None):
    sketch = Sketch({"workers": 0, "prefetch": 1})
    clock, starts = 0, []
    for batch, wait in enumerate(waits):
        starts.append(clock)
        detail = files[batch] if files else ""
        sketch.add(CONSUMER, Kind.READ, clock, clock + wait, batch=batch, detail=detail)
        epoch = epochs[batch] if epochs else 0
        sketch.wait(batch, clock, clock + wait, "consumer", epoch=epoch)
        clock += wait + step_ns
    edges = [starts[first] for first in rounds or [0]] + [clock]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        sketch.round(start, end, number)
    return exposure(sketch.profile())


def test_statistics_of_nothing_and_of_one():
    assert step_statistics(np.array([], dtype=np.int64)) is None
    assert step_statistics(np.array([5])).stdev_ns is None


def test_statistics():
    found = step_statistics(np.array([1, 2, 3, 10])).in_whole_ns()
    assert (found.n_steps, found.min_ns, found.mean_ns, found.max_ns) == (4, 1, 4, 10)
    assert (found.median_ns, found.stdev_ns) == (2, 4)


def test_equal_waits_have_no_long_ones():
    assert serial_run([50] * 20).long_waits is None


def test_long_waits_too_short_to_matter_are_not_mentioned():
    assert serial_run([10] * 99 + [200]).long_waits is None


def test_long_waits_at_every_tenth_step():
    waits = ([5000] + [10] * 9) * 10
    found = serial_run(waits).long_waits
    assert (found.n_waits, found.n_steps, found.period_steps) == (10, 100, 10)
    assert (found.wait_ns, found.typical_ns) == (50_000, 5000)
    assert found.excess_fraction == pytest.approx(49_900 / 60_900)


def test_irregular_long_waits_have_no_period():
    waits = [10] * 60
    for step in (3, 7, 30, 33, 50):
        waits[step] = 9000
    assert serial_run(waits).long_waits.period_steps is None


def test_waits_at_every_other_step_on_average_have_no_period():
    waits = [10] * 60
    for step in (1, 4, 5, 8, 10, 13, 14, 17, 18, 19):
        waits[step] = 9000
    assert serial_run(waits).long_waits.period_steps is None


def test_equal_workers_wait_in_step():
    found = exposure(pool([[100, 20, 0]] * 60, workers=3, step_ns=10).profile()).long_waits
    assert (found.period_steps, found.in_step) == (3, True)


def test_a_first_batch_alone_is_no_sign_of_workers_in_step():
    found = exposure(pool([[100, 0, 0]] * 4, workers=2, step_ns=120).profile()).long_waits
    assert (found.n_waits, found.n_steps, found.in_step) == (1, 4, False)
    assert "round start" in [each.what for each in found.coincidences]


def test_one_slow_worker_is_not_called_in_step():
    durations = [[100, 0, 0] if batch % 2 else [10, 0, 0] for batch in range(61)]
    found = exposure(pool(durations, workers=2, step_ns=20).profile()).long_waits
    assert (found.period_steps, found.in_step) == (2, False)


def test_long_waits_at_the_start_of_epochs():
    waits = ([5000] + [10] * 9) * 3
    found = serial_run(waits, epochs=[step // 10 for step in range(30)]).long_waits
    assert found.coincidences[0] == Coincidence("epoch start", 2, 2)


def test_long_waits_where_the_file_changes():
    files = [f"file-{step // 10}" for step in range(40)]
    waits = [5000 if step % 10 == 0 and step else 10 for step in range(40)]
    assert serial_run(waits, files=files).long_waits.coincidences == (
        Coincidence("file change", 3, 3),
    )


def test_files_that_change_at_every_step_explain_nothing():
    files = [f"file-{step}" for step in range(40)]
    waits = [5000 if step % 10 == 5 else 10 for step in range(40)]
    named = [each.what for each in serial_run(waits, files=files).long_waits.coincidences]
    assert "round start" not in named
    assert serial_run(waits).long_waits.coincidences == ()


def test_what_marks_every_other_step_as_well_explains_nothing():
    waits = [5000 if step % 7 == 0 else 10 for step in range(70)]
    found = serial_run(waits, epochs=[step // 2 for step in range(70)]).long_waits
    assert found.coincidences == ()


def test_long_waits_at_the_start_of_rounds():
    waits = ([5000] + [10] * 9) * 3
    found = serial_run(waits, rounds=[0, 10, 20]).long_waits
    assert Coincidence("round start", 3, 3) in found.coincidences
