"""Adapter to loaders of torch's tensors that are not torch's own, and to Lightning's evaluations.

What a loop waits for torchdata's and physicsnemo's loaders is opaque loading: which of their
threads made a batch is not known. Lightning never asks for the end of a validation's pass.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from iobench.recording.session import current_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Patches

OBSERVING: Final = "iobench.torch.observing"
CLASSES: Final = {
    "physicsnemo.datapipes.dataloader": "DataLoader",
    "torchdata.nodes.loader": "Loader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
}


def adapt(patches: Patches, module: Any) -> None:
    """Record passes over a loader, as those over other loaders of torch are."""
    if module.__name__ not in CLASSES:
        patches.put(module._EvaluationLoop, "run", _ending)
        return

    def __iter__(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda loader: import_module(OBSERVING).observed_iter(loader, own)

    patches.put(getattr(module, CLASSES[module.__name__]), "__iter__", __iter__)


def _ending(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop that ends its pass: its iterator is there until the training has ended."""

    def run_and_end(*args: Any, **kwargs: Any) -> Any:
        recording = current_recording()
        before = None if recording is None else recording.latest
        try:
            return run(*args, **kwargs)
        finally:
            log = None if recording is None else recording.latest
            if log is not None and log is not before:
                log.abandon()

    return run_and_end
