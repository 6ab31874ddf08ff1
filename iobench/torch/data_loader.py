"""``iobench.torch.DataLoader``: torch's, and what it does is recorded."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch.utils.data

from iobench.torch.observing import observed_iter

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]
    """``torch.utils.data.DataLoader`` in every respect: arguments, batches, order, errors.

    With a recording (`iobench.record`, ``iobench run``) what its workers do is recorded: every
    batch from the sampler to the training loop, with its samples, by batch and worker. Without
    one it is torch's own loader and nothing more.
    """

    __signature__ = inspect.signature(torch.utils.data.DataLoader)

    def __iter__(self) -> Any:
        """Return torch's iterator over the batches."""
        return observed_iter(self)
