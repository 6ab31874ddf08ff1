"""Jobs of several training processes: the last rank, its imbalance, clocks, communication."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import Script

from iobench.analysis.run import Run
from iobench.findings.ranks import compare_ranks, steps_of_rank
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import CONSUMER


def ranks_of(n, hosts=None):
    """Return the scripts of a job's ranks."""
    scripts = [Script(rank=rank, world_size=n) for rank in range(n)]
    for script, host in zip(scripts, hosts or [], strict=False):
        script.process |= {"host": host, "boot_id": f"boot-{host}"}
        script.facts["host"] = host
    return scripts


def job(waits, *, compute=10, hosts=None):
    """Return ranks that meet after every step; ``waits[rank][step]``."""
    scripts = ranks_of(len(waits), hosts)
    loaders = [script.loader(0, 0) for script in scripts]
    met = 0
    for step in range(len(waits[0])):
        for script, loader, wait in zip(scripts, loaders, waits, strict=True):
            script.now = met
            loader.stages = (wait[step], 0, 0)
            script.train(loader, 1, compute, end=False)
        met = max(script.now for script in scripts) + 2
        for script in scripts:
            script.spend(Kind.COMM, met - script.now, label="all_reduce")
    return [script.data() for script in scripts]


def compared(runs):
    data = [each.data() if isinstance(each, Script) else each for each in runs]
    return compare_ranks([steps_of_rank(Run(each).of_rank(each.ranks[0])) for each in data])


jobs = st.integers(1, 20).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 100), min_size=n, max_size=n), min_size=2, max_size=4
    )
)


@given(jobs, st.permutations(range(4)))
def test_each_step_waits_for_the_last_rank_and_for_it_alone_beyond_the_second_last(waits, order):
    data = job(waits)
    figures = compared(data)
    by_step = [sorted(each) for each in zip(*waits, strict=True)]
    assert figures.wait_ns == sum(each[-1] for each in by_step)
    assert figures.exposed_ns == sum(each[-1] - each[-2] for each in by_step)
    assert figures.exposed_ns == sum(each.exposed_ns for each in figures.ranks)
    assert sum(each.steps_last for each in figures.ranks) == figures.steps == len(by_step)
    longest = sum(each[-1] for each in by_step)
    for rank, each in zip(figures.ranks, waits, strict=True):
        assert rank.wait_ns == sum(each)
        assert rank.comm_held_ns == longest - sum(each) + 2 * len(each)
    assert compared([data[place] for place in order if place < len(data)]) == figures


def test_a_rank_without_a_loop_is_on_no_other_machine_and_in_no_time():
    loop, idle = ranks_of(2)
    loop.now = 10**12
    loop.loader(0, 0, (5, 0, 0)).next()
    loop.spend(Kind.COMM, 40, label="all_reduce")
    idle.add(CONSUMER, Kind.COMM, 10**12 + 5, 10**12 + 45, label="all_reduce")
    figures = compared([loop, idle])
    assert (figures.imbalance, figures.steps, figures.steps_wall_ns) == (None, 0, 45)
    assert [each.wait_ns for each in figures.ranks] == [5, None]
    assert [each.comm_held_ns for each in figures.ranks] == [40, None]


def test_steps_of_one_rank_alone_are_apart():
    first, second = job([[10] * 5, [20] * 5])
    assert compared([first]).steps == 0
    script = ranks_of(2)[0]
    script.train(script.loader(0, 0, (10, 0, 0)), 5, 22, end=False)
    script.train(script.loader(0, 0, (500, 0, 0)), 3, 0, end=False)
    figures = compared([script, second])
    assert (figures.steps, figures.wait_ns) == (5, 100)


@pytest.mark.parametrize(
    ("name", "expected"), [("Training", (2, 9 / 7)), ("Validation", (0, 9 / 7))]
)
def test_loaders_are_the_same_by_what_they_load_whatever_their_numbers(name, expected):
    one, other = ranks_of(2)
    other.loader(0, 0)
    for script, spent, of in ((one, 5, "Training"), (other, 9, name)):
        script.train(script.loader(0, 0, (spent, 0, 0), name=of), 2, 0, end=False)
    figures = compared([one, other])
    assert (figures.steps, figures.imbalance) == expected


def test_start_and_end_of_passes_are_waits_of_the_step_after_them():
    scripts = ranks_of(2)
    for script, start_ns in zip(scripts, (10, 60), strict=True):
        loader = script.loader(0, 0, (5, 0, 0), start_ns=start_ns)
        for _ in range(2):
            loader.iter()
            script.train(loader, 3, 7, end=False)
            loader.end(drain_ns=2)
    figures = compared(scripts)
    assert figures.wait_ns == 65 + 5 + 5 + 67 + 5 + 5
    assert [each.steps_last for each in figures.ranks] == [0, 6]
    assert [each.wait_ns for each in figures.ranks] == [2 * (10 + 15 + 2), 2 * (60 + 15 + 2)]


@pytest.mark.parametrize("hangs_ns", [0, 1000])
def test_a_wait_that_brought_no_batch_is_no_part_of_the_time_to_the_last_step(hangs_ns):
    scripts = ranks_of(2)
    for script in scripts:
        script.train(script.loader(0, 0, (5, 0, 0)), 2, 7, end=False)
    if hangs_ns:
        scripts[1].asked[0].stop("failed", hangs_ns)
    assert compared(scripts).steps_wall_ns == 2 * (5 + 7)


def on_host(data, shift, wall):
    """Return the profile of a machine whose clock is ``shift`` ahead, its wall clock moved."""
    spans = data.spans.copy()
    spans["start_ns"] += shift
    spans["end_ns"] += shift
    anchors = (Anchor(shift, 10**18), Anchor(shift + 10**9, 10**18 + 10**9 + wall))
    processes = tuple(replace(each, anchors=anchors) for each in data.processes)
    return replace(data, spans=spans, processes=processes)


@pytest.mark.parametrize("wall", [0, -8, -(10**15), 10**15])
def test_other_machines_are_set_by_wall_clock(wall):
    first, second = job([[30, 5], [10, 6]], hosts=["a", "b"])
    figures = compared([on_host(first, 0, 0), on_host(second, 10**12, wall)])
    assert figures.exposed_ns <= figures.wait_ns
    assert [each.wait_ns for each in figures.ranks] == [35, 16]
    if not wall:
        assert (figures.wait_ns, figures.exposed_ns) == (36, 21)
    alone = [on_host(each, 0, wall) for each in job([[30, 5], [10, 6]])]
    assert compared(alone) == compared(job([[30, 5], [10, 6]]))


def test_nested_operations_hold_the_loop_once():
    script = ranks_of(2)[0]
    script.loader(0, 0, (10, 0, 0)).next()
    now, earlier = script.now, {"flags": Flag.DETAIL, "thread": 2}
    for start, end, label, how in (
        (0, 30, "hook", {}),
        (5, 9, "all_reduce", {}),
        (60, 61, "broadcast from 0", {}),
        # As earlier versions wrote what an operation took while the loop did something else.
        (0, 90, "all_reduce", earlier),
    ):
        script.add(CONSUMER, Kind.COMM, now + start, now + end, label=label, **how)
    script.compute(100)
    (rank,) = compared([script]).ranks
    assert rank.comm_held_ns == 31
