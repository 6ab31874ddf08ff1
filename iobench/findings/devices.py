"""How long a device had nothing to do for lack of the next batch, and what copies to it cost.

The training loop may wait while the device still works through what it was given: such a wait
costs nothing. So a delivery's exposure on the device begins when the batch was requested and the
device was done with all before it, and ends where its first work on that batch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, figure
from iobench.recording.device_lane import ANCHOR
from iobench.recording.kinds import (
    OTHER,
    Kind,
    Trait,
    copies_batches,
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
PINNED: Final = "pinned"
PAGEABLE: Final = "pageable"
WORTH_SAYING: Final = 0.05
"""Share of the time from which what copies cost is said with what shortens it."""
AT_LIMIT: Final = 0.8
"""Of the link's rate, from which on copies are as fast as they get."""
MUCH_FASTER: Final = 1.2


class HostToDevice(msgspec.Struct, frozen=True):
    """The copies of batches to devices, over the whole run.

    Parameters
    ----------
    nbytes : int or None
        Bytes of them; null where not all report them.
    loop_ns : int
        Time of the training loop's own thread in copies, between its waits.
    waited_ns : int
        How long the loop waited for copies, those that were queued before its batch's too.
    hidden_ns : int
        Time of other threads in copies that were not waited for.
    device_ns, device_exposed_ns : int or None
        How long devices copied, by their own marks, and what of it lay where a device had nothing
        else to do and the loop was after that batch; null where that was not timed.
    memory : str or None
        What was copied from: ``"pinned"`` or ``"pageable"`` memory; null is unknown.
    limit_bytes_per_s : float or None
        What the link carried from such memory before the run, in copies as large as a batch.
    pinned_gain : float or None
        How many times as much it carried from pinned memory as from pageable memory.
    """

    n_copies: int
    nbytes: int | None
    loop_ns: int
    waited_ns: int
    hidden_ns: int
    wall_ns: int
    in_loop: bool
    device_ns: int | None
    device_exposed_ns: int | None
    memory: str | None
    limit_bytes_per_s: float | None
    pinned_gain: float | None
    JSON_KEYS: ClassVar = dict.fromkeys(("wall_ns", "in_loop", "memory", "pinned_gain"), HIDDEN)

    @figure
    def bytes_per_s(self) -> float | None:
        """Bytes over the time that the devices copied; the host's threads may wait for others."""
        known = self.nbytes is not None and self.device_ns
        return self.nbytes * 1e9 / self.device_ns if known else None  # type: ignore[operator]

    @property
    def limit_fraction(self) -> float | None:
        """The rate as a share of the limit."""
        rate, limit = self.bytes_per_s, self.limit_bytes_per_s
        return rate / limit if rate is not None and limit else None

    @property
    def lost_fraction(self) -> float:
        """What copies cost, of the devices' time if that is known, as a share of the run's."""
        lost_ns = self.device_exposed_ns
        lost_ns = self.loop_ns + self.waited_ns if lost_ns is None else lost_ns
        return lost_ns / self.wall_ns if self.wall_ns else 0.0


class GpuUsage(msgspec.Struct, frozen=True):
    """What a driver reported of one GPU during a run, all processes together; null is unknown.

    ``busy_fraction`` is of the time before a reading, ``used_nbytes`` its memory at most.
    """

    title: str
    n_readings: int
    busy_fraction: float | None
    used_nbytes: int | None
    JSON_KEYS: ClassVar = {"n_readings": HIDDEN}


class DeviceSums(msgspec.Struct, frozen=True):
    """What the devices of one training process waited for, in sum.

    Parameters
    ----------
    devices : tuple of str
        Its devices, as far as they were timed; a time counts in which none of them had work.
    host_wait_ns : int
        How long the training loop waited.
    exposed_ns : int or None
        How long the devices had no work for lack of input; null where no work was timed.
    covered_ns : int or None
        How much of the loop's wait lay under work of the devices; null likewise.
    busy_ns : mapping of str to int
        Device time by stage; regions may overlap.
    uncertainty_ns : int
        By how much the device's times may be earlier than recorded, on the host's clock, at most.
    """

    devices: tuple[str, ...]
    host_wait_ns: int
    exposed_ns: int | None = None
    covered_ns: int | None = None
    busy_ns: Mapping[str, int] = {}
    uncertainty_ns: int = 0
    copies: HostToDevice | None = None
    usage: tuple[GpuUsage, ...] = ()
    JSON_KEYS: ClassVar = {
        "devices": HIDDEN,
        "host_wait_ns": HIDDEN,
    }


