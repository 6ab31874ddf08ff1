"""A DataLoader's first batches in place of all: what a step takes if data are free."""

from __future__ import annotations

import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from iobench.recording.free_data import KEPT, NOT_FREE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iobench.recording.session import Recording

# By identity: a subclass may compare its loaders as it likes.
_free: Final[dict[int, tuple[weakref.ref[Any], DataLoader[Any]]]] = {}


def free_loader(
    loader: Any, stock_iter: Callable[[Any], Iterator[Any]], recording: Recording
) -> DataLoader[Any] | None:
    """Return what hands on a loader's first batches, made now; None where its length is unknown."""
    known = _free.get(id(loader))
    if known is not None and known[0]() is loader:
        return known[1]
    try:
        length = len(loader)
    except TypeError:  # of a dataset that is gone through
        name = type(getattr(loader, "dataset", loader)).__name__
        recording.add_unseen(f"{NOT_FREE}{name} has no length, so all its batches were loaded")
        return None
    batches: Any = list(islice(stock_iter(loader), KEPT))
    order = [number % len(batches) for number in range(length)]
    free: DataLoader[Any] = DataLoader(batches, None, sampler=order, collate_fn=lambda same: same)
    _free[id(loader)] = weakref.ref(loader), free
    return free
