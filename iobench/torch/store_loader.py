"""The ring as what a training script takes for its DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from iobench.loaders.device_copies import DeviceCopies
from iobench.loaders.ring.framework_loader import resolve_options
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.loader_config import LoaderConfig, with_options
from iobench.recording.session import current_recording
from iobench.torch import device_moves
from iobench.torch.device import find_accelerator
from iobench.torch.tensors import TensorCast, as_tensor, check_tensors

if TYPE_CHECKING:
    import os

    from iobench.loaders.contract import BatchSource
    from iobench.loaders.ring.framework_loader import NumberedSamples
    from iobench.loaders.ring.ring_run import RingRun
    from iobench.recording.delivery_log import DeliveryLog
    from iobench.stores.contract import Store


class StoreLoader(RingLoader):
    """Yields batches of a store as dicts of torch tensors; used like a ``DataLoader``.

    It is no subclass of one, so that frameworks leave it as it is; it finds its rank by itself:
    make it after ``torch.distributed`` is initialised, under Lightning in the hooks of a
    DataModule. Lightning keeps its state in checkpoints. With accelerate, pass
    ``device=accelerator.device``, and have ``accelerator.register_for_checkpointing(loader)`` keep
    its state. With Fabric, pass ``device=fabric.device`` in place of ``setup_dataloaders``.

    Parameters
    ----------
    store : Store or path
        An open store, or its folder.
    batch_size : int
        Samples a batch.
    device : torch.device or str, optional
        ``"cuda"``, also of AMD: batches are copied there ahead, from pinned buffers, on a stream
        of their own; up to ``depth`` of them are on the device. ``"cpu"`` and none are the same.
        Without, tensors share the ring's memory, which is then not pinned.
        Its threads ask the driver while the loop goes on: a CUDA graph is to be captured before
        the first batch, or with ``capture_error_mode="thread_local"``.
    **options
        As of `iobench.loader`.

    Attributes
    ----------
    dataset : object
        The samples by number: the store, or what windows, patches and so on make of it (random
        patches are those of the first epoch).

    Raises
    ------
    StoreError, OptionError
        As `iobench.loader`.
    """

    batch_sampler = None  # Lightning asks for it beside `sampler`

    @with_options
    def __init__(
        self,
        store: Store | BatchSource | NumberedSamples | str | os.PathLike[str],
        batch_size: int,
        **options: Any,
    ) -> None:
        config = LoaderConfig.of({**options, "framework": "torch"})
        parts = resolve_options(store, batch_size, config, cast=TensorCast, convert=as_tensor)
        check_tensors(parts["source"].spec)
        super().__init__(device=_copies(config.device), **parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_device": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_device": _copies(state["config"].device)})

    @property
    def sampler(self) -> Self:
        """Itself, whose `set_epoch` Lightning calls."""
        return self

    def begin(self, log: DeliveryLog | None = None) -> RingRun:
        """Return what makes the batches of the next iteration."""
        run = super().begin(log)
        if log is not None and current_recording() is not None:
            device_moves.install()
        return run


def _copies(device: Any) -> DeviceCopies | None:
    accelerator = find_accelerator(device)
    return None if accelerator is None else DeviceCopies(accelerator)
