"""What iobench asks of a device: its time, and copies to its memory. Knows no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from iobench.recording.clocks import DeviceClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class DeviceCopy(msgspec.Struct, frozen=True):
    """Arrays on their way to a device."""

    values: list[Any]  # on the device, as its framework has them
    first: Any  # marks in the device's queue before the copies and behind them; None without
    last: Any
    nbytes: int
    held: Any = None  # what is copied from; to be referenced until the last mark is passed


class Accelerator(DeviceClock, Protocol):
    """A device that works through queues and has a memory of its own."""

    def facts(self) -> Mapping[str, Any]:
        """Return what a run keeps of it; what nobody tells is left out."""

    def pin(self, pages: Any) -> object:
        """Make the memory of a writable buffer one that the device reads by itself."""

    def takes(self, leaf: Any) -> bool:
        """Tell whether something of a batch is an array that can be copied."""

    def copy(self, leaves: Sequence[Any], *, ahead: bool) -> DeviceCopy:
        """Start copying; do not wait, where the memory copied from is pinned."""

    def order(self, copy: DeviceCopy) -> None:
        """Let what the calling thread gives the device to do next come after the copies."""
