"""The verdict, as data."""

from msgspec.structs import replace
from schedules import pool

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import SketchedRun


def of_pool(stages, n_batches=50, has_compute=True, **options):
    options = {"workers": 2, **options}
    figures = exposure(pool([stages] * n_batches, **options).data())
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
    found = diagnose(exposure(SketchedRun({"workers": 2}).data()))
    assert (found.verdict, found.wait_fraction, found.top_stage) == (Verdict.NO_BATCH, None, None)


def test_what_is_unknown_is_said():
    figures = exposure(
        pool([[60, 30, 10]] * 40, workers=2, step_ns=15).without(("worker", 0)).data()
    )
    assert diagnose(figures).unknown_fraction == 1.0


def test_a_serial_loader_is_named():
    found = of_pool([60, 30, 10], step_ns=15, workers=0)
    assert found.hidden_fraction == 0.0


def cold_then_warm(n_epochs, **config):
    """A profile of epochs of 10 batches, of which the first reads for 200, the others for 20."""
    made = [[200 if batch < 10 else 20, 5, 5] for batch in range(10 * n_epochs)]
    sketch = pool(made, workers=2, step_ns=50)
    sketch.config |= {"n_samples": 40, **config}
    spans = [
        {**span, "epoch": span["batch"] // 10} if span["kind"] == Kind.WAIT and "batch" in span
        else span
        for span in sketch.spans
    ]  # fmt: skip
    return exposure(sketch.with_spans(spans).data())


def test_the_first_of_several_epochs_is_apart_and_told():
    figures = cold_then_warm(4)
    assert [(each.phase, each.n_deliveries) for each in figures.phases] == [
        ("startup", 1), ("fill", 3), ("first epoch", 6), ("steady", 30), ("drain", 1),
    ]  # fmt: skip
    found = diagnose(figures)
    assert found.verdict == Verdict.HIDDEN
    assert sum(each.wait_ns for each in figures.phases[:3]) > 0.4 * figures.phases[2].wall_ns


def test_a_profile_without_two_whole_epochs_is_judged_as_it_is():
    assert cold_then_warm(1).part("steady").n_batches == 6
    assert cold_then_warm(4, n_samples=1000).part("steady").n_batches == 36
