"""Scripts: several loaders in one training loop, rounds that overlap, waits without a batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import exposed
from scripts import LOOP, Script

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.runs.contents import Process

times = st.integers(0, 200)
stages = st.tuples(times, times, times)
settings_of_loaders = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), stages, st.integers(0, 20)),
    min_size=1,
    max_size=3,
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("next"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("compute"), st.just(0), times),
        st.tuples(st.sampled_from(("iter", "end")), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.integers(0, 1)),
    ),
    max_size=40,
)


def run(loaders, program):
    script = Script()
    made = [
        script.loader(workers, prefetch, stages, start_ns)
        for workers, prefetch, stages, start_ns in loaders
    ]
    for action, which, value in program:
        if action == "compute":
            script.compute(value)
        elif action == "leave":
            made[which % len(made)].leave(thread=value)
        else:
            getattr(made[which % len(made)], action)()
    script.close()
    return script


scripts = st.builds(run, settings_of_loaders, actions)


def union_ns(intervals):
    total, reached = 0, None
    for start, end in sorted(intervals):
        start = start if reached is None else max(start, reached)
        total += max(end - start, 0)
        reached = end if reached is None else max(reached, end)
    return total


def spans_of(script, **wanted):
    return [
        span
        for span in script.sketch.spans
        if all(span.get(name) == value for name, value in wanted.items())
    ]


@given(scripts)
def test_exposed_times_of_all_loaders_add_up_to_the_waits(script):
    waited = sum(s["end_ns"] - s["start_ns"] for s in spans_of(script, kind=Kind.WAIT))
    found = exposure(script.data())
    assert found.whole.wait_ns == waited
    assert sum(found.whole.exposed_ns.values()) == waited
    assert sum(each.wait_ns for each in found.loaders) == waited
    for window in (found.whole, found.steady):
        for row in window.stages if window else ():
            assert 0 <= row.exposed_ns <= row.busy_ns
            assert row.hidden_ns + row.exposed_ns == row.busy_ns


@given(scripts)
def test_rounds_that_overlap_are_one_stretch_of_wall_time(script):
    waits = spans_of(script, kind=Kind.WAIT)
    rounds = [
        (span["start_ns"], span["end_ns"])
        for span in spans_of(script, kind=Kind.OTHER)
        if any(wait["sample"] == span["sample"] for wait in waits)
    ]
    found = exposure(script.data())
    assert found.whole.wall_ns == union_ns(rounds)
    assert found.whole.wait_ns + found.whole.own_ns + found.whole.compute_ns == found.whole.wall_ns
    assert found.whole.compute_ns >= 0
    assert sum(phase.wall_ns for phase in found.phases) == found.whole.wall_ns
    assert found.n_rounds == len(rounds)


def test_fill_is_counted_by_each_round_of_its_own_loader():
    script = Script()
    train, validation = script.loader(2, 2), script.loader(1, 1)
    for _ in range(2):
        for step in range(10):
            train.next()
            script.compute(10)
            if step == 4:
                for _ in range(3):
                    validation.next()
                validation.end()
        train.end()
    found = {phase.phase: phase.n_deliveries for phase in exposure(script.data()).phases}
    # Training: 1 of start-up, 3 of fill, 6 steady; validation: 1, 0, 2; twice.
    assert found == {"startup": 4, "fill": 6, "steady": 16, "drain": 4}


def test_a_round_that_began_before_the_window_has_no_start_up():
    script = Script()
    loader = script.loader(1, 2)
    for _ in range(5):
        loader.next()
    script.close()
    (mark,) = spans_of(script, kind=Kind.OTHER)
    for before, expected in ((0, [1, 1, 3]), (1, [0, 1, 4]), (40, [0, 0, 5])):
        mark["nbytes"] = before
        phases = exposure(script.sketch.data()).phases
        assert [phase.n_deliveries for phase in phases[:3]] == expected


def test_the_wait_for_iter_is_start_up_but_for_the_loops_own_work():
    script = Script()
    loader = script.loader(1, 1, (30, 0, 0), start_ns=100)
    loader.iter()
    script.sketch.add(LOOP, Kind.SAMPLER, 20, 45)
    loader.next()
    profile = script.data()
    assert exposed(profile) == {"startup": 75, "sampler": 25, "read": 30}
    phases = exposure(profile).phases
    assert (phases[0].phase, phases[0].n_deliveries) == ("startup", 2)
    assert exposure(profile).whole.n_batches == 1


def test_a_wait_that_failed_is_counted_and_its_cause_unknown():
    script = Script()
    loader = script.loader(0, 0, (30, 0, 0))
    loader.next()
    asked, script.now = script.now, script.now + 12
    script.sketch.add(LOOP, Kind.READ, asked, asked + 8, batch=99)
    script.wait(loader, -1, asked, "failed")
    profile = script.data()
    found = exposure(profile)
    assert exposed(profile) == {"read": 38, "unknown": 4}
    assert (found.n_failed_waits, found.whole.n_batches) == (1, 1)
    assert found.phases[3].n_deliveries == 1


def test_what_a_loader_does_not_tell_is_opaque():
    script = Script()
    loader = script.loader(0, 2)
    loader.iter()
    asked, script.now = script.now, script.now + 50
    script.wait(loader, 0, asked, "", "")
    found = exposure(script.data())
    assert found.whole.exposed_ns == {"opaque": 50}
    (row,) = found.whole.stages
    assert (row.busy_ns, row.hidden_ns, row.n_spans) == (50, 0, 0)


def test_the_training_loop_is_the_thread_that_waits_most_often():
    script = Script()
    loader = script.loader(0, 0)
    for _ in range(3):
        loader.next()
    for batch in (50, 51):
        script.sketch.add(
            LOOP, Kind.WAIT, 0, 10, batch=batch, sample=9, thread=2, detail="consumer"
        )
    found = exposure(script.data())
    assert found.whole.n_batches == 3


def test_each_of_two_training_processes_has_its_own_workers():
    script = Script()
    loader = script.loader(1, 1)
    for _ in range(3):
        loader.next()
    profile = script.data()
    helper = Process("consumer", -1, 0, 7, "here", "boot-here", (), 0, True, 0, ("MainThread",))
    theirs = Process(
        "worker", 0, 0, 8, "here", "boot-here", (), 0, True, 0, ("MainThread",), ppid=7
    )
    spans = profile.spans.copy()[:1]
    spans["process"], spans["kind"], spans["batch"] = 3, Kind.READ, 0
    spans["start_ns"], spans["end_ns"] = 0, 10**6
    both = replace(
        profile,
        processes=(*profile.processes, helper, theirs),
        spans=np.concatenate((profile.spans, spans)),
    )
    assert exposure(both, rank=0).whole == exposure(profile).whole


def test_workers_that_left_nothing_are_missing():
    script = Script()
    loader = script.loader(1, 1)
    loader.next()
    sketch = script.sketch
    sketch.loaders[0].worker_pids.append(4711)
    assert sketch.data().missing_workers == ("loader-0 process 4711",)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=12))
def test_what_an_inner_loader_does_is_the_outer_ones_wait_alone(steps):
    """Only the outermost loader waits; work on batches that never reach the loop is in no sum."""
    script = Script()
    outer, inner = script.loader(0, 0, (0, 0, 0)), script.loader(2, 1, (30, 0, 0))
    for own, around in steps:
        asked = script.now
        lane = ("worker", 0, inner.number)
        script.sketch.add(lane, Kind.READ, asked, asked + around, batch=next(script.batches))
        outer.stages = (own, 0, 0)
        outer.next()
    found = exposure(script.data())
    spent = sum(own for own, _ in steps)
    assert sum(found.whole.exposed_ns.values()) == found.whole.wait_ns == spent
    assert found.whole.exposed_ns.get("read", 0) == spent
    assert [each.n_batches for each in found.loaders] == [len(steps), 0]
    assert found.loaders[1].n_rounds == 0
