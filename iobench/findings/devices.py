"""How long a device had nothing to do for lack of the next batch, and what copies to it cost.

The training loop may wait while the device still works through what it was given: such a wait
costs nothing. So a delivery's exposure on the device begins when the batch was requested and the
device was done with all before it, and ends where its first work on that batch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.findings.contract import Finding
from iobench.recording.device_lane import ANCHOR
from iobench.recording.kinds import (
    OTHER,
    Kind,
    Trait,
    is_one_of,
    kind_named,
    kinds_that,
    stage_name,
)
from iobench.recording.span_file import Flag
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]

USE_KINDS: Final = kinds_that(Trait.USES_BATCH)
"""Work on a batch. Regions under other names may hold anything, the wait itself included."""
NEVER: Final = np.iinfo(np.int64).max


class Copies(msgspec.Struct, frozen=True):
    """The copies of batches to devices, over the whole run; None is unknown.

    ``exposed_ns`` is how long they kept a device with nothing else to do from a batch that the loop
    was after; ``bytes_per_s`` is over the time that devices copied, by their own marks; ``memory``
    is ``pinned`` or ``pageable``, which is slower to copy from.
    """

    nbytes: int | None
    exposed_ns: int | None
    bytes_per_s: float | None
    memory: str | None


class DeviceSums(msgspec.Struct, frozen=True):
    """What the devices of one training process waited for, in sum; None where no work was timed.

    ``exposed_ns`` is how long they had no work for lack of input, ``covered_ns`` how much of the
    loop's wait lay under their work, ``busy_ns`` device time by stage (regions may overlap).
    """

    exposed_ns: int | None = None
    covered_ns: int | None = None
    busy_ns: Mapping[str, int] = {}
    copies: Copies | None = None


class DeviceExposure(msgspec.Struct, frozen=True):
    """What the devices of one training process waited for; arrays of one row per wait.

    ``drained_ns`` is when they were done with all they had been given before, at least
    ``requested_ns``; ``use_ns`` when the first work on the batch began, without any
    ``delivered_ns`` or the end of its copy. ``batch`` is -1 for a wait that brought none.
    ``copying_ns`` is how much of what is exposed the copies of these batches took,
    ``uncertainty_ns`` by how much the device's times may be earlier than recorded, at most.
    """

    requested_ns: Integers
    delivered_ns: Integers
    drained_ns: Integers
    use_ns: Integers
    batch: Integers
    busy_ns: dict[str, int]
    uncertainty_ns: int
    copying_ns: int

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def exposed_ns(self) -> Integers:
        """How long the devices had no work for lack of each batch; these never overlap."""
        exposed: Integers = np.maximum(self.use_ns - self.drained_ns, 0)
        return exposed

    @property
    def covered_ns(self) -> int:
        """How much of the loop's wait lay under work of the devices."""
        under_work = np.minimum(self.drained_ns, self.delivered_ns) - self.requested_ns
        return int(np.maximum(under_work, 0).sum())


def device_sums(run: RankRun) -> DeviceSums | None:
    """Return what the devices of a training process did and waited for; None without any.

    Copies alone do not report what a device waited for: what else it did meanwhile is not known.
    """
    exposure = device_exposure(run, run.rank)
    if exposure is None:
        copies = _copies(run, None)
        return None if copies is None else DeviceSums(copies=copies)
    if not any(kind_named(stage) in USE_KINDS for stage in exposure.busy_ns):
        return DeviceSums(busy_ns=exposure.busy_ns, copies=_copies(run, None))
    return DeviceSums(
        exposed_ns=int(exposure.exposed_ns.sum()),
        covered_ns=exposure.covered_ns,
        busy_ns=exposure.busy_ns,
        copies=_copies(run, exposure.copying_ns),
    )


def device_exposure(run: RunData, rank: int = 0) -> DeviceExposure | None:
    """Return what the devices of a training process waited for; None if none were timed.

    Of a process that was killed, waits count up to the last one whose work was recorded.
    """
    of_rank = [each.role == "consumer" and each.rank == rank for each in run.processes]
    spans = run.spans[np.array(of_rank, dtype=bool)[run.spans["process"]]]
    of_device = (spans["flags"] & Flag.DEVICE) != 0
    device = spans[of_device]
    if not len(device):
        return None
    waits = spans[~of_device & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)]
    waits = waits[np.argsort(waits["start_ns"], kind="stable")]
    requested, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    batch = waits["batch"].astype(np.int64)
    work = device[is_one_of(device["kind"], USE_KINDS | {Kind.H2D})]
    place = _deliveries_of(work, batch, delivered)
    if not all(run.processes[process].closed for process in np.unique(spans["process"])):
        known = int(place.max(initial=-1)) + 1
        requested, delivered, batch = requested[:known], delivered[:known], batch[:known]
    drained, use = _edges(work, place, requested, delivered)
    is_anchor = (device["kind"] == Kind.OTHER) & (device["label"] == run.string_number(ANCHOR))
    return DeviceExposure(
        requested_ns=requested,
        delivered_ns=delivered,
        drained_ns=drained,
        use_ns=use,
        batch=batch,
        busy_ns=_busy(run, device[~is_anchor]),
        uncertainty_ns=int(_length(device[is_anchor]).max(initial=0)),
        copying_ns=_under_copies(work, place, drained, use),
    )


