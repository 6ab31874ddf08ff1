"""Adapter to loaders of torch's tensors that are not torch's own: torchdata.nodes', physicsnemo's.

What a loop waits for them is opaque loading: which of their threads made a batch is not known.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Patches

OBSERVING: Final = "iobench.torch.observing"
CLASSES: Final = {
    "physicsnemo.datapipes.dataloader": "DataLoader",
    "torchdata.nodes.loader": "Loader",
}


def adapt(patches: Patches, module: Any) -> None:
    """Record passes over a loader, as those over other loaders of torch are."""

    def __iter__(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda loader: import_module(OBSERVING).observed_iter(loader, own)

    patches.put(getattr(module, CLASSES[module.__name__]), "__iter__", __iter__)
