"""Collective operations of a group of one process: recorded as they are, changed by nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch.distributed is PyTorch's")
import torch
import torch.distributed as dist

import iobench
from iobench.recording.kinds import Kind
from iobench.torch import communication

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="built without torch.distributed")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    communication.install()
    communication.install()
    yield
    communication.uninstall()
    communication.uninstall()
    dist.destroy_process_group()


def spans_of(path):
    """Return (label, bytes) of what was recorded as communication."""
    profile = iobench.open_profile(path)
    return [
        (profile.strings[row["label"]], int(row["nbytes"]))
        for row in profile.spans[profile.spans["kind"] == Kind.COMM]
    ]


def train(n_steps, hook=None):
    """Return the parameters after some steps of DistributedDataParallel, and its own logging."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()], ddp


ONES = lambda: torch.ones(100)  # noqa: E731
OPERATIONS = {
    "all_reduce": lambda: dist.all_reduce(ONES()),
    "broadcast": lambda: dist.broadcast(ONES(), 0),
    "reduce": lambda: dist.reduce(ONES(), 0),
    "all_gather": lambda: dist.all_gather([torch.empty(100)], ONES()),
    "gather": lambda: dist.gather(ONES(), [torch.empty(100)], 0),
    "scatter": lambda: dist.scatter(torch.empty(100), [ONES()], 0),
    "all_gather into": lambda: dist.all_gather_into_tensor(torch.empty(100), ONES()),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(100), ONES()),
    "barrier": dist.barrier,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch has other names for some by now
def test_an_operation_is_one_span_with_its_bytes(tmp_path, group):
    with iobench.record(tmp_path / "run"):
        for call in OPERATIONS.values():
            call()
    names = [name.split()[0] for name in OPERATIONS]
    nbytes = [0 if name == "barrier" else 400 for name in names]
    assert spans_of(tmp_path / "run") == list(zip(names, nbytes, strict=True))


def test_one_that_is_begun_is_apart_from_waiting_for_it_and_errors_are_the_scripts(tmp_path, group):
    found = [None]
    with iobench.record(tmp_path / "run"):
        work = dist.all_reduce(torch.ones(100), async_op=True)
        assert isinstance(work, dist.Work)
        assert work.wait() is True
        assert work.wait() is True, "and once more is nothing"
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
        dist.all_gather_object(found, {"loss": 0.5})
        with pytest.raises((RuntimeError, ValueError)):
            dist.broadcast(torch.ones(1), src=5)
    first, *rest = [("all_reduce", 400), ("wait", -1), ("all_reduce", 4)]
    spans = spans_of(tmp_path / "run")
    assert spans[:3] == [first, *rest]
    assert found == [{"loss": 0.5}]
    assert {name for name, _ in spans[3:]} == {"all_gather"}
    assert iobench.open_profile(tmp_path / "run").lost_spans == 0


@pytest.mark.thorough
def test_gradients_are_told_from_each_backward_pass_to_the_last(tmp_path, group):
    n_steps = 14  # torch itself would sample the first ten
    with iobench.record(tmp_path / "run"):
        _, ddp = train(n_steps)
    spans = spans_of(tmp_path / "run")
    held = [each for each in spans if each[0] == "gradients"]
    nbytes = sum(each.nbytes for each in ddp.parameters())
    assert len(held) == n_steps
    assert {each[1] for each in held} == {nbytes}
    buffers = [each for each in spans if each[0] == "buffers"]
    assert buffers, "BatchNorm's statistics are sent before each pass"


def test_a_hook_of_the_script_is_communication_and_what_it_calls_has_the_bytes(tmp_path, group):
    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    with iobench.record(tmp_path / "run"):
        with_hook, ddp = train(3, hook)
    assert ddp._comm_hooks == [(hook, None)], "the script's own is what torch keeps"
    spans = spans_of(tmp_path / "run")
    assert sum(each[0] == "hook" for each in spans) >= 3
    nbytes = sum(each.nbytes for each in ddp.parameters())
    assert sum(each[1] for each in spans if each[0] == "all_reduce") == 3 * nbytes
    assert {each[1] for each in spans if each[0] == "gradients"} == {0}
    without, _ = train(3, hook)
    assert all(map(torch.equal, with_hook, without))


def test_parameters_are_equal_bit_for_bit_recorded_or_not(tmp_path):
    def whole(record):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            if record:
                communication.install()
                with iobench.record(tmp_path / "run"):
                    return train(5)[0], torch.randn(3)
            return train(5)[0], torch.randn(3)
        finally:
            communication.uninstall()
            dist.destroy_process_group()

    (plain, next_plain), (seen, next_seen) = whole(record=False), whole(record=True)
    assert all(map(torch.equal, plain, seen))
    assert torch.equal(next_plain, next_seen), "and so are random numbers after it"


def test_a_torch_without_what_is_replaced_is_left_as_it_is(monkeypatch):
    before = dict(vars(dist.ProcessGroup))
    monkeypatch.delattr(dist, "_register_comm_hook")
    with pytest.raises(KeyError, match="_register_comm_hook"):
        communication.install()
    assert dict(vars(dist.ProcessGroup)) == before


@pytest.mark.timeout(60)
def test_an_optimizer_that_steps_in_a_hook_does_not_wait_for_the_reducer(group, tmp_path):
    with iobench.record(tmp_path / "run"):
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

        def hook(state, bucket):
            optimizer.step()
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        ddp.register_comm_hook(None, hook)
        for _ in range(2):
            ddp(torch.ones(2, 4)).sum().backward()
