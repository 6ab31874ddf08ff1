"""What devices waited for and what copying to them took, as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.device.copies import PAGEABLE
from iobench.findings.device.figures import DeviceSums, device_figures
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.findings.device.copies import HostToDevice
    from iobench.findings.device.usage import GpuUsage

WORTH_SAYING: Final = 0.05
"""Share of the time from which what copies cost is said with what shortens it."""
AT_LIMIT: Final = 0.8
"""Of the link's rate, from which on copies are as fast as they get."""
MUCH_FASTER: Final = 1.2


def device_section(found: DeviceSums) -> Section:
    """Return how long the devices had nothing to do, what of the wait cost nothing, and copies."""
    told = []
    where = ", ".join(found.devices) or "the device"
    if found.exposed_ns is not None:
        told.append(
            f"On {where}: idle for lack of a batch for {units.duration(found.exposed_ns)}. Of the "
            f"{units.duration(found.host_wait_ns)} that the loop waited, "
            f"{units.duration(found.covered_ns)} was covered by queued work."
        )
    if found.copies is not None:
        told += _copies(found.copies, where)
    told += filter(None, map(_usage, found.usage))
    return Section("device", "Devices", sentences(told))


def _usage(gpu: GpuUsage) -> str:
    """Return what its driver told of a GPU; nothing where that is not known."""
    parts = []
    if gpu.busy_fraction is not None:
        parts.append(f"something ran on it for {units.fraction(gpu.busy_fraction)} of the time")
    if gpu.used_nbytes is not None:
        parts.append(f"{units.nbytes(gpu.used_nbytes)} of its memory was used at most")
    if not parts:
        return ""
    n_times = "once" if gpu.n_readings == 1 else f"{units.count(gpu.n_readings)} times"
    return f"{gpu.title}, all processes, as reported {n_times} by its driver: {', '.join(parts)}."


def _copies(copies: HostToDevice, where: str) -> Iterator[str]:
    moved = f"Copied to {where}: {units.count(copies.n_copies)} times"
    if copies.nbytes is not None:
        moved += f", {units.nbytes(copies.nbytes)}"
    if copies.bytes_per_s is not None:
        moved += f" at {units.byte_rate(copies.bytes_per_s)}"
    if copies.limit_fraction is not None:
        moved += (
            f", {units.fraction(copies.limit_fraction)} of the "
            f"{units.byte_rate(copies.limit_bytes_per_s)} that one copy of such a size from "
            f"{copies.memory} memory reached with nothing else running"
        )
    yield f"{moved}."
    if copies.device_ns is not None and copies.device_exposed_ns is not None:
        yield (
            f"{units.duration(copies.device_exposed_ns)} of the {units.duration(copies.device_ns)} "
            "that this took kept the device idle. The rest was hidden: it overlapped with other "
            "work, or ended before the batch was requested."
        )
    else:
        parts = [f"waited {units.duration(copies.waited_ns)} for copies"]
        if copies.loop_ns:
            parts.append(f"spent {units.duration(copies.loop_ns)} on them between its waits")
        hidden = ""
        if copies.hidden_ns:
            hidden = f"; {units.duration(copies.hidden_ns)} of other threads' copies were hidden"
        yield f"The training loop {' and '.join(parts)}{hidden}."
    if copies.lost_fraction >= WORTH_SAYING and (advice := _advice(copies)):
        yield f"That is {units.fraction(copies.lost_fraction)} of the run's time. {advice}"


def _advice(copies: HostToDevice) -> str:
    """Return what makes copies cost less, as far as the run's own figures say so."""
    pinned, pageable = copies.pinned_bytes_per_s, copies.pageable_bytes_per_s
    if copies.memory == PAGEABLE and pinned and pageable and pinned > MUCH_FASTER * pageable:
        return (
            f"The link is {units.ratio(pinned / pageable)} times as fast from pinned memory: use "
            "pin_memory=True with non_blocking=True, or iobench.torch.StoreLoader(device=...), "
            "which pins and copies ahead."
        )
    spent_ns = copies.loop_ns + copies.waited_ns + copies.hidden_ns
    if 2 * copies.loop_ns >= spent_ns or copies.in_loop:
        return (
            "They are made in the loop, one by one; iobench.torch.StoreLoader(device=...) copies "
            "ahead of it."
        )
    if (copies.limit_fraction or 0.0) >= AT_LIMIT:
        large, limit = copies.large_bytes_per_s, copies.limit_bytes_per_s
        if large and limit and large > MUCH_FASTER * limit:
            return (
                f"Copies of this size cannot be faster; the link is {units.ratio(large / limit)} "
                "times as fast for larger copies, such as those of larger batches."
            )
        return "The link is at its limit: only fewer bytes help, such as a smaller dtype."
    return ""


FINDING: Final = Finding("device", 200, device_figures, device_section)
"""What devices waited for, as the entry point names it."""
