"""The device that ``--device`` asks for, and why there is none."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.errors import MissingDeviceError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.loaders.contract import MeasuredLoader
    from iobench.recording.device_lane import Accelerator

AUTO: Final = "auto"
NONE: Final = "none"


class ChosenDevice(msgspec.Struct, frozen=True):
    """A device, or why there is none."""

    accelerator: Accelerator | None
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)  # what is known of it
    why_none: str = ""  # for the report's line; empty where there is one

    def document(self, loader: MeasuredLoader) -> dict[str, Any]:
        """Return what ``run.json`` says of it, and of copies to it: see `DeviceFacts`."""
        if self.accelerator is None:
            return {"no_device": self.why_none}
        return {
            "device": {
                "name": self.accelerator.name,
                "facts": dict(self.facts),
                "memory": loader.copied_from,
            }
        }


def check_device(name: str) -> None:
    """Raise OptionError for what ``--device`` cannot be."""
    if not re.fullmatch(rf"{AUTO}|{NONE}|cuda(:\d{{1,4}})?", name):
        raise OptionError(f"--device {name}: expected auto, none, cuda or cuda:N (AMD's too)")


def choose_device(name: str) -> ChosenDevice:
    """Return the device that is asked for."""
    if name == NONE:
        return ChosenDevice(None, why_none="--device none")
    if name != AUTO:
        return _opened(name)
    if importlib.util.find_spec("torch") is None:
        return ChosenDevice(None, why_none="torch, which would copy them, is not installed")
    try:
        return _opened(name)
    except (OptionError, MissingExtraError, OSError, ImportError) as error:
        # Nobody has asked for a device: what is wrong with it does not end the profile.
        return ChosenDevice(None, why_none=str(error).partition("\n")[0])


def _opened(name: str) -> ChosenDevice:
    from iobench.torch.device import find_accelerator

    accelerator = find_accelerator(name, option="--device")
    if accelerator is None:
        return ChosenDevice(None, why_none="torch sees no accelerator")
    try:
        # Drivers show devices that they then refuse, as those that another process has alone.
        if (mark := accelerator.mark()) is not None:
            accelerator.wait(mark)
            accelerator.release(mark)
        return ChosenDevice(accelerator, accelerator.facts())
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise MissingDeviceError(
            f"--device {name}: {accelerator.name} cannot be used: {why}"
        ) from error