class DeviceExposure(msgspec.Struct, frozen=True):
    """What the devices of one training process waited for; arrays of one row per wait.

    Parameters
    ----------
    drained_ns : ndarray of int64
        When the devices were done with all they had been given before the loop asked; ``asked_ns``
        where that is earlier.
    use_ns : ndarray of int64
        When the first work on the batch began; where none was recorded, ``delivered_ns`` or the
        end of its copy to the device. Never before ``asked_ns``.
    batch : ndarray of int64
        -1 for a wait that brought none.
    copying_ns : int
        How much of what is exposed the copies of these batches took.
    """

    devices: tuple[str, ...]
    asked_ns: Integers
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
    def sums(self) -> DeviceSums:
        """The same without each single wait."""
        under_work = np.minimum(self.drained_ns, self.delivered_ns) - self.asked_ns
        return DeviceSums(
            self.devices,
            host_wait_ns=int((self.delivered_ns - self.asked_ns).sum()),
            exposed_ns=int(self.exposed_ns.sum()),
            covered_ns=int(np.maximum(under_work, 0).sum()),
            busy_ns=self.busy_ns,
            uncertainty_ns=self.uncertainty_ns,
        )


def device_figures(run: RankRun) -> DeviceSums | None:
    """Return what is known of the devices of a training process; None if nothing is."""
    sums, usage = run.cached(device_sums), _usage(run)
    if sums is None and usage:
        sums = DeviceSums((), run.exposure.whole.wait_ns)
    return None if sums is None else replace(sums, usage=usage)


def device_sums(run: RankRun) -> DeviceSums | None:
    """Return what the devices of a training process did and waited for; None without any.

    Copies alone do not report what a device waited for: what else it did meanwhile is not known.
    """
    exposure = device_exposure(run, run.rank)
    if exposure is None:
        copies, device = _copies(run, None), run.about.device
        names = () if device is None else (device.name,)
        wait_ns = run.exposure.whole.wait_ns
        return None if copies is None else DeviceSums(names, wait_ns, copies=copies)
    if any(kind_named(stage) in USE_KINDS for stage in exposure.busy_ns):
        return replace(exposure.sums, copies=_copies(run, exposure.copying_ns))
    return replace(exposure.sums, exposed_ns=None, covered_ns=None, copies=_copies(run, None))


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
    names = np.unique(device[["process", "thread"]]).tolist()
    is_anchor = (device["kind"] == Kind.OTHER) & (device["label"] == run.string_number(ANCHOR))
    return DeviceExposure(
        devices=tuple(sorted({run.processes[each].threads[thread] for each, thread in names})),
        asked_ns=requested,
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
    work: NDArray[Any], place: Integers, asked: Integers, delivered: Integers
) -> tuple[Integers, Integers]:
    """Return for each wait when the devices were done with all before it, and when they used it."""
    n_waits = len(asked)
    starts, ends = work["start_ns"].astype(np.int64), work["end_ns"].astype(np.int64)
    latest = np.full(n_waits + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, place + 1, ends)  # in slot k: given after delivery k - 1
    drained = np.maximum(np.maximum.accumulate(latest)[:n_waits], asked)
    used, copied = np.full(n_waits, NEVER), np.full(n_waits, -1, dtype=np.int64)
    is_copy = work["kind"] == Kind.H2D
    inside = place >= 0
    np.minimum.at(used, place[inside & ~is_copy], starts[inside & ~is_copy])
    np.maximum.at(copied, place[inside & is_copy], ends[inside & is_copy])
    use = np.where(used < NEVER, used, np.where(copied >= 0, copied, delivered))
    return drained, np.maximum(use, asked)


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


def _copies(run: RankRun, device_exposed_ns: int | None) -> HostToDevice | None:
    """Return what copies of batches took; None without any.

    What a script moves and is of no batch, as a model, has a label and is not among them.
    """
    spans, whole, facts = run.spans, run.exposure.whole, run.about.device
    is_copy = (spans["kind"] == Kind.H2D) & (spans["batch"] >= 0)
    copies = spans[is_copy & (spans["label"] != run.string_number(OTHER))]
    of_device = (copies["flags"] & Flag.DEVICE) != 0
    host, device = copies[~of_device & (copies["nbytes"] != 0)], copies[of_device]
    timed = device if len(device) else host
    if not len(timed):
        return None
    rows = [row for row in whole.stages if copies_batches(row.stage)]
    queued = [row for row in whole.stages if row.kind == Kind.COPY_QUEUE]
    link, memory = None if facts is None else facts.link, None if facts is None else facts.memory
    pinned = None if link is None else link.pinned_bytes_per_s
    pageable = None if link is None else link.pageable_bytes_per_s
    # Where a thread pins batches, or the device pins all memory, there is no other.
    has_pinned = any(row.kind == Kind.PIN and row.busy_ns for row in whole.stages)
    if has_pinned or (link is not None and pageable is None):
        memory = PINNED
    place = ["process", "thread"]
    loops = set(np.unique(spans[spans["kind"] == Kind.WAIT][place]).tolist())
    return HostToDevice(
        n_copies=len(timed),
        nbytes=int(timed["nbytes"].sum()) if (timed["nbytes"] > 0).all() else None,
        loop_ns=sum(row.busy_ns for row in whole.compute_stages if row.stage == Kind.H2D.spelled),
        waited_ns=sum(row.exposed_ns for row in (*rows, *queued)),
        hidden_ns=sum(row.hidden_ns for row in rows),
        wall_ns=whole.wall_ns,
        in_loop=loops.issuperset(np.unique(host[place]).tolist()),
        device_ns=int(_length(device).sum()) if len(device) else None,
        device_exposed_ns=device_exposed_ns if len(device) else None,
        memory=memory,
        limit_bytes_per_s={PINNED: pinned, PAGEABLE: pageable}.get(memory or ""),
        pinned_gain=pinned / pageable if pinned and pageable else None,
    )


