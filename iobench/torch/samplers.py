"""The order of a `StoreLoader` as torch's samplers: what libraries look at, and others can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Sampler, SequentialSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.loaders.ring.loader import RingLoader


class EpochSampler(Sampler):  # type: ignore[misc]
    """Sample numbers of one rank's epoch, in the order of a loader."""

    def __init__(self, loader: RingLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        last = len(self._loader) - 1  # the only one that may have fewer
        return last * self._loader.batch_size + len(self._loader.order.samples(0, last))

    def __iter__(self) -> Iterator[int]:
        for batch in EpochBatches(self._loader):
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the loader's next iteration is of."""
        self._loader.set_epoch(epoch)


class InOrderSampler(EpochSampler, SequentialSampler):  # type: ignore[misc]
    """The same, of a loader that does not shuffle: Lightning asks which it is."""


class EpochBatches(Sampler):  # type: ignore[misc]
    """Sample numbers of each batch of one rank's epoch.

    A stock loader with the same batches: ``DataLoader(store, batch_sampler=loader.batch_sampler,
    collate_fn=iobench.torch.collate)``.
    """

    def __init__(self, loader: RingLoader) -> None:
        self._loader = loader
        self.batch_size = loader.batch_size
        self.drop_last = loader.order.drop_last

    @property
    def sampler(self) -> EpochSampler:
        """The samples of all batches."""
        order = self._loader.order
        return (EpochSampler if order.shuffle else InOrderSampler)(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        order, epoch = self._loader.order, self._loader.epoch
        for batch in range(len(order)):
            yield order.samples(epoch, batch).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the loader's next iteration is of."""
        self._loader.set_epoch(epoch)
