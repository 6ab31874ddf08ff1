"""The ring under a profile, in threads and in the loop itself: batches, spans, waits."""

from __future__ import annotations

from itertools import islice

from span_rows import rows_by_kind, rows_of
from tiny_pipeline import COSTS, ring_of, tiny_pipeline

from iobench.analysis.run import exposure
from iobench.loaders.measure import Compute, MeasuredPipeline, measure
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile


def native(recorder, pipeline=None, *, threads=2, **options):
    return ring_of(pipeline or tiny_pipeline(), 3, threads=threads, recorder=recorder, **options)


def alone(recorder, pipeline=None):
    return native(recorder, pipeline, threads=0)


def planned(n_batches):
    return list(islice(plan_batches(12, 3), n_batches))


def test_waits_are_charged_in_full_to_what_the_threads_did(tmp_path):
    config = {"workers": 0, "prefetch": 2, "batch_size": 3, "unit_costs": dict(COSTS)}
    directory = RunDirectory.create(tmp_path / "native", config)
    with directory.recorder(role="consumer") as recorder, native(recorder) as loader:
        compute = Compute(forward_ns=0, backward_ns=0, source="none")
        plan = BatchPlan(plan_batches(12, 3), limit=40)
        measure([MeasuredPipeline("native", loader, plan, recorder, compute)])
    whole = exposure(open_profile(directory.path)).whole
    assert whole.n_batches == 40
    assert sum(stage.exposed_ns for stage in whole.stages) == whole.wait_ns
    stages = {stage.stage for stage in whole.stages}
    assert {"read", "decode", "preprocess:tiny", "collate"} <= stages
    for stage in whole.stages:
        assert 0 <= stage.exposed_ns <= stage.busy_ns or stage.busy_ns == stage.exposed_ns


def test_without_threads_every_stage_is_of_the_consumer_and_nothing_is_made_ahead(run, consumer):
    with alone(consumer) as loader:
        batches = loader.batches(planned(2))
        assert rows_of(run) == []
        next(batches)
        assert {row.batch for row in rows_of(run)} == {0}
        assert len(list(batches)) == 1
    rows = rows_by_kind(run, role="consumer")
    assert set(rows) == {Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.COLLATE}
    assert [row.batch for row in rows[Kind.COLLATE]] == [0, 0, 0, 1, 1, 1]