def _usage(run: RankRun) -> tuple[GpuUsage, ...]:
    """Return what is known of a run's GPUs; nothing where several training processes share them."""
    if len(run.energy) != 1 or len(run.ranks) != 1 or not len(run.deliveries):
        return ()
    begin, end = run.deliveries.from_ns, run.deliveries.until_ns
    usage = []
    for gpu in run.energy[0].gpus:
        place = np.searchsorted(begin, gpu.time_ns, side="right") - 1
        inside = (place >= 0) & (gpu.time_ns < end[place])  # else it was another run's turn
        busy, used = gpu.busy[inside], gpu.used_nbytes[inside]
        busy, used = busy[~np.isnan(busy)], used[~np.isnan(used)]
        if inside.any():
            busy_fraction = float(busy.mean()) if len(busy) else None
            used_nbytes = int(used.max()) if len(used) else None
            usage.append(GpuUsage(gpu.title, int(inside.sum()), busy_fraction, used_nbytes))
    return tuple(usage)


def device_section(device: DeviceSums) -> Section:
    """Return how long the devices had nothing to do, what of the wait cost nothing, and copies."""
    return Section("device", "Devices", sentences([*_texts(device)]))


def _texts(device: DeviceSums) -> Iterator[str]:
    where = ", ".join(device.devices) or "the device"
    if device.exposed_ns is not None:
        yield (
            f"On {where}: idle for lack of a batch for {units.duration(device.exposed_ns)}. Of the "
            f"{units.duration(device.host_wait_ns)} that the loop waited, "
            f"{units.duration(device.covered_ns)} was covered by queued work."
        )
    if device.copies is not None:
        yield from _copy_texts(device.copies, where)
    for gpu in device.usage:
        reported = f"{gpu.title}, by its driver's {units.count(gpu.n_readings)} reports"
        if gpu.busy_fraction is not None:
            yield f"{reported}: busy for {units.fraction(gpu.busy_fraction)} of the time."
        if gpu.used_nbytes is not None:
            yield f"{reported}: {units.nbytes(gpu.used_nbytes)} of its memory was used at most."


def _copy_texts(copies: HostToDevice, where: str) -> Iterator[str]:
    yield (
        f"Copied to {where}: {units.count(copies.n_copies)} times, "
        f"{units.nbytes(copies.nbytes)} at {units.byte_rate(copies.bytes_per_s)}."
    )
    if copies.limit_fraction is not None:
        yield (
            f"That is {units.fraction(copies.limit_fraction)} of the "
            f"{units.byte_rate(copies.limit_bytes_per_s)} that one copy of such a size from "
            f"{copies.memory} memory reached with nothing else running."
        )
    if copies.device_exposed_ns is not None:
        yield (
            f"Of the {units.duration(copies.device_ns)} that this took, the device was idle for "
            f"{units.duration(copies.device_exposed_ns)}; the rest was hidden."
        )
    else:
        yield (
            f"The training loop waited {units.duration(copies.waited_ns)} for copies and spent "
            f"{units.duration(copies.loop_ns)} on them between its waits; "
            f"{units.duration(copies.hidden_ns)} of other threads' copies were hidden."
        )
    if copies.lost_fraction >= WORTH_SAYING and (advice := _advice(copies)):
        yield f"That is {units.fraction(copies.lost_fraction)} of the run's time. {advice}"


def _advice(copies: HostToDevice) -> str:
    """Return what makes copies cost less, as far as the run's own figures say so."""
    spent_ns = copies.loop_ns + copies.waited_ns + copies.hidden_ns
    if copies.memory == PAGEABLE and (copies.pinned_gain or 0.0) > MUCH_FASTER:
        return (
            f"The link is {units.ratio(copies.pinned_gain)} times as fast from pinned memory: use "
            "pin_memory=True with non_blocking=True, or iobench.torch.StoreLoader(device=...), "
            "which pins and copies ahead."
        )
    if 2 * copies.loop_ns >= spent_ns or copies.in_loop:
        return (
            "They are made in the loop, one by one; iobench.torch.StoreLoader(device=...) copies "
            "ahead of it."
        )
    if (copies.limit_fraction or 0.0) >= AT_LIMIT:
        return (
            "The link is at its limit for copies of this size: only fewer bytes help, such as a "
            "smaller dtype, or larger batches."
        )
    return ""


FINDING: Final = Finding("device", 200, device_figures, device_section)
"""What devices waited for, as the entry point names it."""
