"""Every DataLoader of a script recorded, whoever imported the class: for ``iobench run``."""

from __future__ import annotations

import sys
import threading
from typing import Final

from iobench.adapters.patches import Patches

_lock: Final = threading.RLock()
_patches: Final = Patches()


def install() -> None:
    """Record what loaders do that are iterated over from now on. Idempotent."""
    from iobench.torch import device_moves, observing, training_hooks  # torch is whole by now

    training_hooks.install()
    device_moves.install()
    with _lock:
        if not _patches:
            _patches.put(sys.modules["torch.utils.data"].DataLoader, "__iter__", observing.observed)


def uninstall() -> None:
    """Put torch's own methods back; passes that go on are recorded to their end."""
    from iobench.torch import device_moves, training_hooks

    device_moves.uninstall()
    training_hooks.uninstall()
    with _lock:
        _patches.take_back()
