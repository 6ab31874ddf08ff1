"""The ring as what a training script takes for its DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    default_collate,
)

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
    from collections.abc import Iterator

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
    its state. Where a real ``DataLoader`` is asked for (``Fabric.setup_dataloaders``), or
    ``Accelerator.accumulate`` shall see where an epoch ends, take `data_loader`.

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
    num_workers : int
        0: there are no worker processes.

    Raises
    ------
    StoreError, OptionError
        As `iobench.loader`.
    """

    # What others read of a DataLoader, to build one of the same order.
    num_workers = 0
    prefetch_factor = None
    persistent_workers = False
    pin_memory = False
    collate_fn = staticmethod(default_collate)

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

    def data_loader(self) -> DataLoader:
        """Return a real ``DataLoader`` that hands on the batches of this one as they are.

        For who takes nothing else, such as ``Fabric.setup_dataloaders``. Threads, order, epochs and
        rank are this loader's: whoever replaces samplers for ranks leaves it alone, since it has
        none.
        """
        return DataLoader(RingBatches(self), batch_size=None, collate_fn=as_it_is)

    def begin(self, log: DeliveryLog | None = None) -> RingRun:
        """Return what makes the batches of the next iteration."""
        run = super().begin(log)
        if log is not None and current_recording() is not None:
            device_moves.install()
        return run

    @property
    def drop_last(self) -> bool:
        """Whether a last batch of fewer samples is left out."""
        return self.order.drop_last

    @property
    def sampler(self) -> EpochSampler:
        """Sample numbers in the order of the epoch."""
        return EpochSampler(self)

    @property
    def batch_sampler(self) -> BatchSampler:
        """Sample numbers of each batch.

        A stock loader with the same batches:
        ``DataLoader(store, batch_sampler=loader.batch_sampler)``.
        """
        return BatchSampler(self.sampler, self.batch_size, self.drop_last)


class EpochSampler(SequentialSampler):  # type: ignore[misc]
    """Sample numbers of one rank's epoch, which Lightning sets."""

    def __init__(self, loader: RingLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.order.n_of_rank(0)

    def __iter__(self) -> Iterator[int]:
        order, epoch = self._loader.order, self._loader.epoch
        for batch in range(len(order)):
            yield from order.samples(epoch, batch).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the loader's next iteration is of."""
        self._loader.set_epoch(epoch)


def _copies(device: Any) -> DeviceCopies | None:
    accelerator = find_accelerator(device)
    return None if accelerator is None else DeviceCopies(accelerator)


class RingBatches(IterableDataset):  # type: ignore[misc]
    """The batches of a loader, for a real ``DataLoader`` that only hands them on."""

    def __init__(self, loader: RingLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def as_it_is(batch: Any) -> Any:
    """Return a batch: it needs no collating."""
    return batch
