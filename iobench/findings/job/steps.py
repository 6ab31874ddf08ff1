"""The steps of one training process, as far as a comparison with others needs them; small."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.loop import ONLY
from iobench.analysis.time_intervals import covered
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.recording.span_reader import Anchor
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Stream = tuple[str, str, str, int, int]
NO_OPERATIONS: Final = ("wait", "hook")
"""Spans for operations that began before them, or for operations inside them."""


class Communication(msgspec.Struct, frozen=True):
    """How long collective operations held a training loop, how many, and their bytes."""

    held_ns: int
    n_operations: int
    nbytes: int | None


class RankSteps(msgspec.Struct, frozen=True):
    """One training process's waits and collective operations; times on its own machine's clock.

    Parameters
    ----------
    anchors : tuple of Anchor
        Of all its processes.
    from_ns, until_ns : int
        Begin of its first round and end of its last one.
    streams : tuple of tuple
        What ``stream`` points into: framework, class and name of a loader, which of those alike,
        and which of its rounds.
    stream, position : ndarray of int64, shape (n_batches,)
        Which step each delivery is.
    asked_ns, delivered_ns : ndarray of int64, shape (n_batches,)
        When the loop began to wait for it, and held it, in order of time. The end of the round
        before, and the start of its own, belong to what is waited for.
    step_wait_ns : ndarray of int64, shape (n_batches,)
        How long it waited in between.
    wait_start_ns, wait_end_ns : ndarray of int64, shape (n_waits,)
        All its waits.
    comm : Communication or None
        Collective operations of the training loop; None where none was recorded.
    """

    rank: int
    host: str
    boot_id: str
    anchors: tuple[Anchor, ...]
    from_ns: int
    until_ns: int
    wall_ns: int
    wait_ns: int
    n_batches: int
    streams: tuple[Stream, ...]
    stream: Integers
    position: Integers
    asked_ns: Integers
    delivered_ns: Integers
    step_wait_ns: Integers
    wait_start_ns: Integers
    wait_end_ns: Integers
    comm: Communication | None


def rank_steps(profile: RunData, loop: TrainingLoop, deliveries: Deliveries) -> RankSteps:
    """Return the steps of one training process; what its profile took need not be kept."""
    rows = np.flatnonzero(deliveries.batch >= 0)
    streams, stream = _streams(loop, deliveries)
    asked, delivered = deliveries.asked_ns, deliveries.delivered_ns[rows]
    first = np.append(0, rows[:-1] + 1) if len(rows) else rows
    waited = np.append(0, np.cumsum(deliveries.wait_ns))
    here = [each for each in profile.processes if each.rank == loop.rank]
    who = profile.processes[loop.process] if loop.process >= 0 else next(iter(here), None)
    return RankSteps(
        rank=loop.rank,
        host=who.host if who else "",
        boot_id=(who.boot_id or who.host) if who else "",
        anchors=tuple(anchor for each in here for anchor in each.anchors),
        from_ns=int(deliveries.from_ns[0]) if len(asked) else 0,
        until_ns=int(deliveries.until_ns[-1]) if len(asked) else 0,
        wall_ns=int(deliveries.wall_ns.sum()),
        wait_ns=int(deliveries.wait_ns.sum()),
        n_batches=len(rows),
        streams=streams,
        stream=stream[rows],
        position=deliveries.position[rows],
        asked_ns=asked[first],
        delivered_ns=delivered,
        step_wait_ns=waited[rows + 1] - waited[first],
        wait_start_ns=asked,
        wait_end_ns=deliveries.delivered_ns,
        comm=_communication(profile, loop, deliveries),
    )


def _communication(
    profile: RunData, loop: TrainingLoop, deliveries: Deliveries
) -> Communication | None:
    """Return what a loop communicated from its first wait to the end of its last step."""
    if not len(deliveries):
        return None
    spans = profile.spans
    comm = spans[
        (spans["kind"] == Kind.COMM)
        & (spans["process"] == loop.process)
        & (spans["thread"] == loop.thread)
        & ((spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0)
        & (spans["start_ns"] >= deliveries.from_ns[0])
        & (spans["start_ns"] < deliveries.until_ns[-1])
    ]
    if not len(comm):
        return None
    others = [number for number, text in enumerate(profile.strings) if text in NO_OPERATIONS]
    nbytes = comm["nbytes"][~np.isin(comm["label"], others)]
    return Communication(
        held_ns=covered(comm["start_ns"].astype(np.int64), comm["end_ns"].astype(np.int64)),
        n_operations=len(nbytes),
        nbytes=None if (nbytes < 0).any() else int(nbytes.sum()),
    )


def _streams(loop: TrainingLoop, deliveries: Deliveries) -> tuple[tuple[Stream, ...], Integers]:
    """Return a name for each round that other ranks use as well, and each delivery's round."""
    alike: Counter[tuple[str, str, str]] = Counter()
    names: dict[int, tuple[str, str, str, int]] = {}
    for number in sorted(loop.loaders):
        each = loop.loaders[number]
        who = ("", "", "") if number == ONLY else (each.framework, each.kind, each.name)
        names[number] = (*who, alike[who])
        alike[who] += 1
    passes: Counter[int] = Counter()
    found: list[Stream] = []
    rounds, first = np.unique(deliveries.round, return_index=True)
    for loader in deliveries.loader[first].tolist():
        found.append((*names.get(loader, ("", "", "", loader)), passes[loader]))
        passes[loader] += 1
    return tuple(found), np.searchsorted(rounds, deliveries.round)
