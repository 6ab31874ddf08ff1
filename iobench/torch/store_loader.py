"""The ring as what a training script takes for its DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from iobench.loaders.device_copies import DeviceCopies
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.loader_config import LoaderConfig, with_options
from iobench.loaders.ring.options import resolve_options
from iobench.recording.session import current_recording
from iobench.torch import device_moves
from iobench.torch.device import find_accelerator
from iobench.torch.frameworks import RingBatches, announced, as_it_is, withdrawn
from iobench.torch.samplers import EpochBatches, EpochSampler
from iobench.torch.tensors import TensorCast, as_tensor, check_tensors, collate

if TYPE_CHECKING:
    import os

    from iobench.loaders.ring.contract import BatchSource, RingBatch
    from iobench.loaders.ring.origins import NumberedSamples
    from iobench.loaders.ring.recorded import RecordedPass
    from iobench.loaders.ring.ring_run import RingRun
    from iobench.stores.contract import Store
    from iobench.torch.frameworks import EpochPlace


class StoreLoader(RingLoader):
    """Yields batches of a store as dicts of torch tensors; used like a ``DataLoader``.

    It is no subclass of one: Lightning, accelerate and others take apart the ``DataLoader`` they
    are given and build another, for ranks and devices; this one is left as it is, and finds its
    rank by itself: make it after ``torch.distributed`` is initialised, under Lightning in the hooks
    of a DataModule. Lightning keeps its state in checkpoints. With accelerate, pass
    ``device=accelerator.device``, and have ``accelerator.register_for_checkpointing(loader)`` keep
    its state; ``accumulate`` sees where an epoch ends. Where a real ``DataLoader`` is asked for
    (``Fabric.setup_dataloaders``), take `data_loader`.

    Parameters
    ----------
    store : Store or path
        An open store, or its folder.
    batch_size : int
        Samples a batch.
    device : torch.device or str, optional
        ``"cuda"`` (or ``"xpu"``): batches are copied there ahead, from pinned buffers, on a stream
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
    collate_fn = staticmethod(collate)

    @with_options
    def __init__(
        self,
        store: Store | BatchSource | NumberedSamples | str | os.PathLike[str],
        batch_size: int,
        **options: Any,
    ) -> None:
        self._place: EpochPlace | None = None
        config = LoaderConfig.of({**options, "framework": "torch"})
        parts = resolve_options(store, batch_size, config, cast=TensorCast, convert=as_tensor)
        check_tensors(parts["source"].spec)
        accelerator = find_accelerator(config.device)
        copies = None if accelerator is None else DeviceCopies(accelerator)
        super().__init__(device=copies, **parts)

    def data_loader(self) -> DataLoader:
        """Return a real ``DataLoader`` that hands on the batches of this one as they are.

        For who takes nothing else, such as ``Fabric.setup_dataloaders``. Threads, order, epochs and
        rank are this loader's: whoever replaces samplers for ranks leaves it alone, since it has
        none.
        """
        return DataLoader(RingBatches(self), batch_size=None, collate_fn=as_it_is)

    def _begin(self, log: RecordedPass | None = None) -> RingRun:
        run = super()._begin(log)
        recording = None if log is None else current_recording()
        if recording is not None:
            device_moves.install()
        self._place = announced(run)
        return run

    def _took(self, batch: RingBatch | None) -> None:
        super()._took(batch)
        if self._place is not None:
            if batch is None:
                withdrawn(self._place)
            else:
                self._place.end_of_dataloader = self._n_taken == len(self)

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
