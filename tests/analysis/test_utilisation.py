"""Accelerator utilisation equals DLIO's formula on the same steps, and what is missing is told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import CONSUMER, STAGES, Sketch, pool
from scripts import Script

from iobench.analysis.epochs import epoch_figures
from iobench.analysis.run import Run
from iobench.findings.utilisation.figures import mean_utilisation, utilisation
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.contents import RunData


@dataclass
class Block:
    """A block of steps: (load, compute, collective operation) of each, and what frames them."""

    steps: list[tuple[int, int, int]]
    last_ns: int = 3
    """The call that finds no batch; -1 where the loop is left without it."""
    saves_ns: int = 0
    epoch: int = 0


@dataclass
class Times:
    """What DLIO's counter is told of one block."""

    start: float
    load: list[float] = field(default_factory=list)
    proc: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    end: float = 0.0


def dlio_au(blocks: Sequence[Times], n_steps: int) -> float:
    """Return an epoch's AU in per cent, as DLIO 2.0.0 works it out of its own stamps."""
    first, last = 1, n_steps - 1
    au, weights = [], []
    for block in blocks:
        total_compute_time = np.sum(block.compute[first : last + 1])
        total_time = block.end - block.start
        total_time -= np.sum(block.proc[:first]) + np.sum(block.proc[last + 1 :])
        au.append(0.0 if total_compute_time == 0 else total_compute_time / total_time * 100)
        weights.append(len(block.proc))
    return float(np.sum(np.array(au) * weights) / np.sum(weights))


def run(rounds: Sequence[Sequence[Block]], *, start: int = 0) -> tuple[Sketch, list[list[Times]]]:
    """Return rounds, each of blocks that checkpoints part, as spans and as DLIO's stamps."""
    sketch, clock, batch, told = Sketch({"workers": 0}), start, 0, []
    for number, blocks in enumerate(rounds):
        began = clock
        told.append([])
        for block in blocks:
            times = Times(clock)
            for load, compute, comm in block.steps:
                asked, loaded = clock, clock + load
                sketch.add(
                    CONSUMER, Kind.READ, asked, asked + load // 2, batch=batch, epoch=block.epoch
                )
                sketch.wait(batch, asked, loaded, "consumer", epoch=block.epoch)
                computed = loaded + compute
                times.load.append(load)
                times.proc.append(computed - asked)
                times.compute.append(compute)
                if comm:
                    sketch.add(CONSUMER, Kind.COMM, computed, computed + comm, batch=batch)
                clock, batch = computed + comm, batch + 1
            is_last = block is blocks[-1]
            if is_last and block.last_ns >= 0:
                sketch.add(
                    CONSUMER, Kind.WAIT, clock, clock + block.last_ns, label="shutdown",
                    epoch=block.epoch,
                )  # fmt: skip
                clock += block.last_ns
            times.end = clock
            if block.saves_ns and not is_last:
                sketch.add(CONSUMER, Kind.CHECKPOINT, clock, clock + block.saves_ns)
                clock += block.saves_ns
            told[-1].append(times)
        sketch.round(began, clock, number)
        clock += 1000  # between rounds, in no figure
    return sketch, told


def au_of(rounds: Sequence[Sequence[Block]]) -> float:
    """Return the mean of DLIO's epochs; a round is one here."""
    _, told = run(rounds)
    n_steps = [sum(len(block.steps) for block in blocks) for blocks in rounds]
    return float(np.mean([dlio_au(*each) for each in zip(told, n_steps, strict=True)]))


times = st.integers(0, 10**9)
steps = st.lists(st.tuples(times, times, times), min_size=1, max_size=6)
rounds_of_steps = st.lists(
    st.lists(st.builds(Block, steps, last_ns=times, saves_ns=st.integers(1, 10**9)), min_size=1,
             max_size=3),
    min_size=1, max_size=4,
)  # fmt: skip


def with_epochs(rounds: Sequence[Sequence[Block]]) -> list[list[Block]]:
    return [
        [dataclasses.replace(block, epoch=epoch) for block in blocks]
        for epoch, blocks in enumerate(rounds)
    ]


@given(rounds_of_steps)
def test_it_equals_dlio_on_the_same_steps(rounds: list[list[Block]]) -> None:
    rounds = with_epochs(rounds)
    found = utilisation(Run(run(rounds)[0].profile()).of_rank())
    assert len(found.epochs) == len(rounds)
    if found.n_counted:
        assert found.fraction == pytest.approx(au_of(rounds) / 100, rel=1e-12, abs=1e-15)
        assert sum(found.missing.values()) == pytest.approx(1 - found.fraction, abs=1e-12)
    for block in found.stretches:
        assert sum(block.missing_ns.values()) == block.total_ns - block.compute_ns
        assert all(ns > 0 for ns in block.missing_ns.values())


def test_a_known_run() -> None:
    # The first step is left out; 3 x 10 of compute in 3 x (20 + 10 + 5) + 5 + 7.
    block = Block([(100, 50, 5), (20, 10, 5), (20, 10, 5), (20, 10, 5)], last_ns=7)
    found = utilisation(Run(run([[block]])[0].profile()).of_rank())
    assert found.stretches[0].total_ns == 3 * 35 + 5 + 7
    assert found.stretches[0].compute_ns == 30
    assert found.stretches[0].missing_ns == {
        "comm": 20, "read": 30, "handover": 30, "shutdown": 7
    }  # fmt: skip
    assert found.fraction == 30 / 117
    assert found.n_counted == 3


