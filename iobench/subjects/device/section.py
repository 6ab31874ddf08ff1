"""What devices waited for, as people read it."""

from __future__ import annotations

from typing import Final

from iobench.report import units
from iobench.report.document import Section, sentences
from iobench.subjects.contract import Subject
from iobench.subjects.device.figures import DeviceSums, device_sums

__all__ = ["SUBJECT", "device_section"]


def device_section(found: DeviceSums) -> Section:
    """Return how long the devices had nothing to do, and what of the loop's wait cost nothing."""
    told = (
        f"On {', '.join(found.devices)}: without work for want of a batch for "
        f"{units.duration(found.exposed_ns)}; {units.duration(found.covered_ns)} of the "
        f"{units.duration(found.host_wait_ns)} that the loop waited lay under queued work."
    )
    return Section("device", "Devices", sentences([told]))


SUBJECT: Final = Subject("device", 200, device_sums, device_section)
"""What devices waited for, as the entry point names it."""
