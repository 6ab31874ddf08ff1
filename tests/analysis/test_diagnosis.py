"""The verdict, as data."""

from dataclasses import replace

from schedules import Sketch, pool

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.run import exposure


def of_pool(stages, n_batches=50, has_compute=True, **options):
    options = {"workers": 2, **options}
    figures = exposure(pool([stages] * n_batches, **options).profile())
    return diagnose(replace(figures, has_compute=has_compute))


def test_io_bound_names_the_stage_waited_for_most():
    found = of_pool([60, 30, 10], step_ns=15)
    assert (found.verdict, found.window, found.top_stage) == (Verdict.IO_BOUND, "steady", "read")
    assert round(found.top_fraction, 2) == 0.6


def test_hidden_and_partly_hidden():
    found = of_pool([60, 30, 10], step_ns=80)
    assert (found.verdict, found.hidden_fraction, found.top_stage) == (Verdict.HIDDEN, 1.0, None)
    assert of_pool([60, 30, 10], step_ns=45).verdict is Verdict.PARTLY_HIDDEN


def test_start_up_stands_beside_the_steady_state():
    found = of_pool([60, 30, 10], step_ns=80, n_batches=5)
    assert found.start_fraction == 100 / 500


def test_a_run_too_short_is_judged_as_a_whole():
    found = of_pool([60, 30, 10], step_ns=80, n_batches=3)
    assert (found.window, found.start_fraction) == ("whole", 0.0)


def test_without_compute_there_is_nothing_to_hide_behind():
    assert of_pool([60, 30, 10], step_ns=0, has_compute=False).verdict is Verdict.NO_COMPUTE


def test_without_a_batch_there_is_no_verdict():
    found = diagnose(exposure(Sketch({"workers": 2}).profile()))
    assert (found.verdict, found.wait_fraction, found.top_stage) == (Verdict.NO_BATCH, None, None)


def test_what_is_unknown_is_said():
    figures = exposure(
        pool([[60, 30, 10]] * 40, workers=2, step_ns=15).without(("worker", 0)).profile()
    )
    assert diagnose(figures).unknown_fraction == 1.0


def test_a_serial_loader_is_named():
    found = of_pool([60, 30, 10], step_ns=15, workers=0)
    assert found.serial
    assert found.hidden_fraction == 0.0
