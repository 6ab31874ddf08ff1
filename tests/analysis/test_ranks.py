"""Jobs of several training processes: the last rank, its imbalance, what the others wait for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import LOOP, Script

from iobench.analysis.run import Run
from iobench.profiles.contents import Profile
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.report.document import Sentence
from iobench.subjects.job.ranks import compare_ranks, missing_ranks
from iobench.subjects.job.section import job_section
from iobench.subjects.job.steps import rank_steps


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
    steps = [rank_steps(each.profile, each.loop, each.deliveries) for each in runs]
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
def test_waiting_in_an_operation_for_who_waited_for_input_is_peer_input_wait(waits):
    found = compared(job(waits, comm=True))
    longest = [max(each) for each in zip(*waits, strict=True)]
    for rank, each in zip(found.ranks, waits, strict=True):
        # All compute alike: who comes late waited longer, and the operation needs 2 ns itself.
        assert rank.peer_input_wait_ns == sum(longest) - sum(each)
        assert rank.peer_other_wait_ns == 0
        assert rank.comm_ns == 2 * len(each)


def one_step(parts, *, ends, name="all_reduce", names=None, nbytes=-1):
    """Return profiles of ranks that wait, compute and meet once: ``parts[rank] = (wait, work)``."""
    profiles = []
    for rank, (wait, work) in enumerate(parts):
        script = Script(rank=rank, world_size=len(parts))
        script.loader(0, 0, (wait, 0, 0)).next()
        script.compute(work)
        label = names[rank] if names else name
        script.sketch.add(LOOP, Kind.COMM, script.now, ends[rank], label=label, nbytes=nbytes)
        script.now = ends[rank]
        profiles.append(script.profile())
    return profiles


def split(profiles):
    """Return (peer input wait, other peer wait, comm) of each rank."""
    return [
        (each.peer_input_wait_ns, each.peer_other_wait_ns, each.comm_ns)
        for each in compared(profiles).ranks
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # The last rank waited for its input and then computed as the others do.
        ([(0, 50), (100, 50)], [(100, 0, 5), (0, 0, 5)]),
        # It computed longer.
        ([(0, 50), (0, 150)], [(0, 100, 5), (0, 0, 5)]),
        # Both, and the other one waited as well.
        ([(60, 50), (100, 80)], [(40, 30, 5), (0, 0, 5)]),
        # The other one computed meanwhile: without that wait the last one had come before it.
        ([(0, 120), (100, 50)], [(30, 0, 5), (0, 0, 5)]),
        # Its waiting less than the other one explains nothing.
        ([(40, 10), (0, 150)], [(0, 100, 5), (0, 0, 5)]),
        ([(0, 10), (0, 60), (90, 10)], [(90, 0, 5), (40, 0, 5), (0, 0, 5)]),
    ],
)
def test_who_comes_late_is_asked_why(parts, expected):
    end = max(wait + work for wait, work in parts) + 5
    assert split(one_step(parts, ends=[end] * len(parts))) == expected


def test_a_slow_operation_is_communication():
    assert split(one_step([(10, 50), (10, 50)], ends=[960, 960])) == [(0, 0, 900)] * 2


def test_from_one_rank_all_wait_for_it_alone():
    parts = [(20, 10), (0, 10), (500, 10)]
    profiles = one_step(parts, ends=[33, 35, 513], name="broadcast from 0")
    assert split(profiles) == [(0, 0, 3), (20, 0, 5), (0, 0, 3)]
    assert split(one_step(parts, ends=[33, 35, 513], name="broadcast"))[0] == (3, 0, 0), (
        "and from whom nobody knows: it is what lies beside any rank's wait"
    )


def test_who_sends_and_is_held_until_others_come_waits_for_them():
    profiles = one_step([(0, 10), (300, 10)], ends=[312, 313], name="broadcast from 0")
    assert split(profiles) == [(300, 0, 2), (0, 0, 3)]
    profiles = one_step([(300, 10), (0, 10)], ends=[312, 313], name="gather to 0")
    assert split(profiles) == [(0, 0, 2), (300, 0, 3)]


def test_to_one_rank_it_waits_for_all():
    profiles = one_step([(0, 10), (0, 40), (0, 10)], ends=[45, 41, 11], name="reduce to 0")
    assert split(profiles) == [(0, 30, 5), (0, 0, 1), (0, 0, 1)]


def test_groups_of_ranks_meet_among_themselves():
    names = ["all_reduce of ranks 0,1"] * 2 + ["all_reduce of ranks 2,3"] * 2
    parts = [(0, 10), (0, 20), (0, 10), (0, 500)]
    assert split(one_step(parts, ends=[25, 25, 505, 505], names=names)) == [
        (0, 10, 5), (0, 0, 5), (0, 490, 5), (0, 0, 5),
    ]  # fmt: skip


def test_between_two_ranks_nobody_knows_who_came_late():
    names = ["send", "recv"]
    profiles = one_step([(0, 10), (0, 200)], ends=[210, 210], names=names, nbytes=8)
    assert split(profiles) == [(0, 0, 200), (0, 0, 10)]
    first, second = compared(profiles).ranks
    assert (first.comm_alone_ns, second.comm_alone_ns) == (200, 10)
    assert (first.comm_nbytes, first.comm_nbytes_per_s) == (8, None), "nor how fast it was"
    alone = one_step([(0, 10), (0, 20)], ends=[30, 30], names=["all_reduce", "barrier"], nbytes=8)
    assert [each.comm_nbytes_per_s for each in compared(alone).ranks] == [None, None]


def test_what_is_said_of_operations_is_of_batches_that_are_kept():
    found = compared(job([[5, 5], [9, 9]], comm="all_reduce"))
    for folded, begins in (
        (0, "Collective operations hold the"),
        (100, "In the last 4 of 104 batches"),
    ):
        blocks = job_section(replace(found, n_folded=folded)).blocks
        (text,) = [
            block.text
            for block in blocks
            if isinstance(block, Sentence) and "operations hold the training loops" in block.text
        ]
        assert text.startswith(begins)
        assert "8 ns until a rank arrived that had waited longer for its input" in text


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
    assert (first.comm_ns, first.comm_alone_ns, first.comm_nbytes_per_s) == (40, 40, None)
    assert (second.host, second.comm_ns) == ("here", None)


def test_what_goes_on_beside_the_loop_holds_it_only_while_it_waits():
    profiles = []
    for rank, work in enumerate((100, 140)):
        script = Script(rank=rank, world_size=2)
        script.loader(0, 0, (10, 0, 0)).next()
        begun = script.now
        script.compute(work)
        held, end = script.now, 10 + 140 + 30
        add = script.sketch.add
        add(LOOP, Kind.COMM, held, end, label="gradients", nbytes=600, flags=Flag.BEGUN)
        own = {"label": "gradients", "nbytes": 600, "flags": Flag.DETAIL, "thread": 2}
        add(LOOP, Kind.COMM, begun, end, **own)
        script.now = end
        profiles.append(script.profile())
    first, second = compared(profiles).ranks
    assert (first.peer_other_wait_ns, first.comm_ns) == (40, 30)
    assert (second.peer_other_wait_ns, second.comm_ns) == (0, 30)
    assert (first.comm_own_ns, first.comm_hidden_ns, first.comm_nbytes) == (170, 100, 600)
    assert first.comm_nbytes_per_s == pytest.approx(600e9 / 130)
    assert second.comm_nbytes_per_s == pytest.approx(600e9 / 170)


def test_bytes_that_one_operation_does_not_tell_are_unknown():
    told, untold = (one_step([(0, 1), (0, 1)], ends=[5, 5], nbytes=n) for n in (700, -1))
    assert [each.comm_nbytes for each in compared(told).ranks] == [700, 700]
    assert compared(told).ranks[0].comm_nbytes_per_s == pytest.approx(700e9 / 4)
    for each in compared(untold).ranks:
        assert (each.comm_nbytes, each.comm_nbytes_per_s, each.comm_hidden_ns) == (None,) * 3


@given(jobs, st.integers(1, 9))
def test_the_matrix_holds_every_wait(waits, n_bins):
    found = compared(job(waits), n_bins=n_bins)
    assert [sum(row) for row in found.matrix_ns] == [each.wait_ns for each in found.ranks]
    assert all(0 <= value <= found.bin_ns for row in found.matrix_ns for value in row)


@given(jobs, st.permutations(range(4)))
def test_the_order_of_ranks_is_irrelevant(waits, order):
    profiles = job(waits)
    moved = [profiles[place] for place in order if place < len(profiles)]
    assert compared(moved) == compared(profiles)


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


def on_host(profile: Profile, shift: int, wall: int, behind: int = 0) -> Profile:
    """Return the profile of a machine whose monotonic clock is ``shift`` ahead."""
    since = 10**18 - behind
    spans = profile.spans.copy()
    spans["start_ns"] += shift
    spans["end_ns"] += shift
    anchors = (Anchor(shift, since), Anchor(shift + 10**9, since + 10**9 + wall))
    processes = tuple(replace(each, anchors=anchors) for each in profile.processes)
    return replace(profile, spans=spans, processes=processes)


@pytest.mark.thorough
@given(jobs, st.integers(-(10**6), 10**6), st.integers(-300, 300))
def test_operations_that_none_leaves_before_all_came_set_clocks(waits, shift, behind):
    hosts = ["a", "b", "a", "b"][: len(waits)]
    profiles = job(waits, comm="all_reduce", hosts=hosts)
    moved = [
        on_host(each, shift, 0, behind=behind) if host == "b" else on_host(each, 0, 0)
        for each, host in zip(profiles, hosts, strict=True)
    ]
    found, true = compared(moved), compared(job(waits, comm="all_reduce"))
    assert found.n_clock_operations == len(waits[0])
    for one, other in zip(found.ranks, true.ranks, strict=True):
        # However wrong the wall clock is, times are no further off than is said.
        most = found.clock_uncertainty_ns * len(waits[0])
        assert abs(one.peer_input_wait_ns - other.peer_input_wait_ns) <= most
        assert one.wait_ns == other.wait_ns


def test_clocks_are_known_to_what_operations_take_where_ranks_take_turns_to_be_last():
    profiles = job([[30, 5], [10, 60]], comm="barrier", hosts=["a", "b"])
    moved = [on_host(profiles[0], 0, 0), on_host(profiles[1], 10**12, 0, behind=10**6)]
    found = compared(moved)
    assert found.clock_uncertainty_ns <= 4, "an operation takes 2 ns after the last one came"
    assert [each.peer_input_wait_ns for each in found.ranks] == pytest.approx([55, 20], abs=4)
    wrong = compared([on_host(each, *more) for each, more in zip(
        job([[30, 5], [10, 60]], comm="send", hosts=["a", "b"]), [(0, 0), (10**12, 0)], strict=True
    )])  # fmt: skip
    assert (wrong.n_clock_operations, wrong.clock_uncertainty_ns) == (0, 0)


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
        assert found == compared(profiles)
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
    both = replace(other, processes=(loop, *rest, killed))
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
