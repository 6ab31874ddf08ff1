"""The loader without workers."""

from __future__ import annotations

from itertools import islice

import pytest
from span_rows import rows_by_kind, rows_of
from tiny_pipeline import COSTS, breaking_pipeline, tiny_pipeline

from iobench.loaders.plan import plan_batches
from iobench.loaders.serial import SerialLoader
from iobench.loaders.stages import Detail
from iobench.recording.kinds import Kind


def serial(recorder, pipeline=None):
    return SerialLoader(
        pipeline or tiny_pipeline(), 3, recorder=recorder, detail=Detail.SAMPLE, unit_costs=COSTS
    )


def planned(n_batches):
    return list(islice(plan_batches(12, 3), n_batches))


def test_batches_hold_their_samples_in_order(consumer):
    with serial(consumer) as loader:
        for plan, batch in zip(planned(6), loader.batches(planned(6)), strict=True):
            assert (batch.planned, batch.worker) == (plan, -1)
            assert batch.arrays["level"].tolist() == [sample + 1 for sample in plan.samples]
            assert batch.arrays["field"][:, 0, 0].tolist() == list(plan.samples)


def test_every_stage_is_recorded_in_the_consumer(run, consumer):
    with serial(consumer) as loader:
        assert len(list(loader.batches(planned(2)))) == 2
    rows = rows_by_kind(run, role="consumer")
    assert set(rows) == {Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.COLLATE}
    assert [row.batch for row in rows[Kind.COLLATE]] == [0, 0, 0, 1, 1, 1]


def test_nothing_is_made_before_it_is_asked_for(run, consumer):
    with serial(consumer) as loader:
        batches = loader.batches(planned(3))
        assert rows_of(run) == []
        next(batches)
        assert {row.batch for row in rows_of(run)} == {0}


def test_what_a_step_raises_passes_as_it_is(consumer):
    with (
        serial(consumer, breaking_pipeline(4, error=ZeroDivisionError("x"))) as loader,
        pytest.raises(ZeroDivisionError),
    ):
        list(loader.batches(planned(4)))
