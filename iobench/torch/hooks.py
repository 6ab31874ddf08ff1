"""Every DataLoader of a script recorded, whoever imported the class: for ``iobench run``."""

from __future__ import annotations

import sys
from typing import Final

from iobench.adapters.patches import Hooks, Patches


def _begin(patches: Patches) -> None:
    from iobench.torch import device_moves, observing, training_hooks  # torch is whole by now

    for module in (training_hooks, device_moves):
        module.install()
        patches.undo_by(module.uninstall)
    patches.put(sys.modules["torch.utils.data"].DataLoader, "__iter__", observing.observed)


_hooks: Final = Hooks(_begin)
install, uninstall = _hooks.install, _hooks.uninstall
