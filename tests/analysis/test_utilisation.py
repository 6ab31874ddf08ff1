"""Accelerator utilisation equals DLIO's formula on the same steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.run import Run
from iobench.findings.utilisation import mean_utilisation, utilisation
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Block:
    """A block of steps: (load, compute, collective operation) of each, and what frames them."""

    steps: list[tuple[int, int, int]]
    last_ns: int = 3
    """The call that finds no batch; -1 where the loop is left without it."""
    saves_ns: int = 0
    epoch: int = 0


def dlio_au(blocks: Sequence[Block]) -> float:
    """Return an epoch's AU in per cent, as DLIO 2.0.0 works it out of its own stamps."""
    first, last = 1, sum(len(block.steps) for block in blocks) - 1
    au, weights = [], []
    for block in blocks:
        proc = [load + compute for load, compute, _ in block.steps]
        end = block.last_ns if block is blocks[-1] else 0
        total_compute_time = np.sum([each[1] for each in block.steps][first : last + 1])
        total_time = np.sum(block.steps) + max(end, 0)
        total_time -= np.sum(proc[:first]) + np.sum(proc[last + 1 :])
        au.append(0.0 if total_compute_time == 0 else total_compute_time / total_time * 100)
        weights.append(len(proc))
    return float(np.sum(np.array(au) * weights) / np.sum(weights))


def run(rounds: Sequence[Sequence[Block]]) -> Run:
    """Return a run of rounds, each of blocks that checkpoints part."""
    sketch, clock, batch = SketchedRun({"workers": 0}), 0, 0
    for number, blocks in enumerate(rounds):
        start = clock
        for block in blocks:
            for load, compute, comm in block.steps:
                loaded, computed = clock + load, clock + load + compute
                middle = clock + load // 2
                sketch.add(CONSUMER, Kind.READ, clock, middle, batch=batch, epoch=block.epoch)
                sketch.wait(batch, clock, loaded, "consumer", epoch=block.epoch)
                if comm:
                    sketch.add(CONSUMER, Kind.COMM, computed, computed + comm, batch=batch)
                clock, batch = computed + comm, batch + 1
            if block is not blocks[-1]:
                sketch.add(CONSUMER, Kind.CHECKPOINT, clock, clock := clock + block.saves_ns)
            elif block.last_ns >= 0:
                end = {"label": "shutdown", "epoch": block.epoch}
                sketch.add(CONSUMER, Kind.WAIT, clock, clock := clock + block.last_ns, **end)
        sketch.round(start, clock, number)
        clock += 1000  # between rounds, in no figure
    return Run(sketch.data())


def au_of(rounds: Sequence[Sequence[Block]]) -> float:
    """Return the mean of DLIO's epochs; a round is one here."""
    return float(np.mean([dlio_au(blocks) for blocks in rounds]))


times = st.integers(0, 10**9)
steps = st.lists(st.tuples(times, times, times), min_size=1, max_size=6)
rounds_of_steps = st.lists(
    st.lists(st.builds(Block, steps, last_ns=times, saves_ns=st.integers(1, 10**9)), min_size=1,
             max_size=3),
    min_size=1, max_size=4,
)  # fmt: skip


@given(rounds_of_steps)
def test_it_equals_dlio_on_the_same_steps(rounds: list[list[Block]]) -> None:
    rounds = [[replace(each, epoch=n) for each in blocks] for n, blocks in enumerate(rounds)]
    found = utilisation(run(rounds).of_rank())
    if found is not None:
        assert found.fraction == pytest.approx(au_of(rounds) / 100, rel=1e-12, abs=1e-15)


def test_a_run_without_a_step_has_none() -> None:
    only_end = SketchedRun({"workers": 0})
    only_end.shutdown(0, 5)
    only_end.round(0, 5)
    alone = run([[Block([(5, 7, 0)])]])  # where DLIO says 0
    for each in (alone, Run(SketchedRun({"workers": 0}).data()), Run(only_end.data())):
        assert utilisation(each.of_rank()) is None


def test_ranks_count_alike_as_dlio_averages_them() -> None:
    loads = ((1, 1), (9, 5))
    ranks = [
        [[Block([(load, 10 - load, 0)] * 4, epoch=n)] for n, load in enumerate(of)] for of in loads
    ]
    parts = [utilisation(run(each).of_rank()) for each in ranks]
    job = mean_utilisation([*parts, None])
    assert job.fraction == pytest.approx(np.mean([au_of(each) for each in ranks]) / 100)
    assert mean_utilisation([None]) is None
