"""What copying batches from the host's memory to devices took, and what of that nothing hid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.json_keys import HIDDEN, figure
from iobench.recording.kinds import OTHER, Kind, copies_batches
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.runs.run_facts import DeviceFacts

Integers = NDArray[np.int64]

PINNED: Final = "pinned"
PAGEABLE: Final = "pageable"


class HostToDevice(msgspec.Struct, frozen=True):
    """The copies of batches to devices, over the whole run.

    Parameters
    ----------
    n_copies : int
        How many there were: of a batch one or several.
    nbytes : int or None
        Bytes of them; null where not all report them.
    loop_ns : int
        Time of the training loop's own thread that went into copies, between its waits.
    waited_ns : int
        How long the loop waited for copies, which other threads or it made then: for those of
        the batch, and for the ones that were before it in the queue.
    hidden_ns : int
        Time of other threads in copies that were not waited for.
    wall_ns : int
        Of the run.
    in_loop : bool
        Whether no other thread than the loop's made any.
    device_ns : int or None
        How long the devices copied, by their own marks; null where those were not put.
    device_exposed_ns : int or None
        What of it lay where a device had nothing else to do and the loop was after that batch; null
        where other work of the devices was not timed.
    memory : str or None
        What was copied from: ``"pinned"`` memory, which a device reads by itself, or
        ``"pageable"``; null where that is not known.
    pinned_bytes_per_s, pageable_bytes_per_s : float or None
        What the link carried before the run, in copies as large as a batch.
    large_bytes_per_s : float or None
        The same from pinned memory in larger copies; null where a batch is as large.
    """

    n_copies: int
    nbytes: int | None
    loop_ns: int
    waited_ns: int
    hidden_ns: int
    wall_ns: int
    in_loop: bool
    device_ns: int | None = None
    device_exposed_ns: int | None = None
    memory: str | None = None
    pinned_bytes_per_s: float | None = None
    pageable_bytes_per_s: float | None = None
    large_bytes_per_s: float | None = None
    JSON_KEYS: ClassVar = {
        "wall_ns": HIDDEN,
        "in_loop": HIDDEN,
    }

    @figure
    def bytes_per_s(self) -> float | None:
        """Bytes over the time that the devices copied; null where that is not known.

        Threads of the host may only have begun a copy, or waited for others: their time is no
        measure of it.
        """
        if self.nbytes is None or not self.device_ns:
            return None
        return self.nbytes * 1e9 / self.device_ns

    @figure
    def limit_bytes_per_s(self) -> float | None:
        """What the link was measured to carry from such memory; null where it was not."""
        rates = {PINNED: self.pinned_bytes_per_s, PAGEABLE: self.pageable_bytes_per_s}
        return None if self.memory is None else rates[self.memory]

    @figure
    def limit_fraction(self) -> float | None:
        """The rate as a share of that limit."""
        if self.bytes_per_s is None or not self.limit_bytes_per_s:
            return None
        return self.bytes_per_s / self.limit_bytes_per_s

    @property
    def lost_ns(self) -> int:
        """What copies cost: of the devices' time where that is known, else of the loop's."""
        if self.device_exposed_ns is not None:
            return self.device_exposed_ns
        return self.loop_ns + self.waited_ns

    @property
    def lost_fraction(self) -> float:
        """The same as a share of the run's time."""
        return self.lost_ns / self.wall_ns if self.wall_ns else 0.0


def copies_of(run: RankRun, device_exposed_ns: int | None) -> HostToDevice | None:
    """Return what copies of batches took; None where none was seen.

    What a script moves and is of no batch, as a model, has a label and is not among them.
    """
    spans, whole, about = run.spans, run.exposure.whole, run.about
    is_copy = (spans["kind"] == Kind.H2D) & (spans["batch"] >= 0)
    copies = spans[is_copy & (spans["label"] != run.string_number(OTHER))]
    of_device = (copies["flags"] & Flag.DEVICE) != 0
    host, device = copies[~of_device & (copies["nbytes"] != 0)], copies[of_device]
    if not len(host) and not len(device):
        return None
    timed = device if len(device) else host
    rows = [row for row in whole.stages if copies_batches(row.stage)]
    queued = [row for row in whole.stages if row.kind == Kind.COPY_QUEUE]
    has_pinned = any(row.kind == Kind.PIN and row.busy_ns for row in whole.stages)
    link = None if about.device is None else about.device.link
    return HostToDevice(
        n_copies=len(timed),
        nbytes=int(timed["nbytes"].sum()) if (timed["nbytes"] > 0).all() else None,
        loop_ns=sum(row.busy_ns for row in whole.compute_stages if row.stage == Kind.H2D.spelled),
        waited_ns=sum(row.exposed_ns for row in (*rows, *queued)),
        hidden_ns=sum(row.hidden_ns for row in rows),
        wall_ns=whole.wall_ns,
        in_loop=_are_threads_of(spans[spans["kind"] == Kind.WAIT], host),
        device_ns=int((device["end_ns"] - device["start_ns"]).sum()) if len(device) else None,
        device_exposed_ns=device_exposed_ns if len(device) else None,
        memory=_memory(about.device, has_pinned=has_pinned),
        pinned_bytes_per_s=None if link is None else link.pinned_bytes_per_s,
        pageable_bytes_per_s=None if link is None else link.pageable_bytes_per_s,
        large_bytes_per_s=None if link is None else link.large_bytes_per_s,
    )


def _are_threads_of(waits: NDArray[Any], host: NDArray[Any]) -> bool:
    place = ["process", "thread"]
    loops = {tuple(each) for each in np.unique(waits[place]).tolist()}
    return loops.issuperset(tuple(each) for each in np.unique(host[place]).tolist())


def _memory(device: DeviceFacts | None, *, has_pinned: bool) -> str | None:
    """Return from what memory batches were copied; whose device pins all there is no other."""
    link = None if device is None else device.link
    if has_pinned or (link is not None and link.pageable_bytes_per_s is None):
        return PINNED
    return None if device is None else device.memory


def under_copies(work: NDArray[Any], place: Integers, drained: Integers, use: Integers) -> int:
    """Return how much of the times between ``drained`` and ``use`` of each wait its copies took.

    ``place`` says of which wait each piece of work is, -1 of none.
    """
    mine = (work["kind"] == Kind.H2D) & (place >= 0)
    at = place[mine]
    starts = np.maximum(work["start_ns"][mine].astype(np.int64), drained[at])
    ends = np.minimum(work["end_ns"][mine].astype(np.int64), use[at])
    found = np.zeros(len(drained), dtype=np.int64)
    np.add.at(found, at, np.maximum(ends - starts, 0))
    # Of a batch with copies in several queues no instant counts twice.
    return int(np.minimum(found, np.maximum(use - drained, 0)).sum())
