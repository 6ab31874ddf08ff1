"""Adapter to torchdata.nodes: what a loop waits for its ``Loader``, which is opaque loading."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Patches

OBSERVING: Final = "iobench.torch.observing"


def adapt(patches: Patches, module: Any) -> None:
    """Record passes over ``Loader``, as those over other loaders of torch are."""

    def __iter__(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda loader: import_module(OBSERVING).observed_iter(loader, own)

    patches.put(module.Loader, "__iter__", __iter__)
