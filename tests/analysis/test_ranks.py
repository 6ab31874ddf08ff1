"""Jobs of several training processes: the last rank, its imbalance, clocks, communication."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scripts import LOOP, Script

from iobench.analysis.run import Run
from iobench.findings.job.ranks import compare_ranks, missing_ranks
from iobench.findings.job.section import job_section
from iobench.findings.job.steps import rank_steps
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.report.document import Sentence
from iobench.report.json_walk import to_plain
from iobench.runs.contents import RunData


def job(waits, *, compute=10, comm=False, hosts=None):
    """Return the profiles of ranks that meet after every step; ``waits[rank][step]``."""
    n_steps = len(waits[0])
    scripts = [Script(rank=rank, world_size=len(waits)) for rank in range(len(waits))]
    loaders = [script.loader(0, 0) for script in scripts]
    met = 0
    for step in range(n_steps):
        for script, loader, wait in zip(scripts, loaders, waits, strict=True):
            script.now = met
            loader.stages = (wait[step], 0, 0)
            loader.next()
            script.compute(compute)
        met = max(script.now for script in scripts) + 2
        for script in scripts:
            if comm:
                label = comm if isinstance(comm, str) else ""
                script.sketch.add(LOOP, Kind.COMM, script.now, met, label=label)
            script.now = met
    for rank, script in enumerate(scripts):
        script.sketch.host = hosts[rank] if hosts else "here"
    return [script.profile() for script in scripts]


def compared(profiles, **more):
    runs = [Run(profile).of_rank(profile.ranks[0]) for profile in profiles]
    steps = [rank_steps(each, each.loop, each.deliveries) for each in runs]
    return compare_ranks(steps, world_size=len(profiles), **more)


jobs = st.integers(1, 20).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 100), min_size=n, max_size=n), min_size=2, max_size=4
    )
)


@given(jobs)
def test_each_step_waits_for_the_last_rank_and_for_it_alone_beyond_the_second_last(waits):
    found = compared(job(waits))
    by_step = [sorted(each) for each in zip(*waits, strict=True)]
    assert found.step_wait_ns.tolist() == [each[-1] for each in by_step]
    assert found.step_exposed_ns.tolist() == [each[-1] - each[-2] for each in by_step]
    assert found.wait_ns == sum(each[-1] for each in by_step)
    assert found.exposed_ns == sum(each.exposed_ns for each in found.ranks)
    assert sum(each.n_last for each in found.ranks) == found.n_steps == len(by_step)
    assert [each.wait_ns for each in found.ranks] == [sum(each) for each in waits]


@given(jobs)
def test_operations_hold_each_rank_from_its_arrival_to_their_end(waits):
    found = compared(job(waits, comm=True))
    longest = [max(each) for each in zip(*waits, strict=True)]
    for rank, each in zip(found.ranks, waits, strict=True):
        assert rank.comm_held_ns == sum(longest) - sum(each) + 2 * len(each)
        assert rank.n_operations == len(each)


def test_the_report_says_that_waiting_for_ranks_is_in_the_time_of_operations():
    found = compared(job([[5, 5], [9, 9]], comm="all_reduce"))
    for folded, begins in (
        (0, "Collective operations hold the training loops of 2 ranks for 16 ns in total"),
        (100, "In the last 4 of 104 batches"),
    ):
        blocks = job_section(replace(found, n_folded=folded)).blocks
        (text,) = [
            block.text
            for block in blocks
            if isinstance(block, Sentence) and "operations hold the training loops" in block.text
        ]
        assert text.startswith(begins)
        assert text.endswith("including waiting in them for ranks that arrive later.")


def test_a_rank_without_a_loop_is_on_no_other_machine_and_in_no_time():
    loop, idle = Script(rank=0, world_size=2), Script(rank=1, world_size=2)
    loop.now = 10**12
    loop.loader(0, 0, (5, 0, 0)).next()
    loop.sketch.add(LOOP, Kind.COMM, loop.now, loop.now + 40, label="all_reduce", nbytes=8)
    loop.now += 40
    idle.sketch.add(LOOP, Kind.COMM, loop.now - 2, loop.now, label="all_reduce", nbytes=8)
    found = compared([loop.profile(), idle.profile()])
    assert found.clock_uncertainty_ns is None
    assert (found.hosts, found.imbalance) == (("here",), None)
    told = [block.text for block in job_section(found).blocks if isinstance(block, Sentence)]
    assert any(text.startswith("Rank 1 asked no loader that iobench sees") for text in told)
    assert found.steps_wall_ns == 45
    first, second = found.ranks
    assert (first.comm_held_ns, first.comm_nbytes) == (40, 8)
    assert (second.host, second.comm_held_ns) == ("here", None)


@pytest.mark.parametrize(("sizes", "nbytes"), [((700, 50), 750), ((700, -1), None)])
def test_nested_operations_hold_the_loop_once_and_waiting_is_none_of_them(sizes, nbytes):
    script = Script(rank=0, world_size=2)
    script.loader(0, 0, (10, 0, 0)).next()
    add, now = script.sketch.add, script.now
    add(LOOP, Kind.COMM, now, now + 30, label="hook")
    add(LOOP, Kind.COMM, now + 5, now + 9, label="all_reduce", nbytes=sizes[0])
    add(LOOP, Kind.COMM, now + 40, now + 50, label="wait")
    add(LOOP, Kind.COMM, now + 60, now + 61, label="broadcast from 0", nbytes=sizes[1])
    # As earlier versions wrote them: what an operation took while the loop did something else.
    add(LOOP, Kind.COMM, now, now + 90, label="all_reduce", nbytes=9, flags=Flag.DETAIL, thread=2)
    script.compute(100)
    (rank,) = compared([script.profile()]).ranks
    assert (rank.comm_held_ns, rank.n_operations, rank.comm_nbytes) == (41, 2, nbytes)


@given(jobs, st.integers(1, 9))
def test_the_matrix_holds_every_wait(waits, n_bins):
    found = compared(job(waits), n_bins=n_bins)
    assert [sum(row) for row in found.matrix_ns] == [each.wait_ns for each in found.ranks]
    assert all(0 <= value <= found.bin_ns for row in found.matrix_ns for value in row)


@given(jobs, st.permutations(range(4)))
def test_the_order_of_ranks_is_irrelevant(waits, order):
    profiles = job(waits)
    moved = [profiles[place] for place in order if place < len(profiles)]
    assert to_plain(compared(moved)) == to_plain(compared(profiles))


def test_imbalance():
    found = compared(job([[30] * 4, [10] * 4]))
    assert found.imbalance == 1.5
    assert compared(job([[0], [0]])).imbalance is None


def test_steps_of_one_rank_alone_are_apart():
    first, second = job([[10] * 5, [20] * 5])
    script = Script(rank=0, world_size=2)
    loader, validation = script.loader(0, 0, (10, 0, 0)), script.loader(0, 0, (500, 0, 0))
    for _ in range(5):
        loader.next()
        script.compute(22)
    for _ in range(3):
        validation.next()
    found = compared([script.profile(), second])
    assert (found.n_steps, found.n_single_steps) == (5, 3)
    assert found.wait_ns == 100
    assert compared([first, second]).n_single_steps == 0


def test_loaders_are_the_same_by_what_they_load_whatever_their_numbers():
    one, other = Script(rank=0), Script(rank=1)
    other.loader(0, 0)
    for script, spent in ((one, 5), (other, 9)):
        train = script.loader(0, 0, (spent, 0, 0))
        script.sketch.loaders[-1].name = "Training"
        for _ in range(2):
            train.next()
    profiles = [one.profile(), other.profile()]
    assert compared(profiles).n_steps == 2
    other.sketch.loaders[-1].name = "Validation"
    found = compared([one.profile(), other.profile()])
    assert (found.n_steps, found.n_single_steps) == (0, 4)


def on_host(profile: RunData, shift: int, wall: int, behind: int = 0) -> RunData:
    """Return the profile of a machine whose monotonic clock is ``shift`` ahead."""
    since = 10**18 - behind
    spans = profile.spans.copy()
    spans["start_ns"] += shift
    spans["end_ns"] += shift
    anchors = (Anchor(shift, since), Anchor(shift + 10**9, since + 10**9 + wall))
    processes = tuple(replace(each, anchors=anchors) for each in profile.processes)
    return msgspec.structs.replace(profile, spans=spans, processes=processes)


@pytest.mark.parametrize("wall", [0, -8])
def test_other_machines_are_set_by_wall_clock_and_how_far_is_said(wall):
    profiles = job([[30, 5], [10, 6]], hosts=["a", "b"])
    found = compared([on_host(profiles[0], 0, 0), on_host(profiles[1], 10**12, wall)])
    assert found.hosts == ("a", "b")
    assert found.clock_uncertainty_ns == -wall // 2
    assert found.n_uncertain_steps == (1 if wall else 0)
    if not wall:
        assert found.step_exposed_ns.tolist() == [20, 1]
        assert found.step_wait_ns.tolist() == [30, 6]
    assert compared(profiles[:1]).clock_uncertainty_ns is None


def test_a_wall_clock_that_is_set_meanwhile_changes_nothing_on_one_machine():
    profiles = job([[30, 5], [10, 6]], comm=True)
    for step in (-(10**15), 10**15):
        moved = [on_host(profile, 0, step) for profile in profiles]
        found = compared(moved)
        assert to_plain(found) == to_plain(compared(profiles))
        assert found.clock_uncertainty_ns is None


@pytest.mark.parametrize("step", [-(10**15), 10**15])
def test_a_wall_clock_that_is_set_meanwhile_on_another_machine_is_said(step):
    profiles = job([[30, 5], [10, 6]], hosts=["a", "b"])
    found = compared([on_host(profiles[0], 0, 0), on_host(profiles[1], 10**12, step)])
    assert found.clock_uncertainty_ns == abs(step) // 2
    assert found.n_uncertain_steps >= 1
    assert found.exposed_ns <= found.wait_ns == sum(found.step_wait_ns.tolist())
    # What each rank waited is of its own clock, whatever the other's.
    assert [each.wait_ns for each in found.ranks] == [35, 16]
    assert [sum(row) for row in found.matrix_ns] == [35, 16]


def test_the_uncertainty_of_clocks_holds_whichever_pair_is_right():
    profiles = job([[30, 5], [10, 6]], hosts=["a", "b"])
    other = on_host(profiles[1], 10**12, 80)
    (loop, *rest) = other.processes
    killed = replace(loop, role="worker", worker=0, anchors=loop.anchors[:1])
    both = msgspec.structs.replace(other, processes=(loop, *rest, killed))
    # Two pairs say 0, one says 80: the median is 0, and 80 may be the truth.
    assert compared([on_host(profiles[0], 0, 0), both]).clock_uncertainty_ns == 80


def test_one_rank_alone_has_no_steps_to_compare():
    found = compared(job([[5, 5]]))
    assert (found.n_steps, found.n_single_steps, found.exposed_ns) == (0, 0, 0)


def told(rank, ended):
    return ProcessFacts(rank, 0, f"h{rank}", "consumer", rank=rank, world_size=5, ended=ended)


def test_missing_ranks_are_named():
    facts = [told(0, "closed"), told(1, "RuntimeError"), told(2, None), told(3, None)]
    missing = missing_ranks(facts, (0, 1, 2), world_size=5, unclosed={2: "h2"})
    assert [(each.rank, each.host, each.what) for each in missing] == [
        (1, "h1", "ended with RuntimeError"),
        (2, "h2", "killed, left by os._exit, or still running"),
        (3, "h3", "left no spans"),
        (4, None, "never started"),
    ]


def test_a_rank_without_deliveries_takes_no_part_in_the_comparison():
    first, second = job([[10] * 3, [20] * 3])
    idle = Script(rank=2)
    idle.sketch.add(LOOP, Kind.READ, 0, 10)
    found = compared([first, second, idle.profile()])
    assert found.n_steps == 3
    assert found.imbalance == pytest.approx(60 / 45)
    assert np.sum(found.matrix_ns[2]) == 0


def test_start_and_end_of_rounds_are_waits_of_the_step_after_them():
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
        profiles.append(script.profile())
    found = compared(profiles)
    assert found.step_wait_ns.tolist() == [65, 5, 5, 67, 5, 5]
    assert found.step_last.tolist() == [1] * 6
    assert [sum(row) for row in found.matrix_ns] == [each.wait_ns for each in found.ranks]
    assert [each.wait_ns for each in found.ranks] == [2 * (10 + 15 + 2), 2 * (60 + 15 + 2)]
