"""Jobs of several training processes: the last rank, its imbalance, clocks, communication."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scripts import LOOP, Script

from iobench.analysis.run import Run
from iobench.findings.ranks import N_BINS, compare_ranks, steps_of_rank
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor


def job(waits, *, compute=10, hosts=None):
    """Return the profiles of ranks that meet after every step; ``waits[rank][step]``."""
    scripts = [Script(rank=rank, world_size=len(waits)) for rank in range(len(waits))]
    loaders = [script.loader(0, 0) for script in scripts]
    met = 0
    for step in range(len(waits[0])):
        for script, loader, wait in zip(scripts, loaders, waits, strict=True):
            script.now = met
            loader.stages = (wait[step], 0, 0)
            loader.next()
            script.compute(compute)
        met = max(script.now for script in scripts) + 2
        for script in scripts:
            script.sketch.add(LOOP, Kind.COMM, script.now, met, label="all_reduce")
            script.now = met
    for rank, script in enumerate(scripts):
        host = hosts[rank] if hosts else "here"
        script.sketch.process |= {"host": host, "boot_id": f"boot-{host}"}
        script.sketch.facts["host"] = host
    return [script.data() for script in scripts]


def steps_of(profiles):
    return [steps_of_rank(Run(profile).of_rank(profile.ranks[0])) for profile in profiles]


def compared(profiles):
    return compare_ranks(steps_of(profiles))


jobs = st.integers(1, 20).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 100), min_size=n, max_size=n), min_size=2, max_size=4
    )
)


@given(jobs, st.permutations(range(4)))
def test_each_step_waits_for_the_last_rank_and_for_it_alone_beyond_the_second_last(waits, order):
    profiles = job(waits)
    figures = compared(profiles)
    by_step = [sorted(each) for each in zip(*waits, strict=True)]
    assert figures.wait_ns == sum(each[-1] for each in by_step)
    assert figures.exposed_ns == sum(each[-1] - each[-2] for each in by_step)
    assert figures.exposed_ns == sum(each.exposed_ns for each in figures.ranks)
    assert sum(each.steps_last for each in figures.ranks) == figures.steps == len(by_step)
    longest = [max(each) for each in zip(*waits, strict=True)]
    for rank, each in zip(figures.ranks, waits, strict=True):
        assert rank.wait_ns == sum(each) == sum(rank.waits_ns)
        assert all(0 <= value <= -(-figures.steps_wall_ns // N_BINS) for value in rank.waits_ns)
        assert rank.comm_held_ns == sum(longest) - sum(each) + 2 * len(each)
    moved = [profiles[place] for place in order if place < len(profiles)]
    assert compared(moved) == figures


def test_a_rank_without_a_loop_is_on_no_other_machine_and_in_no_time():
    loop, idle = Script(rank=0, world_size=2), Script(rank=1, world_size=2)
    loop.now = 10**12
    loop.loader(0, 0, (5, 0, 0)).next()
    for script in (loop, idle):
        script.sketch.add(LOOP, Kind.COMM, 10**12 + 5, 10**12 + 45, label="all_reduce")
    loop.now += 40
    figures = compared([loop.data(), idle.data()])
    assert (figures.imbalance, figures.steps) == (None, 0)
    assert [each.wait_ns for each in figures.ranks] == [5, None]
    assert figures.steps_wall_ns == 45
    assert [each.comm_held_ns for each in figures.ranks] == [40, None]


def test_steps_of_one_rank_alone_are_apart():
    first, second = job([[10] * 5, [20] * 5])
    script = Script(rank=0, world_size=2)
    loader, validation = script.loader(0, 0, (10, 0, 0)), script.loader(0, 0, (500, 0, 0))
    for _ in range(5):
        loader.next()
        script.compute(22)
    for _ in range(3):
        validation.next()
    figures = compared([script.data(), second])
    assert (figures.steps, figures.wait_ns) == (5, 100)
    assert compared([first]).steps == 0


def test_loaders_are_the_same_by_what_they_load_whatever_their_numbers():
    one, other = Script(rank=0, world_size=2), Script(rank=1, world_size=2)
    other.loader(0, 0)
    for script, spent in ((one, 5), (other, 9)):
        train = script.loader(0, 0, (spent, 0, 0))
        script.sketch.loaders[-1].name = "Training"
        for _ in range(2):
            train.next()
    figures = compared([one.data(), other.data()])
    assert (figures.steps, figures.imbalance) == (2, 9 / 7)
    other.sketch.loaders[-1].name = "Validation"
    assert compared([one.data(), other.data()]).steps == 0


def test_start_and_end_of_passes_are_waits_of_the_step_after_them():
    profiles = []
    for rank, start_ns in ((0, 10), (1, 60)):
        script = Script(rank=rank, world_size=2)
        loader = script.loader(0, 0, (5, 0, 0), start_ns=start_ns)
        for _ in range(2):
            loader.iter()
            for _ in range(3):
                loader.next()
                script.compute(7)
            loader.end(drain_ns=2)
        profiles.append(script.data())
    figures = compared(profiles)
    assert figures.wait_ns == 65 + 5 + 5 + 67 + 5 + 5
    assert [each.steps_last for each in figures.ranks] == [0, 6]
    assert [each.wait_ns for each in figures.ranks] == [2 * (10 + 15 + 2), 2 * (60 + 15 + 2)]


def on_host(profile, shift, wall):
    """Return the profile of a machine whose clock is ``shift`` ahead, its wall clock moved."""
    spans = profile.spans.copy()
    spans["start_ns"] += shift
    spans["end_ns"] += shift
    anchors = (Anchor(shift, 10**18), Anchor(shift + 10**9, 10**18 + 10**9 + wall))
    processes = tuple(replace(each, anchors=anchors) for each in profile.processes)
    return replace(profile, spans=spans, processes=processes)


@pytest.mark.parametrize("wall", [0, -8, -(10**15), 10**15])
def test_other_machines_are_set_by_wall_clock(wall):
    profiles = job([[30, 5], [10, 6]], hosts=["a", "b"])
    figures = compared([on_host(profiles[0], 0, 0), on_host(profiles[1], 10**12, wall)])
    assert figures.exposed_ns <= figures.wait_ns
    assert [(each.wait_ns, sum(each.waits_ns)) for each in figures.ranks] == [(35, 35), (16, 16)]
    if not wall:
        assert (figures.wait_ns, figures.exposed_ns) == (36, 21)
    alone = [on_host(each, 0, wall) for each in job([[30, 5], [10, 6]])]
    assert compared(alone) == compared(job([[30, 5], [10, 6]]))


def facts(rank, ended, world_size=5):
    return ProcessFacts(
        rank, 0, f"h{rank}", "consumer", rank=rank, world_size=world_size, ended=ended
    )


def test_nested_operations_hold_the_loop_once():
    script = Script(rank=0, world_size=2)
    script.loader(0, 0, (10, 0, 0)).next()
    add, now = script.sketch.add, script.now
    add(LOOP, Kind.COMM, now, now + 30, label="hook")
    add(LOOP, Kind.COMM, now + 5, now + 9, label="all_reduce")
    add(LOOP, Kind.COMM, now + 60, now + 61, label="broadcast from 0")
    # As earlier versions wrote them: what an operation took while the loop did something else.
    add(LOOP, Kind.COMM, now, now + 90, label="all_reduce", flags=Flag.DETAIL, thread=2)
    script.compute(100)
    (rank,) = compared([script.data()]).ranks
    assert rank.comm_held_ns == 31


@pytest.mark.parametrize("hangs_ns", [0, 1000])
def test_a_wait_that_brought_no_batch_is_no_part_of_the_time_to_the_last_step(hangs_ns):
    profiles = []
    for rank in (0, 1):
        script = Script(rank=rank, world_size=2)
        loader = script.loader(0, 0, (5, 0, 0), start_ns=0)
        loader.iter()
        for _ in range(2):
            loader.next()
            script.compute(7)
        if hangs_ns and rank:
            asked, script.now = script.now, script.now + hangs_ns
            script.wait(loader, -1, asked, "failed")
        profiles.append(script.data())
    assert compared(profiles).steps_wall_ns == 2 * (5 + 7)
