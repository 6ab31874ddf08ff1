"""What threads beside those that make batches read and decoded for no batch that anybody knows of.

Libraries that download, decompress or look ahead do so in threads of their own. Which batch that
is for is often not known, and often it is for several: then no wait can be charged to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from iobench.analysis.ledger import Ledger
from iobench.analysis.partition import leaf_pieces
from iobench.analysis.stage_table import StageTable
from iobench.json_keys import key
from iobench.recording.kinds import WORKER_KINDS, is_one_of
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import halves, lane_keys

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

MAKES_BATCHES: Final = "MainThread"
"""The thread of a loading process that batches are made in; before the first it opens files."""


class BackgroundStage(msgspec.Struct, frozen=True):
    """One stage of such threads.

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``.
    busy_ns : int
        Their time in this stage and in no stage inside it.
    nbytes : int or None
        Bytes handed on; None where a span does not say.
    n_spans : int
        How often it was timed.
    """

    stage: str
    busy_ns: int
    nbytes: int | None
    n_spans: int


class Background(msgspec.Struct, frozen=True):
    """What threads read and decoded that is of no known batch.

    Parameters
    ----------
    stages : tuple of BackgroundStage
        Longest first.
    n_threads : int
        How many threads did it, over all loading processes and the training process.
    """

    stages: tuple[BackgroundStage, ...]
    n_threads: int
    JSON_KEYS: ClassVar = {
        "n_threads": key("threads"),
    }


def background_of(run: RankRun) -> Background | None:
    """Return what such threads did while the training loop ran; None where there are none."""
    waits = run.deliveries
    if not len(waits):
        return None
    spans = run.loop.spans_of(run.profile)
    spans = spans[(spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0]
    lanes, lane = np.unique(lane_keys(spans), return_inverse=True)
    lane = lane.reshape(-1)
    beside = np.array([_is_beside(run, *halves(each)) for each in lanes.tolist()], dtype=bool)
    beside[lane[spans["batch"] >= 0]] = False
    chosen = beside[lane] & is_one_of(spans["kind"], WORKER_KINDS)
    chosen &= (spans["start_ns"] >= waits.asked_ns[0]) & (spans["start_ns"] < waits.until_ns[-1])
    spans, lane = spans[chosen], lane[chosen].astype(np.int64)
    if not len(spans):
        return None
    ledger = Ledger(0, StageTable(spans, run.profile.strings))
    pieces = leaf_pieces(spans, lane)
    stage = ledger.stages.of_span[pieces.span]
    ledger.count(spans, pieces, stage, np.zeros(len(stage), dtype=np.int64))
    np.add.at(ledger.busy_ns[0], stage, pieces.duration_ns)
    found = [
        BackgroundStage(
            ledger.stages.names[at],
            int(ledger.busy_ns[0, at]),
            None if ledger.nbytes_unknown[0, at] else int(ledger.nbytes[0, at]),
            int(ledger.n_spans[0, at]),
        )
        for at in np.flatnonzero(ledger.n_spans[0]).tolist()
    ]
    found.sort(key=lambda each: (-each.busy_ns, each.stage))
    return Background(tuple(found), len(np.unique(lane)))


def _is_beside(run: RankRun, process: int, thread: int) -> bool:
    """Say whether a thread may be one beside those that make batches or train."""
    if (process, thread) == (run.loop.process, run.loop.thread):
        return False
    return run.profile.processes[process].threads[thread] != MAKES_BATCHES
