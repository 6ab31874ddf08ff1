"""``--framework torch``: batches as of the serial loader, through the DataLoader of scripts."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import Counter

import numpy as np
import psutil
import pytest
from doomed_consumer import consume_torch_in_vain
from span_rows import live_rows, rows_by_kind, rows_of
from tiny_pipeline import (
    COSTS,
    SchemaError,
    breaking_pipeline,
    killed_pipeline,
    ring_of,
    tiny_pipeline,
)

from iobench.errors import FileFormatError, OptionError, WorkerError
from iobench.loaders.batch_plan import plan_batches
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.stage_timer import Detail
from iobench.loaders.windowed import windowed_pipeline
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.samples import Window

pytest.importorskip("torch")
from iobench.torch.torch_loader import TorchLoader

pytestmark = pytest.mark.timeout(60)

WORK = (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
EDGES = (Kind.SAMPLER, Kind.SUBMIT_QUEUE, Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE)


class ReadAndDecode:
    """Both steps of the tiny pipeline in one."""

    def __call__(self, where):
        read, decode, _ = tiny_pipeline().steps
        return decode.run(read.run(where), where)


def planned(n_batches, first=0):
    return list(itertools.islice(plan_batches(12, 3, shuffle=False), first, first + n_batches))


def torch_loader(run, recorder, *, workers, pipeline=None, **options):
    return TorchLoader(
        pipeline or tiny_pipeline(), 3, workers=workers, run=run,
        recorder=recorder, detail=options.pop("detail", Detail.SAMPLE), unit_costs=COSTS,
        **options,
    )  # fmt: skip


def taken(batches):
    return [
        (batch.planned, {name: array.copy() for name, array in batch.arrays.items()})
        for batch in batches
    ]


def assert_same(ours, expected):
    assert [plan for plan, _ in ours] == [plan for plan, _ in expected]
    for (_, left), (_, right) in zip(ours, expected, strict=True):
        assert list(left) == list(right)
        for name in right:
            np.testing.assert_array_equal(left[name], right[name], strict=True)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_equal_those_of_the_serial_loader(run, consumer, workers):
    with ring_of(tiny_pipeline(), 3, recorder=consumer) as serial:
        expected = taken(serial.batches(planned(9)))
    with torch_loader(run, consumer, workers=workers) as loader:
        ours = taken(loader.batches(planned(9)))
    assert_same(ours, expected)


def test_batches_say_which_worker_made_them(run, consumer):
    with torch_loader(run, consumer, workers=2) as loader:
        assert {batch.worker for batch in loader.batches(planned(6))} == {0, 1}


def test_every_edge_of_every_batch_is_recorded_once(run, consumer):
    with torch_loader(run, consumer, workers=2) as loader:
        taken(loader.batches(planned(8)))
    rows = rows_by_kind(run)
    for kind in EDGES:
        assert sorted(row.batch for row in rows[kind]) == list(range(8)), kind
    for kind in (*WORK, Kind.FUSED):
        assert Counter(row.batch for row in rows[kind]) == dict.fromkeys(range(8), 3)


def test_the_edges_of_a_batch_are_in_causal_order(run, consumer):
    with torch_loader(run, consumer, workers=2) as loader:
        taken(loader.batches(planned(8)))
    for batch in range(8):
        rows = rows_by_kind(run, batch=batch, sample=-1)
        (sampler,), (queued,) = rows[Kind.SAMPLER], rows[Kind.SUBMIT_QUEUE]
        (collate,), (serialise,) = rows[Kind.COLLATE], rows[Kind.SERIALISE]
        (unpickle,) = rows[Kind.UNPICKLE]
        steps = [row for row in rows_of(run) if row.batch == batch and row.sample >= 0]
        assert sampler.end_ns == queued.start_ns <= queued.end_ns <= steps[0].start_ns
        assert max(row.end_ns for row in steps) <= collate.start_ns <= collate.end_ns
        assert collate.end_ns <= serialise.start_ns <= serialise.end_ns <= unpickle.start_ns


def test_edges_are_recorded_where_they_happen(run, consumer):
    with torch_loader(run, consumer, workers=1) as loader:
        taken(loader.batches(planned(4)))
    rows = rows_by_kind(run)
    assert {row.role for row in rows[Kind.SAMPLER] + rows[Kind.UNPICKLE]} == {"consumer"}
    assert {row.role for row in rows[Kind.COLLATE] + rows[Kind.SERIALISE]} == {"worker"}
    assert {row.thread for row in rows[Kind.READ]}.isdisjoint(
        row.thread for row in rows[Kind.SERIALISE]
    )


def test_steps_in_one_keep_their_name_and_windows_are_a_transform(run, consumer):
    preprocess = tiny_pipeline().steps[2]
    steps = (Step(Kind.FUSED, "read+decode", ReadAndDecode()), preprocess)
    pipeline = windowed_pipeline(
        Pipeline(tiny_pipeline().spec, range(12), steps), [[0, 1], [1, 2], [2, 3]], Window((0, 1))
    )
    plan = [PlannedBatch(0, 0, (0, 1)), PlannedBatch(1, 0, (2,))]
    with torch_loader(run, consumer, workers=1, pipeline=pipeline) as loader:
        batches = taken(loader.batches(plan))
    assert [arrays["field"].shape for _, arrays in batches] == [(2, 2, 3, 4), (1, 2, 3, 4)]
    rows = rows_by_kind(run)
    for kind in (Kind.PREPROCESS, Kind.TRANSFORM):
        assert [row.sample for row in rows[kind]] == [0, 1, 2]
    assert Counter((row.sample, row.label) for row in rows[Kind.FUSED]) == Counter(
        (sample, label) for sample in range(3) for label in ("", "read+decode")
    )


def test_samples_and_their_stages_tell_their_cpu_time(run, consumer):
    with torch_loader(run, consumer, workers=1) as loader:
        taken(loader.batches(planned(4)))
    rows = rows_by_kind(run)
    samples = {row.sample: row.cpu_ns for row in rows[Kind.FUSED]}
    for sample, cpu_ns in samples.items():
        stages = [row.cpu_ns for kind in WORK for row in rows[kind] if row.sample == sample]
        assert min(stages) >= 0
        assert sum(stages) <= cpu_ns


def test_bytes_are_counted_once(run, consumer):
    with torch_loader(run, consumer, workers=1) as loader:
        nbytes = sum(a.nbytes for _, arrays in taken(loader.batches(planned(4)))
                     for a in arrays.values())  # fmt: skip
    rows = rows_by_kind(run)
    for kind in (Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE):
        assert sum(row.nbytes for row in rows[kind]) == nbytes


def test_workers_record_their_start_and_what_each_batch_read(run, consumer):
    with torch_loader(run, consumer, workers=2) as loader:
        taken(loader.batches(planned(6)))
    rows = rows_of(run)
    # Up to the worker's own beginning, and from there to its first batch.
    assert sorted(row.worker for row in rows if row.kind is Kind.STARTUP) == [0, 0, 1, 1]
    assert all(row.start_ns <= row.end_ns for row in rows)
    assert sorted(row.batch for row in rows if row.flags & Flag.IO) == list(range(6))


def test_span_files_are_closed_at_the_end(run, consumer):
    from iobench.recording.span_reader import read_span_file

    with torch_loader(run, consumer, workers=2) as loader:
        taken(loader.batches(planned(4)))
    workers = [file for path in run.span_files() if (file := read_span_file(path)).worker >= 0]
    assert [file.closed for file in workers] == [True, True]


def test_summed_stages_of_a_batch_come_before_its_collate(run, consumer):
    with torch_loader(run, consumer, workers=1, detail=Detail.BATCH) as loader:
        taken(loader.batches(planned(4)))
    for batch in range(4):
        rows = [row for row in rows_of(run) if row.batch == batch and row.role == "worker"]
        summed = [row for row in rows if row.flags == Flag.SUMMED]
        (collate,) = [row for row in rows if row.kind is Kind.COLLATE]
        assert [(row.kind, row.pieces) for row in summed] == [
            (kind, 3) for kind in (*WORK, Kind.FUSED)
        ]
        assert [row.nbytes for row in summed[:3]] == [3 * 50] * 3
        assert max(row.end_ns for row in summed) <= collate.start_ns


def test_without_workers_the_consumer_records_the_stages(run, consumer):
    with torch_loader(run, consumer, workers=0) as loader:
        assert [batch.worker for batch in loader.batches(planned(3))] == [-1, -1, -1]
    rows = rows_by_kind(run)
    assert set(rows) == {Kind.SAMPLER, *WORK, Kind.FUSED, Kind.COLLATE}
    assert {row.role for row in rows_of(run)} == {"consumer"}


def test_a_batch_that_arrives_out_of_turn_is_in_the_way_of_the_one_waited_for(
    run, consumer, tmp_path
):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Only sample 11 is read at once: its worker's batch arrives before the one waited for.
    slow, quick = [0], [11]
    plan = [type(planned(1)[0])(number, 0, tuple(s)) for number, s in enumerate((slow, quick))]
    pipeline = breaking_pipeline(11, gate=gate)
    with torch_loader(run, consumer, workers=2, pipeline=pipeline) as loader:
        opener = multiprocessing.get_context("fork").Process(
            target=_open_after_serialise, args=(gate, run), daemon=True
        )
        batches = loader.batches(plan)
        opener.start()
        assert [batch.planned.batch for batch in batches] == [0, 1]
        opener.join()
    rows = rows_by_kind(run)
    assert [(row.batch, row.flags) for row in rows[Kind.HEAD_OF_LINE]] == [(0, 0)]
    assert [(row.batch, row.flags) for row in rows[Kind.UNPICKLE]] == [
        (1, Flag.DETAIL),
        (0, 0),
    ]


def _open_after_serialise(gate, run):
    """Open the gate once the quick batch has been unpickled by the consumer."""
    while not any(row.kind is Kind.HEAD_OF_LINE for row in live_rows(run)):
        os.sched_yield()
    with gate.open("wb"):
        pass


def test_two_rounds_go_to_the_same_workers(run, consumer):
    with torch_loader(run, consumer, workers=2) as loader:
        first = taken(loader.batches(planned(5)))
        pids = loader.worker_pids()
        second = taken(loader.batches(planned(5, first=5)))
        assert loader.worker_pids() == pids
    assert [plan.batch for plan, _ in first + second] == list(range(10))
    assert [len(rows) for kind, rows in rows_by_kind(run).items() if kind is Kind.STARTUP] == [4]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_round_left_early_does_not_disturb_the_next(run, consumer, workers):
    with torch_loader(run, consumer, workers=workers) as loader:
        next(loader.batches(planned(8)))
        second = [batch.planned.batch for batch in loader.batches(planned(4, first=8))]
    assert second == [8, 9, 10, 11]


def test_a_plan_is_drawn_no_further_ahead_than_prefetch_allows(run, consumer):
    drawn = []
    plan = (drawn.append(batch) or batch for batch in planned(12))
    with torch_loader(run, consumer, workers=2, prefetch=2) as loader:
        for number, _ in enumerate(loader.batches(plan)):
            assert len(drawn) <= number + 1 + 4


@pytest.mark.quick_cases(0, thorough=1)
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_may_be_spawned(run, consumer, method):
    with torch_loader(run, consumer, workers=1, start_method=method) as loader:
        assert len(taken(loader.batches(planned(3)))) == 3
    assert len(rows_by_kind(run)[Kind.SERIALISE]) == 3


def test_a_killed_worker_is_named_and_its_spans_stay(run, consumer):
    with (
        torch_loader(run, consumer, workers=2, pipeline=killed_pipeline(9)) as loader,
        pytest.raises(WorkerError, match=r"worker-\d \(pid \d+\) killed by SIGKILL") as caught,
    ):
        taken(loader.batches(planned(12)))
    assert "\n" not in str(caught.value)
    # Worker 1 made batch 1 and died in batch 3, at its first sample.
    assert [row.batch for row in rows_by_kind(run, worker=1)[Kind.READ]] == [1, 1, 1]


def test_a_worker_killed_while_the_consumer_computes_is_named(run, consumer):
    def train():
        with torch_loader(run, consumer, workers=2) as loader:
            for _ in loader.batches(planned(12)):
                os.kill(loader.worker_pids()[1], signal.SIGKILL)
                signal.sigtimedwait([], 5)  # torch's SIGCHLD handler ends it

    with pytest.raises(WorkerError, match="worker-1"):
        train()


def test_an_error_of_ours_keeps_its_type(run, consumer):
    pipeline = breaking_pipeline(4, error=FileFormatError("a.grib: cut short"))
    with (
        torch_loader(run, consumer, workers=2, pipeline=pipeline) as loader,
        pytest.raises(FileFormatError, match=r"^a\.grib: cut short$"),
    ):
        taken(loader.batches(planned(4)))


def test_a_plugins_own_error_arrives_as_the_one_it_derives_from(run, consumer):
    pipeline = breaking_pipeline(4, error=SchemaError("a.grib: other schema"))
    with (
        torch_loader(run, consumer, workers=1, pipeline=pipeline) as loader,
        pytest.raises(FileFormatError, match="other schema"),
    ):
        taken(loader.batches(planned(4)))


def test_any_other_error_names_worker_sample_and_reason(run, consumer):
    pipeline = breaking_pipeline(4, error=ZeroDivisionError("twice\nover"))
    with (
        torch_loader(run, consumer, workers=1, pipeline=pipeline) as loader,
        pytest.raises(WorkerError) as caught,
    ):
        taken(loader.batches(planned(4)))
    assert str(caught.value) == ("worker-0: sample 4 could not be made: ZeroDivisionError: twice")


def test_without_workers_an_error_passes_as_it_is(run, consumer):
    pipeline = breaking_pipeline(4, error=ZeroDivisionError("x"))
    with (
        torch_loader(run, consumer, workers=0, pipeline=pipeline) as loader,
        pytest.raises(ZeroDivisionError),
    ):
        taken(loader.batches(planned(4)))


def test_full_shared_memory_is_one_line(run, consumer, monkeypatch):
    def full(samples):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device\nx")

    monkeypatch.setattr("iobench.torch.pipeline_samples.default_collate", full)
    with (
        torch_loader(run, consumer, workers=1, start_method="fork") as loader,
        pytest.raises(
            WorkerError, match=r"^worker-0: samples \[0, 1, 2\] .*No space left.*/dev/shm"
        ) as caught,
    ):
        taken(loader.batches(planned(4)))
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_workers_in_a_system_call_end_when_the_consumer_is_killed(run, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    doomed = multiprocessing.get_context("spawn").Process(
        target=consume_torch_in_vain, args=(run.path, gate)
    )
    doomed.start()
    while len({row.worker for row in live_rows(run) if row.kind is Kind.SUBMIT_QUEUE}) < 2:
        os.sched_yield()  # until both are at it
    workers = psutil.Process(doomed.pid).children()
    doomed.kill()
    doomed.join()
    assert psutil.wait_procs(workers, timeout=30)[1] == []


def test_nothing_is_left_behind(run, consumer):
    with torch_loader(run, consumer, workers=2) as loader:
        batches = taken(loader.batches(planned(4)))
    assert len(batches) == 4
    assert multiprocessing.active_children() == []
    loader.close()
    with pytest.raises(WorkerError, match="closed"):
        loader.batches([])


def test_options_are_checked(run, consumer):
    with pytest.raises(OptionError, match="workers -1"):
        torch_loader(run, consumer, workers=-1)
