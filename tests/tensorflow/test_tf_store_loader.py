"""Batches of the ring as TensorFlow tensors, which share its memory and keep it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its tensors are what is tested")
import tensorflow as tf
from number_stores import expected_batch, nothing_left, ring_threads, write_numbers

from iobench.tensorflow import TFStoreLoader
from iobench.tensorflow.tensors import as_tensor

if TYPE_CHECKING:
    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.stores.contract import Store

pytestmark = pytest.mark.timeout(180)
HELD = pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers")


@pytest.fixture(autouse=True)
def buffers() -> Iterator[WeakSet[BatchMemory]]:
    with nothing_left() as alive:
        yield alive


def in_order(n: int = 50, size: int = 4) -> list[list[int]]:
    return [list(range(i, min(i + size, n))) for i in range(0, n, size)]


def assert_batch(batch: dict[str, Any], numbers: list[int]) -> None:
    expected = expected_batch(numbers)
    assert list(batch) == list(expected)
    for name, array in expected.items():
        assert batch[name].dtype == array.dtype
        assert np.array_equal(batch[name].numpy(), array), name


def test_tensors_share_the_memory_of_the_ring(store: Store, buffers: WeakSet[BatchMemory]) -> None:
    loader = TFStoreLoader(store, 4, depth=3)
    for _ in range(5):
        addresses = {np.asarray(batch["x"]).ctypes.data for batch in loader}
        assert len(addresses) <= 3
        assert len(buffers) == 3


@pytest.mark.parametrize("dtype", ["bfloat16", tf.float16, "float32"])
def test_floating_point_numbers_are_cast(store: Store, dtype: Any) -> None:
    wanted = tf.as_dtype(dtype)
    for batch, numbers in zip(TFStoreLoader(store, 4, dtype=dtype), in_order(), strict=True):
        expected = expected_batch(numbers)
        for name in ("x", "half", "y"):
            assert batch[name].dtype == wanted
            values = expected[name].astype(wanted.as_numpy_dtype)
            assert np.array_equal(batch[name].numpy(), values)
        assert batch["number"].dtype == tf.int64


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[1:],  # not aligned
        np.arange(6.0).reshape(2, 3).T,
        np.arange(4)[::-1],
        np.broadcast_to(np.float32(2), (3,)),  # may not be written to
        np.array([True, False]),
        np.array(3, ">i4"),
        np.float32(1.5),
        np.zeros((0, 3)),
    ],
    ids=str,
)
def test_arrays_that_cannot_be_shared_are_copied(array: Any) -> None:
    assert np.array_equal(as_tensor(array).numpy(), array)


def test_keras_is_trained_on_a_dataset_of_it(store: Store) -> None:
    loader = TFStoreLoader(store, 5, shuffle=True, seed=2, dtype="float32")
    dataset = loader.as_dataset()
    assert dataset.element_spec["x"] == tf.TensorSpec((5, 6, 8), tf.float32)
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=False)

    @tf.autograph.experimental.do_not_convert  # where it cannot (3.13), it keeps frames for ever
    def paired(batch: dict[str, Any]) -> tuple[Any, Any]:
        return batch["x"] / 60, batch["y"]

    pairs = dataset.map(paired)
    model.fit(pairs, epochs=2, verbose=0, shuffle=False)
    assert loader.epoch == 1


def test_a_dataset_has_the_batches_and_ends_with_the_loop(store: Store) -> None:
    loader = TFStoreLoader(store, 4, shuffle=True)
    expected = [loader.order.samples(0, batch).tolist() for batch in range(len(loader))]
    dataset = loader.as_dataset()
    assert dataset.element_spec["number"].shape == (None,)
    seen = []
    for batch in dataset:
        assert_batch(batch, batch["number"].numpy().tolist())
        seen.append(batch["number"].numpy().tolist())
    assert seen == expected
    iterator = iter(dataset)
    next(iterator)
    del iterator, batch
    gc.collect()
    assert ring_threads() == []


def test_a_transform_gives_the_dataset_its_signature(store: Store) -> None:
    def transform(batch: dict[str, Any]) -> tuple[Any, Any]:
        return batch["x"].mean(axis=(1, 2)), {"y": batch["y"].astype("f4")}

    dataset = TFStoreLoader(store, 4, transform=transform, dtype="bfloat16").as_dataset()
    assert dataset.element_spec == (
        tf.TensorSpec((None,), tf.bfloat16),
        {"y": tf.TensorSpec((None, 2), tf.bfloat16)},
    )
    for (x, _), numbers in zip(dataset, in_order(), strict=True):
        expected = expected_batch(numbers)["x"].mean(axis=(1, 2)).astype(x.dtype.as_numpy_dtype)
        assert np.array_equal(x.numpy(), expected)
