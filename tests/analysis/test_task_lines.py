"""Tasks that threads do for another one: who is waited for, and what is hidden behind that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.run import exposure
from iobench.recording.kinds import GRAPH, TASK, Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

WORKER = ("worker", 0)


def graph_of(tasks, *, end, made_by="worker-0", batch=0, scheduling_cpu=-1):
    """Return one batch: a sample from 0 to ``end``, its graph 10 ns less on both sides.

    ``tasks`` are (thread, start, end, read): ``read`` is how long each read at its beginning.
    """
    lane = CONSUMER if made_by == "consumer" else WORKER
    workers = int(lane is WORKER)
    sketch = SketchedRun({"workers": workers, "prefetch": 2, "batch_size": 1})
    if workers:
        sketch.submit(0, batch, 0, 0)
    at = {"batch": batch, "epoch": 0, "sample": 3}
    for thread, start, stop, read in tasks:
        known = {"thread": thread, **at}
        if read:
            sketch.add(lane, Kind.READ, start, start + read, nbytes=read, cpu_ns=0, **known)
        sketch.add(lane, Kind.PREPROCESS, start, stop, detail=TASK, cpu_ns=stop - start, **known)
    sketch.add(lane, Kind.PREPROCESS, 10, end - 10, label=GRAPH, cpu_ns=scheduling_cpu, **at)
    sketch.add(lane, Kind.FUSED, 0, end, cpu_ns=scheduling_cpu, **at)
    sketch.wait(batch, 0, end, made_by)
    sketch.shutdown(end, end)
    sketch.round(0, end)
    return sketch


def times(figures, name):
    found = {row.stage: getattr(row, name) for row in figures.stages}
    return {stage: ns for stage, ns in found.items() if ns}


@pytest.mark.parametrize("made_by", ["worker-0", "consumer"])
def test_the_critical_path_of_the_tasks_is_waited_for(made_by):
    # Thread 1 reads 30 and computes 10; thread 2 reads 50; then thread 1 joins both.
    tasks = [(1, 20, 60, 30), (2, 20, 70, 50), (1, 75, 85, 0)]
    figures = exposure(graph_of(tasks, end=100, made_by=made_by).data()).whole
    assert times(figures, "exposed_ns") == {
        "fused": 20,
        "preprocess:dask": 20,
        "read": 50,
        "preprocess": 10,
    }
    busy = times(figures, "busy_ns")
    assert busy == {"fused": 20, "preprocess:dask": 20, "read": 80, "preprocess": 20}


def test_tasks_of_other_samples_are_not_laid_into_this_one():
    sketch = graph_of([(1, 20, 60, 30)], end=100)
    for span in [span for span in sketch.spans if span.get("thread")]:
        span["sample"] = 4
    figures = exposure(sketch.data()).whole
    assert times(figures, "exposed_ns") == {"fused": 20, "preprocess:dask": 80}


def test_a_graph_inside_of_a_task_is_part_of_it():
    sketch = graph_of([(1, 20, 80, 0)], end=100)
    at = {"batch": 0, "epoch": 0, "sample": 3}
    sketch.add(WORKER, Kind.READ, 40, 55, thread=5, **at)
    sketch.add(WORKER, Kind.PREPROCESS, 40, 60, detail=TASK, thread=5, **at)
    sketch.add(WORKER, Kind.PREPROCESS, 40, 50, detail=TASK, thread=6, **at)
    sketch.add(WORKER, Kind.PREPROCESS, 30, 70, label=GRAPH, thread=1, **at)
    figures = exposure(sketch.data()).whole
    # Of the task 20 on its own; of the graph in it 20 that no task explains.
    assert times(figures, "exposed_ns") == {
        "fused": 20,
        "preprocess:dask": 20 + 20,
        "preprocess": 20 + 5,
        "read": 15,
    }
    assert times(figures, "busy_ns")["preprocess"] == 20 + 5 + 10


@st.composite
def drawn_tasks(draw):
    found, free = [], {}
    for _ in range(draw(st.integers(0, 12))):
        thread = draw(st.integers(1, 3))
        start = free.get(thread, 10) + draw(st.integers(0, 20))
        end = start + draw(st.integers(1, 30))
        free[thread] = end
        found.append((thread, start, end, draw(st.integers(0, end - start))))
    return found, max([*free.values(), 10]) + draw(st.integers(11, 30))


@given(drawn_tasks(), st.sampled_from(["worker-0", "consumer"]))
def test_whatever_the_tasks_are_all_adds_up(drawn, made_by):
    tasks, end = drawn
    figures = exposure(graph_of(tasks, end=end, made_by=made_by).data()).whole
    assert sum(figures.exposed_ns.values()) == figures.wait_ns == end
    assert all(0 <= row.exposed_ns <= row.busy_ns for row in figures.stages)
    # What ran is counted once: tasks that are waited for stand for the thread that waits.
    worked = sum(stop - start for _, start, stop, _ in tasks)
    assert worked <= sum(times(figures, "busy_ns").values()) <= worked + end
