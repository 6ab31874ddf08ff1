"""What is summed beside the times: samples, bytes, CPU time, cold reads, overhead."""

import pytest
from msgspec.structs import replace
from schedules import pool

from iobench.analysis.run import exposure
from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import SketchedRun

WORKER = ("worker", 0)


def one_batch(**config):
    sketch = SketchedRun({"workers": 1, **config})
    sketch.submit(0, 0, 0, 0)
    sketch.wait(0, 0, 100, "worker-0", nbytes=120)
    return sketch


def read_row(sketch):
    rows = exposure(sketch.data()).whole.stages
    return next(row for row in rows if row.stage == "read")


def test_bytes_and_cpu_time_of_a_stage_are_unknown_where_one_span_does_not_tell():
    sketch = one_batch()
    sketch.add(WORKER, Kind.READ, 0, 40, batch=0, nbytes=7, cpu_ns=30)
    assert (read_row(sketch).nbytes, read_row(sketch).cpu_ns) == (7, 30)
    sketch.add(WORKER, Kind.READ, 40, 80, batch=0)
    assert (read_row(sketch).nbytes, read_row(sketch).cpu_ns) == (None, None)
    assert read_row(sketch).n_spans == 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"sample_nbytes": 40}, 3), ({"batch_size": 5}, 5), ({"sample_nbytes": 7}, None), ({}, None)],
)
def test_samples_are_counted_by_their_bytes_else_by_the_batch_size(config, expected):
    assert exposure(one_batch(**config).data()).whole.n_samples == expected


def with_counters(*counters, **config):
    sketch = one_batch(**config)
    for read, device in counters:
        sketch.add(WORKER, Kind.READ, 0, 100, batch=0, nbytes=read, cpu_ns=device, flags=Flag.IO)
    return exposure(sketch.data()).whole.cold_fraction


def test_cold_is_unknown_where_the_file_system_does_not_tell():
    assert with_counters((100, 25), (100, -1)) is None
    assert with_counters((100, 25), cold_known=False) is None
    assert with_counters() is None
    assert with_counters((0, 0)) is None


def test_overhead_is_spans_times_their_cost_over_the_time_of_the_lanes():
    costs = {"light_ns": 1, "full_ns": 4, "io_ns": 2}
    sketch = one_batch(unit_costs=costs)
    sketch.round(0, 200)
    sketch.add(WORKER, Kind.READ, 0, 40, batch=0, cpu_ns=30)
    sketch.add(WORKER, Kind.DECODE, 40, 80, batch=0, flags=Flag.SUMMED, pieces=10)
    sketch.add(WORKER, Kind.READ, 80, 80, batch=0, flags=Flag.IO, cpu_ns=0)
    # Light: the wait, the round, the submission and ten decodings; then one full and one counter.
    assert exposure(sketch.data()).whole.overhead_fraction == (13 + 4 + 2) / (200 * 2)


def test_overhead_is_what_processes_measured_of_themselves():
    sketch = one_batch(unit_costs={"light_ns": 1, "full_ns": 4, "io_ns": 2})
    sketch.round(0, 200)
    sketch.add(WORKER, Kind.READ, 0, 40, batch=0)
    profile = sketch.data()
    own = {"consumer": (6, 30), "worker": (9, 50)}
    processes = tuple(
        replace(who, own_ns=own[who.role][0], once_ns=own[who.role][1]) for who in profile.processes
    )
    found = exposure(replace(profile, processes=processes))
    assert found.whole.overhead_fraction == 9 / 200, "of the worker, which it slows most"
    assert found.overhead_once_ns == 50


def test_overhead_is_unknown_without_the_costs():
    assert exposure(one_batch().data()).whole.overhead_fraction is None
    sketch = one_batch(unit_costs={"light_ns": None, "full_ns": 4, "io_ns": 2})
    assert exposure(sketch.data()).whole.overhead_fraction is None


def test_work_on_the_path_of_a_steady_delivery_counts_as_steady():
    figures = exposure(pool([[30, 20, 10]] * 20, workers=1, step_ns=59).data())
    work = sum(row.busy_ns for row in figures.steady.stages)
    assert work == 60 * figures.steady.n_batches


def test_waits_that_overlap_are_refused():
    sketch = one_batch()
    sketch.wait(1, 50, 150)
    with pytest.raises(ProfileError, match="overlap"):
        exposure(sketch.data())


def test_two_training_loops_in_one_process_are_refused():
    sketch = one_batch()
    sketch.wait(1, 150, 170, thread=1)
    with pytest.raises(ProfileError, match="2 threads"):
        exposure(sketch.data())
