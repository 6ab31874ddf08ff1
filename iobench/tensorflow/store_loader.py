"""The ring for a TensorFlow training: batches of tensors, or a ``tf.data.Dataset`` for Keras."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

from iobench.errors import OptionError
from iobench.loaders.ring.framework_loader import resolve_options
from iobench.loaders.ring.loader import DEPTH, RingLoader
from iobench.loaders.ring.loader_config import LoaderConfig, with_options
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.presenting import ArrayCast, Presenter, map_leaves

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.loaders.contract import BatchSource
    from iobench.loaders.ring.framework_loader import NumberedSamples
    from iobench.stores.contract import Store

HELD: Final = 2
"""Batches that a ``tf.data.Dataset`` holds besides those of the loop."""


class TFStoreLoader(RingLoader):
    """Yields batches of a store as dicts of TensorFlow tensors, on the CPU.

    Tensors share the ring's memory, and keep it. With a transform, what it returns is copied where
    it is not aligned to 64 bytes.

    Parameters
    ----------
    store : Store or path
        An open store, or its folder.
    batch_size : int
        Samples a batch.
    **options
        As of `iobench.loader`.

    Attributes
    ----------
    dataset : Store
        The store.

    Raises
    ------
    StoreError, OptionError
        As `iobench.loader`.
    """

    @with_options
    def __init__(
        self,
        store: Store | BatchSource | NumberedSamples | str | os.PathLike[str],
        batch_size: int,
        **options: Any,
    ) -> None:
        config = LoaderConfig.of({**options, "framework": "tensorflow"})
        parts = resolve_options(
            store, batch_size, config, cast=float_cast, convert=as_tensor, depth=DEPTH + HELD
        )
        self._presenter: Presenter = parts["present"]
        super().__init__(**parts)

    def as_dataset(self, output_signature: Any = None) -> tf.data.Dataset:
        """Return the batches as a ``tf.data.Dataset``, for ``model.fit`` among others.

        Each time it is iterated is the next epoch. Batches are made ahead already: ``prefetch``
        only makes more buffers necessary. A state is loaded before this is called; the length of
        the dataset is then unknown, since its first epoch is shorter.

        Parameters
        ----------
        output_signature : nested structure of tf.TensorSpec, optional
            What a batch is. By default as the first sample is presented.
        """
        if output_signature is None:
            output_signature = self._signature()

        reference = weakref.ref(self)

        def batches() -> Iterator[Any]:
            # No copy: what it is made of is kept. And no name for a batch, which would keep it.
            loader = reference()
            assert loader is not None  # the dataset holds it, and whoever iterates the dataset
            yield from map(_as_arrays, loader)

        dataset = tf.data.Dataset.from_generator(batches, output_signature=output_signature)
        settings = tf.data.Options()
        settings.experimental_optimization.inject_prefetch = False  # it would hold ten batches
        dataset = dataset.with_options(settings)
        if not self._is_resumed:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        dataset._iobench_loader = self  # TensorFlow never lets go of ``batches``
        return dataset

    def _signature(self) -> Any:
        """Return what a batch is, by the first sample as the loader presents it."""
        order, presenter = self.order, self._presenter
        is_even = order.drop_last or order.n_samples % order.batch_size == 0
        rows = {v.name: np.zeros((1, *v.shape), dtype=v.dtype) for v in self.spec}
        if presenter.transform is not None:  # what it makes may depend on the values
            filler = self._inner.filler()
            try:
                filler.fill(order.samples(0, 0)[:1], rows, BatchLog())
            finally:
                filler.close()
        shown = Presenter(presenter.transform, presenter.cast, stack=presenter.stack)(rows)
        n_samples = order.batch_size if is_even and presenter.transform is None else None

        def described(leaf: Any) -> Any:
            leaf = tf.convert_to_tensor(leaf)
            return tf.TensorSpec((n_samples, *leaf.shape[1:]), leaf.dtype)

        return map_leaves(shown, described)


def _as_arrays(batch: Any) -> Any:
    return map_leaves(batch, np.asarray)


# -- from the arrays of a batch to tensors, without a copy where TensorFlow can share memory ---


ALIGNMENT: Final = 64
"""Of TensorFlow's own memory: its kernels end the process where they meet less."""


def as_tensor(leaf: Any) -> Any:
    """Return an array as a tensor on the CPU; what is no array stays as it is."""
    if isinstance(leaf, np.generic):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.dtype == tf.bfloat16.as_numpy_dtype:  # DLPack of NumPy does not know it
        return tf.bitcast(as_tensor(leaf.view(np.uint16)), tf.bfloat16)
    flags = leaf.flags
    is_shared = flags.c_contiguous and flags.writeable and leaf.ctypes.data % ALIGNMENT == 0
    if is_shared and leaf.dtype.kind in "iufc" and leaf.dtype.isnative:
        return tf.experimental.dlpack.from_dlpack(leaf.__dlpack__())
    with tf.device("CPU:0"):
        return tf.constant(leaf)


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a tensor on the CPU as a read-only array of the same memory, which it keeps alive."""
    if np.dtype(tensor.dtype.as_numpy_dtype).kind not in "iufcb":
        return np.asarray(tensor.numpy())  # bfloat16: unknown to the protocol of buffers
    return np.asarray(memoryview(tensor))


def float_cast(dtype: Any) -> ArrayCast:
    """Return the cast to what ``dtype=`` names."""
    try:
        result = tf.as_dtype(dtype)
    except TypeError:
        result = None
    if result is None or not result.is_floating:
        raise OptionError(
            f"dtype={dtype!r}: expected a floating-point dtype such as 'float32' or 'bfloat16'"
        )
    return ArrayCast(np.dtype(result.as_numpy_dtype))
