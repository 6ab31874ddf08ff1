"""Runs drawn at random: pools, streams, scripts, graphs of tasks, waits for a CPU."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from schedules import Script, epochs, pool, stream

from iobench.recording.kinds import GRAPH, TASK, Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

WORKER = ("worker", 0)
times = st.one_of(st.just(0), st.integers(0, 1000))
batches = st.lists(st.tuples(times, times, times), min_size=1, max_size=16)
loaders = st.fixed_dictionaries(
    {
        "workers": st.integers(0, 8),
        "step_ns": st.one_of(st.just(0), st.integers(0, 3000)),
        "prefetch": st.integers(1, 4),
        "serialise_ns": st.sampled_from([0, 0, 30, 900]),
        "handover_ns": st.integers(0, 50),
        "in_order": st.booleans(),
        "drain_ns": st.integers(0, 100),
    }
)
single = st.builds(lambda batches, loader: pool(batches, **loader), batches, loaders)
several = st.builds(
    lambda rounds, loader, pause_ns, persistent: epochs(
        [pool(each[:9], **loader) for each in rounds], pause_ns=pause_ns, persistent=persistent
    ),
    st.lists(batches, min_size=2, max_size=4), loaders, st.integers(0, 50), st.booleans(),
)  # fmt: skip
pools = single | several
streams = st.builds(
    lambda batch_size, items, how: stream(
        [items[place % len(items)] for place in range(len(how["steps_ns"]) * batch_size)],
        batch_size=batch_size,
        **how,
    ),
    st.integers(1, 3),
    batches,
    st.fixed_dictionaries(
        {
            "steps_ns": st.lists(st.integers(0, 3000), min_size=1, max_size=8),
            "collate_ns": st.integers(0, 50),
            "ahead": st.tuples(*[st.integers(1, 4)] * 3),
            "batches_ahead": st.integers(1, 3),
        }
    ),
)


def script_of(settings_of_loaders, program):
    script = Script()
    script.facts["started_ns"] = 0
    made = [script.loader(*each) for each in settings_of_loaders]
    for action, which, value in program:
        if action == "compute":
            script.compute(value)
        elif action == "leave":
            made[which % len(made)].leave(thread=value % 2)
        else:
            getattr(made[which % len(made)], action)()
    script.close()
    return script


scripts = st.builds(
    script_of,
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(1, 3), st.tuples(times, times, times),
            st.integers(0, 20),
        ),
        min_size=1, max_size=3,
    ),
    st.lists(
        st.tuples(
            st.sampled_from(("next", "next", "compute", "iter", "end", "leave")),
            st.integers(0, 2), st.integers(0, 200),
        ),
        max_size=40,
    ),
)  # fmt: skip


def graph_of(tasks, *, end, maker="worker-0", scheduling_cpu=-1):
    """Return one batch: a sample from 0 to ``end``, its graph 10 ns less on both sides.

    ``tasks`` are (thread, start, end, read): ``read`` is how long each read at its beginning.
    """
    lane = CONSUMER if maker == "consumer" else WORKER
    sketch = SketchedRun(workers=int(lane is WORKER), prefetch=2, batch_size=1)
    if lane is WORKER:
        sketch.submit(0, 0, 0, 0)
    at = {"batch": 0, "epoch": 0, "sample": 3}
    for thread, start, stop, read in tasks:
        known = {"thread": thread, **at}
        if read:
            sketch.add(lane, Kind.READ, start, start + read, nbytes=read, cpu_ns=0, **known)
        sketch.add(lane, Kind.PREPROCESS, start, stop, detail=TASK, cpu_ns=stop - start, **known)
    sketch.add(lane, Kind.PREPROCESS, 10, end - 10, label=GRAPH, cpu_ns=scheduling_cpu, **at)
    sketch.add(lane, Kind.FUSED, 0, end, cpu_ns=scheduling_cpu, **at)
    sketch.wait(0, 0, end, maker)
    sketch.shutdown(end, end)
    sketch.round(0, end)
    return sketch


@st.composite
def graphs(draw):
    tasks, free = [], {}
    for _ in range(draw(st.integers(0, 12))):
        thread = draw(st.integers(1, 3))
        start = free.get(thread, 10) + draw(st.integers(0, 20))
        end = free[thread] = start + draw(st.integers(1, 30))
        tasks.append((thread, start, end, draw(st.integers(0, end - start))))
    end = max([*free.values(), 10]) + draw(st.integers(11, 30))
    return graph_of(tasks, end=end, maker=draw(st.sampled_from(["worker-0", "consumer"])))


def looked_at(sketch, seed):
    """Return a run whose workers and loop looked at how long they were on the run queue."""
    random, looks = np.random.default_rng(seed), []
    for lane in {span["lane"] for span in sketch.spans}:
        mine = [span for span in sketch.spans if span["lane"] == lane]
        waits = [s for s in mine if s["kind"] == Kind.WAIT and s.get("batch", -1) >= 0]
        ends = sorted(s["end_ns"] for s in mine if s["kind"] == Kind.COLLATE)
        stretches = [*zip([0, *ends], ends, strict=False)]
        if lane == CONSUMER:
            stretches = [(s["start_ns"], s["end_ns"]) for s in waits]
        for since, until in stretches:
            queued = int(random.integers(0, until - since + 1))
            looks.append(
                {"lane": lane, "kind": Kind.CPU_WAIT, "start_ns": since, "end_ns": until,
                 "cpu_ns": queued, "batch": 0, "flags": Flag.IO}
            )  # fmt: skip
    return sketch.with_spans([*sketch.spans, *looks])


looked = st.builds(looked_at, single, st.integers(0, 1000))
shapes_of_epochs = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 3),
        "prefetch": st.integers(1, 2),
        "batches": st.integers(9, 14),
        "stages": st.tuples(*[st.integers(1, 60)] * 3),
        "step_ns": st.integers(0, 80),
        "start_ns": st.sampled_from([0, 50, 1000]),
        "open_ns": st.sampled_from([0, 200, 1000]),
        "end_ns": st.sampled_from([0, 100]),
    }
)
