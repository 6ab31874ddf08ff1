"""Batches of the ring as tensors: right, whoever holds them for however long, and nothing left."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of tensors need torch")
import torch
from number_stores import expected_batch, nothing_left, write_numbers

from iobench.errors import OptionError
from iobench.torch import StoreLoader, collate

HELD = pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers")


@pytest.fixture(autouse=True)
def buffers():
    with nothing_left() as alive:
        yield alive


def assert_batch(batch, numbers):
    expected = expected_batch(numbers)
    assert list(batch) == list(expected)
    for name, array in expected.items():
        assert np.array_equal(batch[name].numpy(), array), name
        assert batch[name].numpy().dtype == array.dtype


def in_order(first=0, n=50, size=4):
    return [list(range(i, min(i + size, n))) for i in range(first, n, size)]


@HELD
def test_shuffled_batches_are_those_of_a_stock_loader_in_that_order(store):
    loader = StoreLoader(store, 4, shuffle=True, seed=5, threads=3)
    stock = torch.utils.data.DataLoader(store, batch_sampler=loader.batch_sampler)
    expected = list(stock)
    found = list(loader)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert {name: t.dtype for name, t in ours.items()} == {
            name: t.dtype for name, t in theirs.items()
        }
    assert [n for batch in found for n in batch["number"].tolist()] == sorted_by(loader)
    store.close()  # and with it the buffers behind __getitems__


def sorted_by(loader):
    loader.set_epoch(0)
    assert len(loader.sampler) == len(loader.dataset) == 50
    return list(loader.sampler)


@HELD
def test_gradients_come_from_the_batch_that_was_used(store):
    def gradients(copied):
        weight = torch.ones(6, 8, requires_grad=True)
        pending, found = [], []
        for batch in StoreLoader(store, 4, depth=3):
            x = batch["x"].clone() if copied else batch["x"]
            pending.append(((x * weight) ** 2).sum())
            if len(pending) > 5:  # five further batches were handed out since
                found.append(torch.autograd.grad(pending.pop(0), weight)[0])
        return found

    for ours, theirs in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(ours, theirs)


def views_of(tensor):
    return {
        "slice": tensor[1:, ::2],
        "transposed": tensor.transpose(0, 1),
        "numpy": tensor.numpy(),
        "numpy of a slice": tensor[2:].numpy()[:, 1],
        "dlpack to torch": torch.from_dlpack(tensor),
        "dlpack to numpy": np.from_dlpack(tensor),
        "detached": tensor.detach().view(-1),
        "storage": tensor.untyped_storage(),
        "unbound": tensor.unbind()[1],
    }


def bytes_of(view):
    if isinstance(view, torch.UntypedStorage):
        return bytes(torch.tensor([], dtype=torch.uint8).set_(view)[: 4 * 48 * 4].tolist())
    return np.ascontiguousarray(view).tobytes()


@pytest.mark.quick_cases(2)
@HELD
@pytest.mark.parametrize("name", views_of(torch.zeros(4, 6, 8)))
def test_whatever_is_made_of_a_tensor_keeps_its_batch(store, name):
    loader = StoreLoader(store, 4, depth=3)
    iterator = iter(loader)
    batch = next(iterator)
    view, expected = views_of(batch["x"])[name], bytes_of(views_of(batch["x"].clone())[name])
    del batch
    for _ in iterator:
        pass
    assert bytes_of(view) == expected
    for _ in loader:  # in another epoch, and after the loader
        pass
    del loader, iterator
    gc.collect()
    assert bytes_of(view) == expected


def test_a_batch_that_is_let_go_gives_its_buffer_back(store, buffers):
    loader = StoreLoader(store, 4, depth=3)
    addresses = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            for batch in loader:
                addresses.add(batch["x"].data_ptr())
    assert len(addresses) <= 3
    assert len(buffers) == 3


@HELD
def test_changing_a_batch_in_place_changes_no_other(store):
    loader = StoreLoader(store, 4, depth=3)
    held = []
    for batch in loader:
        pointer = batch["x"].data_ptr()
        batch["x"].add_(1).mul_(2)
        assert batch["x"].data_ptr() == pointer
        held.append(batch)
    for batch, numbers in zip(held, in_order(), strict=True):
        assert np.array_equal(batch["x"], (expected_batch(numbers)["x"] + 1) * 2)
    for batch, numbers in zip(loader, in_order(), strict=True):
        assert_batch(batch, numbers)


def test_state_goes_on_in_the_middle_of_an_epoch(store):
    loader = StoreLoader(store, 4, shuffle=True, seed=1)
    loader.set_epoch(2)
    whole = [batch["number"].tolist() for batch in loader]
    loader.set_epoch(2)
    iterator = iter(loader)
    begun = [next(iterator)["number"].tolist() for _ in range(5)]
    state = torch_saved(loader.state_dict())
    del iterator
    other = StoreLoader(store, 4, shuffle=True, seed=1, threads=1)
    other.load_state_dict(state)
    other.set_epoch(2)  # as loops say at the start of every epoch
    assert begun + [batch["number"].tolist() for batch in other] == whole
    assert [batch["number"].tolist() for batch in other] != whole


def torch_saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "float32", "float64"])
@pytest.mark.parametrize("transformed", [False, True])
def test_floating_point_numbers_are_cast(store, dtype, transformed):
    transform = dict if transformed else None
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    for batch, numbers in zip(
        StoreLoader(store, 4, dtype=dtype, transform=transform), in_order(), strict=True
    ):
        expected = {n: torch.from_numpy(a) for n, a in expected_batch(numbers).items()}
        for name in ("x", "half", "y"):
            assert batch[name].dtype == wanted
            assert torch.equal(batch[name], expected[name].to(wanted))
        for name in ("number", "flag"):
            assert torch.equal(batch[name], expected[name])


def test_a_transform_may_return_tuples_and_tensors(store):
    def transform(batch):
        batch["x"] -= 1
        return batch["x"][:, ::-1], {"sum": torch.from_numpy(batch["y"]).sum(1), "name": "y"}

    loader = StoreLoader(store, 4, transform=transform, dtype="float32")
    for (x, rest), numbers in zip(loader, in_order(), strict=True):
        assert np.array_equal(x, (expected_batch(numbers)["x"] - 1)[:, ::-1])
        assert rest["sum"].dtype == torch.float32
        assert rest["name"] == "y"


@HELD
def test_a_stock_loader_takes_filled_batches_as_they_are(store):
    stock = torch.utils.data.DataLoader(store, batch_size=4)
    ours = torch.utils.data.DataLoader(store, batch_size=4, collate_fn=collate)
    subset = torch.utils.data.Subset(store, list(range(50)))
    part = torch.utils.data.DataLoader(subset, batch_size=4, collate_fn=collate)
    samples = [store[number] for number in range(50)]
    serial = torch.utils.data.DataLoader(samples, batch_size=4)  # a list: no __getitems__
    held = [list(serial), list(ours), list(stock), list(part)]
    for batches in zip(*held, strict=True):
        for name, expected in batches[0].items():
            for batch in batches[1:]:
                assert torch.equal(batch[name], expected)
                assert batch[name].dtype == expected.dtype
    batch = held[1][3]
    begin, end = batch["x"].data_ptr(), batch["flag"].data_ptr()
    assert 0 < end - begin < 64 << 10  # parts of one buffer
    store.close()


@pytest.mark.timeout(60)
def test_worker_processes_take_filled_batches(store):
    store.__getitems__([0])  # a reader of the parent's, which children must not share
    loader = torch.utils.data.DataLoader(
        store, batch_size=4, collate_fn=collate, num_workers=1, multiprocessing_context="fork"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads at a fork
        for batch, numbers in zip(loader, in_order(), strict=True):
            assert_batch(batch, numbers)
    store.close()


def ranked_batches(store, file, rank, results):
    """Put what one of two training processes loads into a queue."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    loader = StoreLoader(store, 4, shuffle=True, seed=1)
    results.put((rank, [batch["number"].tolist() for batch in loader]))
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(60)
def test_two_training_processes_share_an_epoch(store, tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=ranked_batches, args=(store, tmp_path / "group", rank, results))
        for rank in range(2)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads at a fork
        for process in processes:
            process.start()
    found = dict(results.get(timeout=50) for _ in processes)
    for process in processes:
        process.join()
    order = StoreLoader(store, 4, shuffle=True, seed=1).order
    assert found == {
        rank: [order.samples(0, batch % 13).tolist() for batch in range(rank, 14, 2)]
        for rank in range(2)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int32"}, "dtype='int32': expected a floating-point dtype"),
        ({"dtype": "float33"}, "dtype='float33'"),
        ({"device": "gpu"}, "device='gpu': expected 'cpu', 'cuda'"),
        ({"device": "mps"}, "device='mps': iobench knows a way to 'cuda'"),
        ({"num_workers": 2}, "no option 'num_workers'; there are depth, .*threads"),
        ({"transform": 3}, "transform=3: expected a function"),
        ({"threads": "2"}, "threads='2': expected a whole number"),
    ],
)
def test_options_that_cannot_be_are_refused(store, options, message):
    with pytest.raises(OptionError, match=message) as caught:
        StoreLoader(store, 4, **options)
    assert "\n" not in str(caught.value)


def test_a_forked_child_begins_for_itself(store):
    loader = StoreLoader(store, 4)
    iterator = iter(loader)
    next(iterator)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads at a fork
        pid = os.fork()
    if pid == 0:  # pragma: no cover  in the child
        signal.alarm(60)  # a child that hangs would keep the pipes of the test run open
        loader.set_epoch(0)
        numbers = [n for batch in loader for n in batch["number"].tolist()]
        os.write(writing, b"same" if numbers == list(range(50)) else b"other")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    assert os.read(reading, 10) == b"same"
    os.close(reading)
