"""Collective operations of the ranks of a job: what they carry, and whom they wait for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.time_intervals import union
from iobench.frozen import frozen
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.profiles.contents import Profile

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

NAME: Final = re.compile(r"(?P<what>.*?)(?: (?P<way>from|to) (?P<root>\d+))?(?: of ranks .*)?")
"""How an operation is called: ``"reduce to 0 of ranks 0-3"``."""
NO_OPERATIONS: Final = ("wait", "hook")
"""What is done for operations that began before, or for such as follow."""
OF_ONE: Final = ("broadcast", "scatter", "buffers", "buckets", "reduce", "gather")
"""Operations from or to one rank."""
OF_TWO: Final = ("send", "recv")
LEFT_TOGETHER: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no rank leaves before all have come."""
NONE: Final = np.iinfo(np.int64).max


@frozen
class Communication:
    """What the training loop of one rank communicated; times on its own machine's clock.

    Parameters
    ----------
    names : tuple of str
        What ``name`` points into.
    name, entry_ns, end_ns, nbytes : ndarray of int64, shape (n_operations,)
        Of each operation, in order of time: when the rank came to it, and when the call ended.
    begun : ndarray of bool, same shape
        Whether it went on beside the loop then.
    delivery : ndarray of int64, same shape
        The delivery before it, -1 for none.
    held_start_ns, held_end_ns, held_by : ndarray of int64
        When the loop was held, apart and in order; and by which operation, -1 where that is one
        that began before.
    own_start_ns, own_end_ns : ndarray of int64
        When operations of all ranks, or of a group, went on of which that is known, and which
        carry bytes; apart and in order.
    own_nbytes : int
        What these carry.
    n_untold : int
        Operations of which nobody knows when they were done.
    """

    names: tuple[str, ...]
    name: Integers
    entry_ns: Integers
    end_ns: Integers
    nbytes: Integers
    begun: Marks
    delivery: Integers
    held_start_ns: Integers
    held_end_ns: Integers
    held_by: Integers
    own_start_ns: Integers
    own_end_ns: Integers
    own_nbytes: int
    n_untold: int

    def __len__(self) -> int:
        return len(self.name)

    @property
    def of_two(self) -> Marks:
        """Tell which operations are between two ranks."""
        marks = np.array([_parsed(text)[0] in OF_TWO for text in self.names], dtype=bool)
        found: Marks = marks[self.name]
        return found

    @property
    def held_ns(self) -> int:
        """How long the loop was held."""
        return int((self.held_end_ns - self.held_start_ns).sum())

    @property
    def carried_nbytes(self) -> int | None:
        """Bytes of all its operations; None where one does not say."""
        return None if (self.nbytes < 0).any() else int(self.nbytes.sum())


