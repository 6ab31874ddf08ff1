"""Batches of the ring as tensors: right, whoever holds them for however long, and nothing left."""

from __future__ import annotations

import gc
import multiprocessing
import warnings

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


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "float32", "float64"])
def test_floating_point_numbers_are_cast(store, dtype):
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    for batch, numbers in zip(StoreLoader(store, 4, dtype=dtype), in_order(), strict=True):
        expected = {n: torch.from_numpy(a) for n, a in expected_batch(numbers).items()}
        for name in ("x", "half", "y"):
            assert batch[name].dtype == wanted
            assert torch.equal(batch[name], expected[name].to(wanted))
        for name in ("number", "flag"):
            assert torch.equal(batch[name], expected[name])


@HELD
def test_a_stock_loader_makes_the_same_batches_of_a_store(store):
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
        ({"device": "mps"}, "device='mps': expected 'cpu', 'cuda'"),
        ({"num_workers": 2}, "no option 'num_workers'; there are depth, .*threads"),
        ({"transform": 3}, "transform=3: expected a function"),
        ({"threads": "2"}, "threads='2': expected a whole number"),
    ],
)
def test_options_that_cannot_be_are_refused(store, options, message):
    with pytest.raises(OptionError, match=message) as caught:
        StoreLoader(store, 4, **options)
    assert "\n" not in str(caught.value)
