"""A loader for any framework: `iobench.loader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.loaders.ring.framework_loader import resolve_options
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.loader_config import LoaderConfig, with_options
from iobench.loaders.ring.presenting import float_cast

if TYPE_CHECKING:
    import os

    from iobench.loaders.contract import BatchSource
    from iobench.loaders.ring.framework_loader import NumberedSamples
    from iobench.stores.contract import Store


@with_options
def loader(
    store: Store | BatchSource | NumberedSamples | str | os.PathLike[str],
    batch_size: int,
    **options: Any,
) -> RingLoader:
    """Load batches of a store in threads, ahead of the training loop, into memory used again.

    A batch is valid as long as anyone holds it, or a view of it. Iterating again is the next
    epoch; `RingLoader.state_dict` tells where in it the loop is. ``print(loader)`` shows what a
    batch holds.

    Parameters
    ----------
    store : Store or path
        An open store, or its folder; or what `iobench.open_dataset` returns.
    batch_size : int
        Samples a batch.
    **options
        The fields of `LoaderConfig`.

    Returns
    -------
    RingLoader
        An iterable of batches with a length.

    Raises
    ------
    StoreError
        If the store is unfinished or damaged.
    OptionError
        If an option has a value that cannot be, or buffers do not fit into memory.
    MissingExtraError
        If the framework is not installed.
    """
    config = LoaderConfig.of(options)
    framework = config.framework or ("numpy" if config.device is None else "torch")
    if framework == "torch":
        from iobench.torch.store_loader import StoreLoader

        return StoreLoader(store, batch_size, **options)
    if framework == "tensorflow":
        from iobench.tensorflow.store_loader import TFStoreLoader

        return TFStoreLoader(store, batch_size, **options)
    return RingLoader(**resolve_options(store, batch_size, config, cast=float_cast))