def communication_of(
    profile: Profile, loop: TrainingLoop, deliveries: Deliveries
) -> Communication | None:
    """Return what a training loop communicated; None where nothing of that was recorded.

    From its first wait to the end of its last step: before it, ranks wait for each other to start.
    """
    if not len(deliveries):
        return None
    spans = profile.spans
    comm = spans[(spans["kind"] == Kind.COMM) & (spans["process"] == loop.process)]
    comm = comm[
        (comm["start_ns"] >= deliveries.from_ns[0]) & (comm["start_ns"] < deliveries.until_ns[-1])
    ]
    in_loop = (comm["thread"] == loop.thread) & ((comm["flags"] & (Flag.DETAIL | Flag.IO)) == 0)
    if not in_loop.any():
        return None
    host = comm[in_loop]
    host = host[np.argsort(host["start_ns"], kind="stable")]
    texts = [profile.strings[number] for number in np.unique(host["label"]).tolist()]
    name = np.searchsorted(np.unique(host["label"]), host["label"]).astype(np.int64)
    operates = np.array([text not in NO_OPERATIONS for text in texts], dtype=bool)[name]
    rows = np.flatnonzero(operates)
    number = np.full(len(host), -1, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    pieces = leaf_pieces(host, np.zeros(len(host), dtype=np.int64))
    timed = pieces.duration_ns > 0
    begun = (host["flags"] & Flag.BEGUN) != 0
    # Of operations between two nobody knows who waited: they are in no rate.
    pairs = [number for number, text in enumerate(profile.strings) if _parsed(text)[0] in OF_TWO]
    joint = operates & ~np.isin(host["label"], pairs)
    beside = comm[(comm["flags"] & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL]
    beside = beside[~np.isin(beside["label"], pairs)]
    own = np.concatenate((host[joint & ~begun], beside))
    own = own[own["nbytes"] > 0]
    own_start, own_end = union(own["start_ns"].astype(np.int64), own["end_ns"].astype(np.int64))
    entry = host["start_ns"][rows].astype(np.int64)
    delivered_ns = deliveries.delivered_ns[deliveries.batch >= 0]
    return Communication(
        names=tuple(texts),
        name=name[rows],
        entry_ns=entry,
        end_ns=host["end_ns"][rows].astype(np.int64),
        nbytes=host["nbytes"][rows].astype(np.int64),
        begun=begun[rows],
        delivery=np.searchsorted(delivered_ns, entry, side="right") - 1,
        held_start_ns=pieces.start_ns[timed],
        held_end_ns=pieces.end_ns[timed],
        held_by=number[pieces.span[timed]],
        own_start_ns=own_start,
        own_end_ns=own_end,
        own_nbytes=int(own["nbytes"].sum()),
        n_untold=max(0, int((begun & joint).sum()) - len(beside)),
    )


@frozen
class PeerWaits:
    """Of the time that collective operations hold a rank, what is waiting for other ranks.

    Parameters
    ----------
    input_ns : int
        For their input.
    other_ns : int
        For what else they did before they came.
    own_ns : int
        Of the time that operations which carry bytes went on, until the last rank came.
    alone_ns, carries_alone : int and bool
        What operations hold it for of which nobody knows who waited, less `input_ns`; and whether
        such an operation carries bytes.
    """

    input_ns: int
    other_ns: int
    own_ns: int
    alone_ns: int
    carries_alone: bool


@frozen
class _Table:
    """The operations of all ranks, one row for each rank's part of one."""

    rank: Integers
    name: Integers
    operation: Integers
    entry: Integers
    end: Integers
    begun: Marks


def waited_by(start: Integers, end: Integers, time_ns: Integers) -> Integers:
    """Return how much of intervals, which are apart and in order, lies before each instant."""
    total = np.append(0, np.cumsum(end - start))
    place = np.searchsorted(start, time_ns, side="left")
    inside = place > 0
    waited: Integers = total[place]
    waited[inside] -= np.maximum(end[place[inside] - 1] - time_ns[inside], 0)
    return waited


def peer_waits(
    ranks: Sequence[int],
    all_comm: Sequence[Communication | None],
    waits: Sequence[tuple[Integers, Integers]],
    step_of: Sequence[Integers],
    later_asked: Integers,
    shifts: Sequence[int],
) -> list[PeerWaits | None]:
    """Return what each rank waits for in collective operations.

    An operation is the same on all ranks by its step, its name and its turn there. Who comes to
    it early waits until the last one comes: for input, as far as that one waited longer for its
    input since the operation before; else for what else it did. Where an operation is told by one
    rank alone, or is between two, waiting for input is the time in which any rank waits for it, up
    to where the first one asks for a later batch.

    Parameters
    ----------
    ranks : sequence of int
        Their numbers.
    waits : sequence of (ndarray, ndarray) of int64
        From when until when each waited for input; on the common clock.
    step_of : sequence of ndarray of int64
        The step of each rank's deliveries.
    later_asked : ndarray of int64
        By step, when the first rank asked for a later one; on the common clock.
    shifts : sequence of int
        What to add to the times of each rank.
    """
    table, texts = _tabled(all_comm, step_of, shifts)
    until, blamed = _last_come(table, texts, ranks)
    waited = _waited_before(table, texts, waits, blamed >= 0)
    excess = np.where(blamed >= 0, waited[blamed] - waited, 0)
    all_waits = union(*(np.concatenate(each) for each in zip(*waits, strict=True)))
    found: list[PeerWaits | None] = []
    for index, comm in enumerate(all_comm):
        if comm is None:
            found.append(None)
            continue
        rows = np.flatnonzero(table.rank == index)
        start, end = comm.held_start_ns + shifts[index], comm.held_end_ns + shifts[index]
        # One after another: who waits in two operations at once waits once.
        before = np.maximum.accumulate(np.append(0, until[rows]))[:-1] if len(rows) else rows
        since = np.maximum(table.entry[rows], before)
        upto = np.maximum(until[rows], since)
        held = waited_by(start, end, upto) - waited_by(start, end, since)
        own = comm.own_start_ns + shifts[index], comm.own_end_ns + shifts[index]
        of_input = np.minimum(held, np.maximum(excess[rows], 0))
        alone = (comm.held_by >= 0) & np.append(blamed[rows] < 0, False)[comm.held_by]
        cut = _asked_after(comm, step_of[index], later_asked)[comm.held_by[alone]]
        # Who begins the next step has left the operation: all input has come by then.
        stop = np.maximum(np.minimum(end[alone], cut), start[alone])
        shared = waited_by(*all_waits, stop) - waited_by(*all_waits, start[alone])
        found.append(
            PeerWaits(
                input_ns=int(of_input.sum()) + int(shared.sum()),
                other_ns=int((held - of_input).sum()),
                own_ns=int((waited_by(*own, upto) - waited_by(*own, since)).sum()),
                alone_ns=int((end[alone] - start[alone] - shared).sum()),
                carries_alone=bool(((blamed[rows] < 0) & (comm.nbytes > 0) & ~comm.of_two).any()),
            )
        )
    return found


def clock_bounds(
    all_comm: Sequence[Communication | None],
    step_of: Sequence[Integers],
    machine: Sequence[int],
) -> dict[int, tuple[int, int, int]]:
    """Return what operations that none leaves before all have come tell of clocks.

    Parameters
    ----------
    step_of : sequence of ndarray of int64
        The step of each rank's deliveries.
    machine : sequence of int
        Of each rank, from 0, whose clock is the common one.

    Returns
    -------
    dict of int to (int, int, int)
        By machine: the least and the most that is to be added to its times, and by how many
        operations that is known. Those of which nothing is known are not there.
    """
    table, texts = _tabled(all_comm, step_of, [0] * len(all_comm))
    together = np.array([_parsed(text)[0] in LEFT_TOGETHER for text in texts], dtype=bool)
    rows = np.flatnonzero(together[table.name] & ~table.begun) if len(texts) else table.name
    place = np.array(machine, dtype=np.int64)[table.rank[rows]]
    n_operations = int(table.operation.max(initial=-1)) + 1
    entry = np.full((max(machine, default=0) + 1, n_operations), -NONE)
    end = np.full(entry.shape, NONE)
    np.maximum.at(entry, (place, table.operation[rows]), table.entry[rows])
    np.minimum.at(end, (place, table.operation[rows]), table.end[rows])
    found = {}
    for number in range(1, len(entry)):
        both = (entry[0] > -NONE) & (entry[number] > -NONE)
        if both.any():
            least = int((entry[0][both] - end[number][both]).max())
            most = int((end[0][both] - entry[number][both]).min())
            found[number] = (least, most, int(both.sum()))
    return found


def _parsed(text: str) -> tuple[str, str, int]:
    """Return what an operation is, and whether it goes ``"from"`` or ``"to"`` which rank."""
    told = NAME.fullmatch(text)
    assert told is not None
    return told["what"], told["way"] or "", int(told["root"] or -1)


def _tabled(
    all_comm: Sequence[Communication | None], step_of: Sequence[Integers], shifts: Sequence[int]
) -> tuple[_Table, tuple[str, ...]]:
    number: dict[str, int] = {}
    columns: list[list[Integers]] = [[np.zeros(0, dtype=np.int64)] for _ in range(6)]
    for index, comm in enumerate(all_comm):
        if comm is None:
            continue
        known = [number.setdefault(text, len(number)) for text in comm.names]
        name = np.array(known, dtype=np.int64)[comm.name]
        step = np.append(step_of[index], -1)[comm.delivery]
        columns[0].append(np.full(len(comm), index))
        columns[1].append(name)
        columns[2].append(step)
        columns[3].append(comm.entry_ns + shifts[index])
        columns[4].append(comm.end_ns + shifts[index])
        columns[5].append(comm.begun.astype(np.int64))
    rank, name, step, entry, end, begun = map(np.concatenate, columns)
    turn = _turns(rank, step, name)
    order = np.lexsort((turn, name, step))
    changes = np.zeros(len(order), dtype=bool)
    for column in (turn, name, step):
        changes |= np.diff(column[order], prepend=-2) != 0
    operation = np.empty(len(order), dtype=np.int64)
    operation[order] = np.cumsum(changes) - 1
    return _Table(rank, name, operation, entry, end, begun != 0), tuple(number)


def _turns(rank: Integers, step: Integers, name: Integers) -> Integers:
    """Return how many operations of that name each rank had in that step before."""
    order = np.lexsort((name, step, rank))
    changes = np.zeros(len(order), dtype=bool)
    for column in (name, step, rank):
        changes |= np.diff(column[order], prepend=-2) != 0
    first = np.flatnonzero(changes)
    turn = np.empty(len(order), dtype=np.int64)
    lengths = np.diff(np.append(first, len(order)))
    turn[order] = np.arange(len(order)) - np.repeat(first, lengths)
    return turn


def _last_come(
    table: _Table, texts: tuple[str, ...], ranks: Sequence[int]
) -> tuple[Integers, Integers]:
    """Return until when each row waits for others, and the row of the one that it waits for.

    That is its own row where it waits for nobody, and -1 where unknown.
    """
    until, blamed = table.entry.copy(), np.full(len(table.entry), -1, dtype=np.int64)
    order = np.lexsort((table.entry, table.operation))
    ends = np.flatnonzero(np.diff(table.operation[order], append=-1) != 0)
    last = order[ends]
    several = np.diff(ends, prepend=-1) > 1
    numbers = np.array(ranks, dtype=np.int64)
    parsed = [_parsed(text) for text in texts]
    told = np.array(
        [what not in OF_TWO and (what not in OF_ONE or way != "") for what, way, _ in parsed],
        dtype=bool,
    )
    known = np.flatnonzero(several[table.operation] & told[table.name])
    way = np.array([each for _, each, _ in parsed], dtype=np.str_)[table.name[known]]
    root = np.array([each for _, _, each in parsed], dtype=np.int64)[table.name[known]]
    is_root = numbers[table.rank[known]] == root
    of_root = np.full(len(last), -1, dtype=np.int64)
    of_root[table.operation[known[is_root]]] = known[is_root]
    blamed[known] = last[table.operation[known]]
    of_its_root = (way != "") & ~is_root
    blamed[known[of_its_root]] = of_root[table.operation[known[of_its_root]]]
    # From or to one rank, who need not wait may be gone before others come.
    gone = known[way != ""]
    gone = gone[(blamed[gone] >= 0) & (table.entry[blamed[gone]] > table.end[gone])]
    blamed[gone] = gone
    waits = blamed >= 0
    until[waits] = table.entry[blamed[waits]]
    until = np.where(table.begun, until, np.minimum(until, table.end))
    return np.maximum(until, table.entry), blamed


def _waited_before(
    table: _Table,
    texts: tuple[str, ...],
    waits: Sequence[tuple[Integers, Integers]],
    chosen: Marks,
) -> Integers:
    """Return how long each row's rank waited for input since its last operation of that group."""
    waited = np.zeros(len(table.entry), dtype=np.int64)
    group = np.array([_numbers([_group(text) for text in texts])], dtype=np.int64).reshape(-1)
    for index, intervals in enumerate(waits):
        rows = np.flatnonzero((table.rank == index) & chosen)
        so_far = waited_by(*intervals, table.entry[rows])
        of_group = group[table.name[rows]]
        for number in np.unique(of_group).tolist():
            own = of_group == number
            waited[rows[own]] = np.diff(so_far[own], prepend=0)
    return waited


def _group(text: str) -> str:
    return text.partition(" of ranks ")[2]


def _numbers(names: Sequence[str]) -> list[int]:
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return [number[name] for name in names]


def _asked_after(comm: Communication, step_of: Integers, later_asked: Integers) -> Integers:
    """Return when the first rank asked for a batch of a later step than each operation's."""
    cut = np.full(len(comm), NONE)
    after = comm.delivery >= 0
    cut[after] = later_asked[step_of[comm.delivery[after]]]
    return cut
