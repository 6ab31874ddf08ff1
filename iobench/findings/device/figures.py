"""How long a device had nothing to do for lack of the next batch.

The training loop may wait while the device still works through what it was given: such a wait
costs nothing. So a delivery's exposure on the device begins when the batch was asked for and the
device was done with all before it, and ends where its first work on that batch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.findings.device.copies import HostToDevice, copies_of, under_copies
from iobench.findings.device.usage import GpuUsage, usage_of
from iobench.json_keys import key
from iobench.recording.device_lane import ANCHOR
from iobench.recording.kinds import Kind, Trait, is_one_of, kind_named, kinds_that, stage_name
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]

USE_KINDS: Final = kinds_that(Trait.USES_BATCH)
"""Work on a batch. Regions under other names may hold anything, the wait itself included."""
NEVER: Final = np.iinfo(np.int64).max


class DeviceSums(msgspec.Struct, frozen=True):
    """What the devices of one training process waited for, in sum.

    Parameters
    ----------
    rank : int
        Which training process.
    devices : tuple of str
        Its devices, as far as they were timed; a time counts in which none of them had work.
    n_waits : int
        How often the training loop waited.
    exposed_ns : int or None
        How long the devices had no work for lack of input; null where nothing but copies of
        theirs, or nothing at all, was timed.
    host_wait_ns : int
        How long the training loop waited.
    covered_ns : int or None
        How much of that lay under work of the devices; null likewise.
    busy_ns : mapping of str to int
        Device time by stage, of the sort of work it was timed as; regions may overlap.
    uncertainty_ns : int
        By how much the device's times may be earlier than recorded, on the host's clock, at most.
    copies : HostToDevice or None
        The copies of batches to the devices; null where none was seen.
    usage : tuple of GpuUsage
        What their driver reported of all GPUs of the job, whatever else was timed.
    """

    rank: int
    devices: tuple[str, ...]
    n_waits: int
    exposed_ns: int | None
    host_wait_ns: int
    covered_ns: int | None
    busy_ns: Mapping[str, int]
    uncertainty_ns: int
    copies: HostToDevice | None = None
    usage: tuple[GpuUsage, ...] = ()
    JSON_KEYS: ClassVar = {
        "exposed_ns": key("exposed_ns"),
        "host_wait_ns": key("host_wait_ns"),
        "covered_ns": key("covered_ns"),
        "busy_ns": key("busy_ns"),
        "uncertainty_ns": key("uncertainty_ns"),
    }


class DeviceExposure(msgspec.Struct, frozen=True):
    """What the devices of one training process waited for; arrays of one row per wait.

    Parameters
    ----------
    rank, devices, busy_ns, uncertainty_ns
        As of `DeviceSums`.
    asked_ns, delivered_ns : ndarray of int64
        When the training loop asked, and when it held the batch.
    drained_ns : ndarray of int64
        When the devices were done with all they had been given before it asked; ``asked_ns`` where
        that is earlier.
    use_ns : ndarray of int64
        When the first work on the batch began; where none was recorded, ``delivered_ns`` or the
        end of its copy to the device. Never before ``asked_ns``.
    batch : ndarray of int64
        -1 for a wait that brought none.
    copying_ns : int
        How much of what is exposed the copies of these batches took.
    """

    rank: int
    devices: tuple[str, ...]
    asked_ns: Integers
    delivered_ns: Integers
    drained_ns: Integers
    use_ns: Integers
    batch: Integers
    busy_ns: dict[str, int]
    uncertainty_ns: int
    copying_ns: int = 0

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
            rank=self.rank,
            devices=self.devices,
            n_waits=len(self),
            exposed_ns=int(self.exposed_ns.sum()),
            host_wait_ns=int((self.delivered_ns - self.asked_ns).sum()),
            covered_ns=int(np.maximum(under_work, 0).sum()),
            busy_ns=self.busy_ns,
            uncertainty_ns=self.uncertainty_ns,
        )


def device_figures(run: RankRun) -> DeviceSums | None:
    """Return what is told of the devices of a training process; None if nothing is."""
    sums, usage = run.cached(device_sums), usage_of(run)
    if sums is None and usage:
        whole = run.exposure.whole
        sums = DeviceSums(run.rank, (), len(whole.waits_ns), None, whole.wait_ns, None, {}, 0)
    return None if sums is None else replace(sums, usage=usage)


def device_sums(run: RankRun) -> DeviceSums | None:
    """Return what the devices of a training process did and waited for; None if none was seen.

    Copies alone do not report what a device waited for: what else it did meanwhile is not known.
    """
    found = device_exposure(run, run.rank)
    if found is None:
        copies = copies_of(run, None)
        if copies is None:
            return None
        told, wait_ns = run.about.device, run.exposure.whole.wait_ns
        names = () if told is None else (told.name,)
        n_waits = len(run.exposure.whole.waits_ns)
        return DeviceSums(run.rank, names, n_waits, None, wait_ns, None, {}, 0, copies)
    works = any(kind_named(stage) in USE_KINDS for stage in found.busy_ns)
    sums = replace(found.sums, copies=copies_of(run, found.copying_ns if works else None))
    return sums if works else replace(sums, exposed_ns=None, covered_ns=None)


def device_exposure(profile: RunData, rank: int = 0) -> DeviceExposure | None:
    """Return what the devices of a training process waited for; None if none were timed.

    Of a process that was killed, waits count up to the last one whose work was told.

    Parameters
    ----------
    profile : RunData
        The run.
    rank : int
        Which training process.
    """
    spans = profile.spans
    of_rank = np.array(
        [process.role == "consumer" and process.rank == rank for process in profile.processes],
        dtype=bool,
    )
    spans = spans[of_rank[spans["process"]]] if len(of_rank) else spans[:0]
    of_device = (spans["flags"] & Flag.DEVICE) != 0
    device = spans[of_device]
    if not len(device):
        return None
    waits = spans[~of_device & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)]
    waits = waits[np.argsort(waits["start_ns"], kind="stable")]
    asked, delivered = waits["start_ns"].astype(np.int64), waits["end_ns"].astype(np.int64)
    batch = waits["batch"].astype(np.int64)
    work = device[is_one_of(device["kind"], USE_KINDS | {Kind.H2D})]
    place = _deliveries_of(work, batch, delivered)
    if not all(profile.processes[process].closed for process in np.unique(spans["process"])):
        # Killed: what the device did last was not looked at, and is unknown.
        known = int(place.max(initial=-1)) + 1
        asked, delivered, batch = asked[:known], delivered[:known], batch[:known]
    drained, use = _edges(work, place, asked, delivered)
    return DeviceExposure(
        rank=rank,
        devices=_names(profile, device),
        asked_ns=asked,
        delivered_ns=delivered,
        drained_ns=drained,
        use_ns=use,
        batch=batch,
        busy_ns=_busy(profile, device),
        uncertainty_ns=_uncertainty(profile, device),
        copying_ns=under_copies(work, place, drained, use),
    )


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


def _names(profile: RunData, device: NDArray[Any]) -> tuple[str, ...]:
    lanes = np.unique(device[["process", "thread"]])
    return tuple(
        sorted({profile.processes[process].threads[thread] for process, thread in lanes.tolist()})
    )


def _busy(profile: RunData, device: NDArray[Any]) -> dict[str, int]:
    busy: dict[str, int] = {}
    anchor = profile.string_number(ANCHOR)
    for kind, label in np.unique(device[["kind", "label"]]).tolist():
        if kind == Kind.OTHER and label == anchor:
            continue
        chosen = device[(device["kind"] == kind) & (device["label"] == label)]
        stage = stage_name(Kind(kind), profile.strings[label])
        busy[stage] = int((chosen["end_ns"] - chosen["start_ns"]).sum())
    return busy


def _uncertainty(profile: RunData, device: NDArray[Any]) -> int:
    anchor = profile.string_number(ANCHOR)
    chosen = device[(device["kind"] == Kind.OTHER) & (device["label"] == anchor)]
    return int((chosen["end_ns"] - chosen["start_ns"]).max()) if len(chosen) else 0
