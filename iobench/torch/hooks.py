"""Every DataLoader of a script recorded, whoever imported the class: for ``iobench run``."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any, Final

from iobench.adapters.patches import Patches
from iobench.recording.clocks import now_ns
from iobench.recording.session import loop_recording

STATEFUL: Final = "torchdata.stateful_dataloader"

_lock: Final = threading.RLock()
_patches: Final = Patches()
_patched: Final[set[type]] = set()


def install() -> None:
    """Record what loaders do that are iterated over from now on. Idempotent."""
    from iobench.torch import device_moves, training_hooks  # torch is whole by now

    training_hooks.install()
    device_moves.install()
    stateful = getattr(sys.modules.get(STATEFUL), "StatefulDataLoader", None)
    with _lock:
        for kind in (sys.modules["torch.utils.data"].DataLoader, stateful):
            if kind is not None and kind not in _patched:
                _patched.add(kind)
                _patches.put(kind, "__iter__", _observed)


def uninstall() -> None:
    """Put torch's own methods back; passes that go on are recorded to their end."""
    from iobench.torch import device_moves, training_hooks

    device_moves.uninstall()
    training_hooks.uninstall()
    with _lock:
        _patches.take_back()
        _patched.clear()


def _observed(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        return _observing().observed_iter(self, original)

    __iter__._iobench_original = original  # type: ignore[attr-defined]
    return __iter__


def _observing() -> Any:
    """Return the module that observes, imported without a look for garbage meanwhile."""
    known = sys.modules.get("iobench.torch.observing")
    if known is not None and hasattr(known, "observed_iter"):
        return known
    began_ns, collects = now_ns(), gc.isenabled()
    gc.disable()
    try:
        from iobench.torch import observing
    finally:
        if collects:
            gc.enable()
    recording = loop_recording()
    if recording is not None:
        recording.recorder.once_ns += now_ns() - began_ns
    return observing