def test_without_compute_it_is_0_as_in_dlio() -> None:
    block = Block([(5, 0, 0), (5, 0, 0)], last_ns=0)
    found = utilisation(Run(run([[block]])[0].profile()).of_rank())
    assert found.fraction == au_of([[block]]) == 0
    assert sum(found.missing.values()) == pytest.approx(1)
    assert found.n_counted == 1


@pytest.mark.parametrize("last_ns", [3, -1])
def test_of_a_single_step_nothing_is_told_where_dlio_says_0(last_ns: int) -> None:
    block = Block([(5, 7, 0)], last_ns=last_ns)
    found = utilisation(Run(run([[block]])[0].profile()).of_rank())
    assert au_of([[block]]) == 0
    assert (found.fraction, found.missing, found.n_counted) == (None, None, 0)


def test_one_epoch_has_no_standard_deviation() -> None:
    found = utilisation(Run(pool([(60, 30, 10)] * 9, workers=2, step_ns=15).profile()).of_rank())
    assert len(found.epochs) == 1
    assert found.stdev_fraction is None


def test_a_run_without_a_step_has_none() -> None:
    assert utilisation(Run(Sketch({"workers": 0}).profile()).of_rank()) is None
    only_end = Sketch({"workers": 0})
    only_end.shutdown(0, 5)
    only_end.round(0, 5)
    assert utilisation(Run(only_end.profile()).of_rank()) is None


def test_ranks_count_alike_as_dlio_averages_them() -> None:
    fast = [[Block([(1, 9, 0)] * 4, epoch=0)], [Block([(1, 9, 0)] * 4, epoch=1)]]
    slow = [[Block([(9, 1, 0)] * 4, epoch=0)], [Block([(5, 5, 0)] * 4, epoch=1)]]
    parts = [utilisation(Run(run(each)[0].profile()).of_rank()) for each in (fast, slow)]
    job = mean_utilisation(parts)
    by_epoch = [
        np.mean([dlio_au(run(each)[1][epoch], 4) for each in (fast, slow)]) for epoch in (0, 1)
    ]
    assert job.n_ranks == 2
    assert job.fraction == pytest.approx(np.mean(by_epoch) / 100)
    assert job.stdev_fraction == pytest.approx(np.std(by_epoch) / 100)
    assert sum(job.missing.values()) == pytest.approx(1 - job.fraction)


def test_all_ranks_of_a_profile_are_averaged_and_one_can_be_named() -> None:
    profiles = [run([[Block([(load, 10, 0)] * 3)]])[0].profile() for load in (1, 30)]
    both = joined(profiles)
    each = [utilisation(Run(profile).of_rank()).fraction for profile in profiles]
    assert mean_utilisation(map(utilisation, Run(both))).fraction == pytest.approx(np.mean(each))
    assert utilisation(Run(both).of_rank(1)).fraction == each[1]


def joined(profiles: Sequence[RunData]) -> RunData:
    """Return one profile of these runs, each of a rank."""
    spans, processes = [], []
    for rank, profile in enumerate(profiles):
        part = profile.spans.copy()
        part["process"] += len(processes)
        spans.append(part)
        processes += [replace(process, rank=rank) for process in profile.processes]
    return msgspec.structs.replace(
        profiles[0],
        spans=np.concatenate(spans),
        processes=tuple(processes),
        ranks=tuple(range(len(profiles))),
    )


@given(
    durations=st.lists(st.tuples(*[st.integers(0, 10**6)] * len(STAGES)), min_size=1, max_size=12),
    workers=st.integers(0, 4),
    step_ns=st.integers(0, 10**6),
)
def test_what_is_missing_is_the_attributed_wait(
    durations: list[Any], workers: int, step_ns: int
) -> None:
    profile = pool(durations, workers=workers, step_ns=step_ns, drain_ns=5).profile()
    found, exposed = utilisation(Run(profile).of_rank()), Run(profile).of_rank()
    (block,) = found.stretches
    counted = exposed.attribution.ledger.exposed_ns[1:-1].sum()
    assert sum(block.missing_ns.values()) == counted == block.total_ns - block.compute_ns
    assert block.compute_ns == step_ns * (len(durations) - 1)


def test_time_between_the_last_batch_and_the_end_of_an_abandoned_round_is_compute() -> None:
    sketch, told = run([[Block([(3, 5, 0), (3, 5, 0)], last_ns=-1)]])
    found = utilisation(Run(sketch.profile()).of_rank())
    assert found.stretches[0].total_ns == 8
    assert found.fraction == dlio_au(told[0], 2) / 100


def test_epochs_are_those_of_tables_where_loaders_do_not_number_them() -> None:
    rounds = [[Block([(1, 9, 0)] * 4, epoch=-1)], [Block([(9, 1, 0)] * 2, epoch=-1)]]
    profile = run(rounds)[0].profile()
    found = utilisation(Run(profile).of_rank())
    assert [each.epoch for each in found.epochs] == [
        each.epoch for each in epoch_figures(Run(profile).of_rank())
    ]
    assert found.fraction == pytest.approx(au_of(rounds) / 100)


def test_loaders_made_anew_for_each_epoch_are_all_counted() -> None:
    script = Script()
    for _ in range(3):
        loader = script.loader()
        for _ in range(4):
            loader.next()
            script.compute(20)
        loader.end()
    script.sketch.loaders = [
        dataclasses.replace(each, name="Train") for each in script.sketch.loaders
    ]
    found = utilisation(Run(script.profile()).of_rank())
    assert ([each.epoch for each in found.epochs], found.n_counted) == ([0, 1, 2], 9)
