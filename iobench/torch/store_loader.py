"""The ring as what a training script takes for its DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from iobench.loaders.ring import Presenter, RingLoader
from iobench.loaders.ring.options import LoaderOptions, settle
from iobench.torch.device import find_device
from iobench.torch.samplers import EpochBatches, EpochSampler
from iobench.torch.tensors import TensorCast, as_tensor, check_tensors, collate

if TYPE_CHECKING:
    import os

    from iobench.loaders.ring import BatchSource
    from iobench.loaders.ring.dataset_source import NumberedSamples
    from iobench.stores import Store

__all__ = ["StoreLoader"]


class StoreLoader(RingLoader):
    """Yields batches of a store as dicts of torch tensors; used like a ``DataLoader``.

    It is no subclass of one: Lightning, accelerate and others take apart the ``DataLoader`` they
    are given and build another, for ranks and devices; this one is left as it is, and finds its
    rank by itself: make it after ``torch.distributed`` is initialised, under Lightning in the hooks
    of a DataModule. Lightning keeps its state in checkpoints. With accelerate, pass
    ``device=accelerator.device``, and have ``accelerator.register_for_checkpointing(loader)`` keep
    its state; ``accumulate`` does not see where an epoch of it ends. Where a real ``DataLoader`` is
    asked for (``Fabric.setup_dataloaders``), take one with `collate`.

    Parameters
    ----------
    store : Store or path
        An open store, or its folder.
    batch_size : int
        Samples a batch.
    device : torch.device or str, optional
        ``"cuda"``: batches are copied there ahead, from pinned buffers, on a stream of their own;
        up to ``depth`` of them are on the device. ``"cpu"`` and none are the same. Without,
        tensors share the ring's memory, which is then not pinned.
    **options
        As of `iobench.loader`.

    Attributes
    ----------
    dataset : object
        The samples by number: the store, or what windows and parts of a grid make of it.
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
    collate_fn = staticmethod(collate)

    def __init__(
        self,
        store: Store | BatchSource | NumberedSamples | str | os.PathLike[str],
        batch_size: int,
        *,
        device: Any = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        settled = settle(store, batch_size, options)
        check_tensors(settled.source.spec)
        cast = None if settled.dtype is None else TensorCast(settled.dtype)
        super().__init__(
            settled.source,
            settled.order,
            present=Presenter(settled.transform, cast, as_tensor),
            device=find_device(device),
            dataset=settled.dataset,
            **settled.ring,
        )

    @property
    def drop_last(self) -> bool:
        """Whether a last batch of fewer samples is left out."""
        return self.order.drop_last

    @property
    def batch_sampler(self) -> EpochBatches:
        """Sample numbers of each batch, in the order of the epoch."""
        return EpochBatches(self)

    @property
    def sampler(self) -> EpochSampler:
        """Sample numbers in the order of the epoch."""
        return self.batch_sampler.sampler
