"""What each process did, whoever waited for it; of the one that trains, when it waited."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.exposure import stages_of_rows
from iobench.analysis.ledger import Ledger
from iobench.analysis.loop import OWN_PASS
from iobench.analysis.partition import leaf_pieces
from iobench.analysis.stage_table import StageTable
from iobench.analysis.time_intervals import length_before
from iobench.recording.kinds import Kind, lane_keys
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import StageExposure
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import Process, RunData

Integers = NDArray[np.int64]


class ProcessWork(msgspec.Struct, frozen=True):
    """What one process did."""

    process: str
    pid: int
    wall_ns: int  # from its first span to the end of its last
    stages: tuple[StageExposure, ...]  # longest first; of their time that they were busy


def process_work(profile: RunData, *, rank: int | None = None) -> tuple[ProcessWork, ...]:
    """Return what the processes of a run did, of one rank or of all."""
    spans = profile.spans
    in_sums = (spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0
    rounds = (spans["kind"] == Kind.OTHER) & (spans["label"] == profile.string_number("round"))
    spans = spans[in_sums & ~rounds]
    ledger = Ledger(len(profile.processes), StageTable(spans, profile.strings))
    pieces = leaf_pieces(spans, lane_keys(spans))
    process, stage = spans["process"][pieces.span], ledger.stages.of_span[pieces.span]
    ledger.count(spans, pieces, stage, process)
    np.add.at(ledger.busy_ns, (process, stage), pieces.duration_ns)
    result = []
    for index, owner in enumerate(profile.processes):
        own = spans[spans["process"] == index]
        wall_ns = int(own["end_ns"].max() - own["start_ns"].min()) if len(own) else 0
        if rank is None or owner.rank == rank:
            is_own = np.arange(len(profile.processes)) == index
            result.append(
                ProcessWork(owner.name, owner.pid, wall_ns, stages_of_rows(ledger, is_own))
            )
    return tuple(result)


def other_loops(run: RankRun) -> tuple[str, ...]:
    """Return the processes that got batches from loaders too, whose waits are not the loop's."""
    loop, spans = run.loop, run.spans
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["flags"] == 0) & (spans["batch"] >= 0)]
    if loop.process < 0 or loop.unjoined_ns is not None:
        return ()
    others = set(waits["process"].tolist()) - {loop.process}
    if OWN_PASS in loop.loaders:  # those that load for the loop are in its waits
        others -= set(np.flatnonzero(loop.mine).tolist())
    mine = {at for at in others if run.processes[at].role == "consumer"}
    return tuple(
        f"process {run.processes[at].pid} ({_as_started(facts.command)})"
        for at in sorted(mine)
        if run.processes[at].rank == run.rank and (facts := run.facts_of(at)) is not None
    )


def _as_started(command: Sequence[str]) -> str:
    return shlex.join([*(PurePath(word).name for word in command[:1]), *command[1:]])


def training_process(run: RankRun) -> Process | None:
    """Return the process whose loop waited; else the first of its rank."""
    processes, rank = run.processes, run.exposure.rank
    if run.loop.process >= 0:
        return processes[run.loop.process]
    return next((each for each in processes if each.rank == rank), None)


def waits_and_walls(run: RankRun) -> tuple[tuple[Integers, Integers], tuple[Integers, Integers]]:
    """Return from when to when the loop waited, and from when to when its passes went on."""
    deliveries = run.deliveries
    waits = deliveries.requested_ns, deliveries.delivered_ns
    if len(deliveries):
        return waits, (deliveries.from_ns, deliveries.until_ns)
    spans = run.spans[(run.spans["flags"] & Flag.IO) == 0]  # of a process without a wait
    start_ns, end_ns = (np.sort(spans[name]).astype(np.int64) for name in ("start_ns", "end_ns"))
    return waits, (start_ns[:1], end_ns[-1:])


def wait_and_other_ns(run: RankRun, time_ns: Integers) -> tuple[Integers, Integers]:
    """Return of each step from a moment to the next what of it was waits, and what other time."""
    waits, walls = (
        np.diff(length_before(*each, time_ns)) if len(each[0]) else np.zeros(len(time_ns) - 1, int)
        for each in waits_and_walls(run)
    )
    return waits, walls - waits