def _length(spans: NDArray[Any]) -> Integers:
    length: Integers = (spans["end_ns"] - spans["start_ns"]).astype(np.int64)
    return length


def _deliveries_of(work: NDArray[Any], batch: Integers, delivered: Integers) -> Integers:
    """Return the delivery after which the device was given each piece of work, -1 before all.

    That is its batch's. Work without one counts for the last delivery before it began.
    """
    if not len(batch):
        return np.full(len(work), -1, dtype=np.int64)
    order = np.argsort(batch, kind="stable")
    numbers = work["batch"].astype(np.int64)
    place = order[np.minimum(np.searchsorted(batch[order], numbers), len(batch) - 1)]
    known = (numbers >= 0) & (batch[place] == numbers)
    before = np.searchsorted(delivered, work["start_ns"], side="right") - 1
    return np.where(known, place, before).astype(np.int64)


def _edges(
    work: NDArray[Any], place: Integers, requested: Integers, delivered: Integers
) -> tuple[Integers, Integers]:
    """Return for each wait when the devices were done with all before it, and when they used it."""
    n_waits = len(requested)
    starts, ends = work["start_ns"].astype(np.int64), work["end_ns"].astype(np.int64)
    latest = np.full(n_waits + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, place + 1, ends)  # in slot k: given after delivery k - 1
    drained = np.maximum(np.maximum.accumulate(latest)[:n_waits], requested)
    used, copied = np.full(n_waits, NEVER), np.full(n_waits, -1, dtype=np.int64)
    is_copy = work["kind"] == Kind.H2D
    inside = place >= 0
    np.minimum.at(used, place[inside & ~is_copy], starts[inside & ~is_copy])
    np.maximum.at(copied, place[inside & is_copy], ends[inside & is_copy])
    use = np.where(used < NEVER, used, np.where(copied >= 0, copied, delivered))
    return drained, np.maximum(use, requested)


def _busy(run: RunData, device: NDArray[Any]) -> dict[str, int]:
    busy: dict[str, int] = {}
    for kind, label in np.unique(device[["kind", "label"]]).tolist():
        chosen = device[(device["kind"] == kind) & (device["label"] == label)]
        busy[stage_name(Kind(kind), run.strings[label])] = int(_length(chosen).sum())
    return busy


def _under_copies(work: NDArray[Any], place: Integers, drained: Integers, use: Integers) -> int:
    """Return how much of the times between ``drained`` and ``use`` of each wait its copies took."""
    mine = (work["kind"] == Kind.H2D) & (place >= 0)
    at = place[mine]
    starts = np.maximum(work["start_ns"][mine].astype(np.int64), drained[at])
    ends = np.minimum(work["end_ns"][mine].astype(np.int64), use[at])
    copying = np.zeros(len(drained), dtype=np.int64)
    np.add.at(copying, at, np.maximum(ends - starts, 0))
    # Of a batch with copies in several queues no instant counts twice.
    return int(np.minimum(copying, np.maximum(use - drained, 0)).sum())


def _copies(run: RankRun, exposed_ns: int | None) -> Copies | None:
    """Return what copies of batches took; None without any.

    What a script moves and is of no batch, as a model, has a label and is not among them.
    """
    spans, facts = run.spans, run.about.device
    is_copy = (spans["kind"] == Kind.H2D) & (spans["batch"] >= 0)
    copies = spans[is_copy & (spans["label"] != run.string_number(OTHER))]
    of_device = (copies["flags"] & Flag.DEVICE) != 0
    host, device = copies[~of_device & (copies["nbytes"] != 0)], copies[of_device]
    timed = device if len(device) else host
    if not len(timed):
        return None
    nbytes = int(timed["nbytes"].sum()) if (timed["nbytes"] > 0).all() else None
    device_ns = int(_length(device).sum())
    rate = nbytes * 1e9 / device_ns if nbytes is not None and device_ns else None
    memory = None if facts is None else facts.memory
    # Where a thread pins batches there is no other.
    if any(row.kind == Kind.PIN and row.busy_ns for row in run.exposure.whole.stages):
        memory = "pinned"
    return Copies(nbytes, exposed_ns if len(device) else None, rate, memory)


def device_section(device: DeviceSums) -> Section:
    """Return how long the devices had nothing to do, what of the wait cost nothing, and copies."""
    return Section("device", "Devices", sentences(_texts(device)))


def _texts(device: DeviceSums) -> Iterator[str]:
    if device.exposed_ns is not None:
        yield (
            f"The device was idle for lack of a batch for {units.duration(device.exposed_ns)}; "
            f"{units.duration(device.covered_ns)} of the loop's wait was covered by queued work."
        )
    copies = device.copies
    if copies is None:
        return
    memory = "" if copies.memory is None else f" from {copies.memory} memory"
    rate = units.byte_rate(copies.bytes_per_s)
    yield f"Copied to it{memory}: {units.nbytes(copies.nbytes)} at {rate}."
    if copies.exposed_ns is not None:
        yield f"Copies kept it idle for {units.duration(copies.exposed_ns)}; the rest was hidden."


FINDING: Final = Finding("device", 200, DeviceSums, device_sums, device_section)
