"""Collective operations of a group of one process: recorded as they are, changed by nothing."""

from __future__ import annotations

import itertools

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


def names_of(path):
    """Return the operations that were recorded, begun or waited for."""
    profile = iobench.open_profile(path)
    spans = profile.spans[profile.spans["kind"] == Kind.COMM]
    return [profile.strings[label] for label in spans["label"].tolist()]


def train(n_steps):
    """Return the parameters after some steps of DistributedDataParallel."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(n_steps):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


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
def test_an_operation_and_the_wait_for_it_have_its_name(tmp_path, group):
    with iobench.record(tmp_path / "run"):
        for call in OPERATIONS.values():
            call()
    names = [name for name, _ in itertools.groupby(names_of(tmp_path / "run"))]
    assert names == [name.split()[0] for name in OPERATIONS]


def test_one_that_is_begun_is_waited_for_once_and_errors_are_the_scripts(tmp_path, group):
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
    assert found == [{"loss": 0.5}]
    names = names_of(tmp_path / "run")
    assert names[:3] == ["all_reduce"] * 3
    assert {*names[3:]} == {"all_gather", "broadcast"}
    assert iobench.open_profile(tmp_path / "run").lost_spans == 0


@pytest.mark.long
def test_gradients_of_ddp_are_said_to_be_a_part_of_its_backward_pass(tmp_path, group):
    with iobench.record(tmp_path / "run") as recording:
        train(2)
    assert recording.facts.unseen == [communication.REDUCED]


@pytest.mark.long
def test_parameters_are_equal_bit_for_bit_recorded_or_not(tmp_path):
    def whole(record):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            if record:
                communication.install()
                with iobench.record(tmp_path / "run"):
                    return train(5), torch.randn(3)
            return train(5), torch.randn(3)
        finally:
            communication.uninstall()
            dist.destroy_process_group()

    (plain, next_plain), (seen, next_seen) = whole(record=False), whole(record=True)
    assert all(map(torch.equal, plain, seen))
    assert torch.equal(next_plain, next_seen), "and so are random numbers after it"


def test_a_torch_without_what_is_replaced_is_left_as_it_is(monkeypatch):
    before = dict(vars(dist.ProcessGroup))
    monkeypatch.delattr(dist, "Work")
    with pytest.raises(AttributeError, match="Work"):
        communication.install()
    assert dict(vars(dist.ProcessGroup)) == before
