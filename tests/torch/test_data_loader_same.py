"""The drop-in against torch's own class: the same batches, order, random numbers and errors."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import re
import threading
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
import drop_in_parts as parts
import torch
from torch.utils.data import BatchSampler, SequentialSampler, SubsetRandomSampler

import iobench
from iobench.torch import DataLoader

pytestmark = pytest.mark.timeout(60)


def plain(value):
    """Return a value that compares, with the types of all it holds."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.tolist())
    if isinstance(value, np.ndarray):
        return ("array", value.dtype, value.tolist())
    if isinstance(value, dict):
        return (type(value), [(key, plain(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    return (type(value), value)


def seed():
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


def rng_states():
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def outcome(kind, make_options, n_epochs=2, stop=None):
    """Return all that a script can see of a loader: batches, errors, warnings, random states."""
    seed()
    seen = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            options = make_options()
            loader = kind(**options)
            for _ in range(n_epochs):
                for batch in itertools.islice(loader, stop):
                    seen.append(plain(batch))
                    seen.append(torch.rand(1).item())
                seen.append("end of epoch")
        except Exception as error:  # noqa: BLE001 - whichever it is, the other must raise it too
            # They keep the iterator, whose workers torch lets go slowly once a collection finds it.
            traceback.clear_frames(error.__traceback__)
            text = re.sub(r"pid\(s\) [\d, ]+", "pid(s)", str(error))
            text = re.sub(r" at 0x\w+", "", text)
            seen.append((type(error), text))
    # Of a fork in a process with threads; both have them, as the machine goes.
    notes = [str(each.message) for each in told if "fork()" not in str(each.message)]
    return seen, notes, rng_states()


def assert_same(tmp_path, make_options, **more):
    expected = outcome(torch.utils.data.DataLoader, make_options, **more)
    before = leaks()
    with iobench.record(tmp_path / "run", detail="sample"):
        observed = outcome(DataLoader, make_options, **more)
    assert observed[0] == expected[0]
    assert observed[1] == expected[1]
    assert observed[2] == expected[2]
    children, threads, descriptors = leaks()
    assert children == before[0]
    # A thread that another test left may end meanwhile.
    assert not Counter(threads) - Counter(before[1])
    assert descriptors <= before[2]
    return expected


def leaks():
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # ends by itself once its queue is closed
            thread.join(10)
    return (
        len(multiprocessing.active_children()),
        sorted(thread.name for thread in threading.enumerate()),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
    )


def sampled(dataset, **options):
    def make():
        made = dataset()
        chosen = {name: value(made) if callable(value) and name in ("sampler", "batch_sampler")
                  else value for name, value in options.items()}  # fmt: skip
        if "generator" in chosen:
            chosen["generator"] = torch.Generator().manual_seed(chosen["generator"])
        return {"dataset": made, **chosen}

    return make


SAMPLERS = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "own generator": {"shuffle": True, "generator": 9},
    "dropping": {"drop_last": True},
    "sampler": {"sampler": lambda _: SubsetRandomSampler(range(1, 9))},
    "batches": {"batch_sampler": lambda made: BatchSampler(SequentialSampler(made), 4, False)},
    "odd batches": {"batch_sampler": lambda _: parts.OddSampler()},
    "single": {"batch_size": None},
}
MAPS = {"values": parts.Values, "many": parts.ManyValues, "staged": parts.Staged,
        "plain": parts.Plain}  # fmt: skip


def sized(options):
    fixed = {"batch_size", "batch_sampler"} & options.keys()
    return options if fixed else {"batch_size": 3, **options}


def odd_fits(dataset, sampler):
    # __getitems__ gets what the sampler yields; those here take lists.
    return not (sampler == "odd batches" and dataset == "many")


# Of a dataset whose items are read one by one all samplers meet workers; of the others two do.
MATRIX = [
    pytest.param(MAPS[dataset], {**sized(SAMPLERS[sampler]), "num_workers": workers},
                 id=f"{dataset}-{sampler}-{workers}",
                 marks=pytest.mark.long if workers and dataset != "plain"
                 and sampler not in ("shuffled", "batches") else ())
    for dataset, sampler, workers in itertools.product(MAPS, SAMPLERS, (0, 1))
    if odd_fits(dataset, sampler)
]  # fmt: skip


def spelled(options):
    """Return a name for options that is the same in every process."""
    return ",".join(
        f"{name}={getattr(value, '__name__', value)}" for name, value in options.items()
    )


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(("dataset", "options"), MATRIX)
def test_batches_of_a_map_dataset_are_the_same(tmp_path, dataset, options):
    assert_same(tmp_path, sampled(dataset, **options))


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"batch_size": 2}, 0),
        ({"batch_size": None}, 0),
        ({"batch_size": 4, "drop_last": True}, 0),
        ({"batch_size": 4, "drop_last": True}, 2),
        pytest.param({"batch_size": 2}, 1, marks=pytest.mark.long),
        pytest.param({"batch_size": 2}, 2, marks=pytest.mark.long),
        pytest.param({"batch_size": None}, 1, marks=pytest.mark.long),
        pytest.param({"batch_size": None}, 2, marks=pytest.mark.long),
        pytest.param({"batch_size": 4, "drop_last": True}, 1, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_batches_of_a_stream_are_the_same(tmp_path, options, workers):
    assert_same(tmp_path, sampled(parts.Stream, num_workers=workers, **options))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True, "shuffle": True},
        {"num_workers": 1, "in_order": False},
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 1, "prefetch_factor": 5},
        {"num_workers": 1, "timeout": 20},
        {"num_workers": 2, "worker_init_fn": parts.offset_start},
        {"num_workers": 1, "pin_memory": True},
        {"num_workers": 0, "pin_memory": True},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 1, "persistent_workers": True, "worker_init_fn": parts.offset_start},
    ],
    ids=spelled,
)
def test_options_mean_the_same(tmp_path, options):
    assert_same(tmp_path, sampled(parts.Values, batch_size=2, **options), n_epochs=3)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
@pytest.mark.parametrize("dataset", [parts.Values, parts.Stream])
def test_a_loop_that_is_left_early_leaves_the_same(tmp_path, dataset, options):
    make = sampled(dataset, batch_size=2, num_workers=1, **options)
    assert_same(tmp_path, make, stop=2, n_epochs=3)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        pytest.param(lambda: parts.BareSubset(parts.Plain(), [3, 1, 2]), {}, id="subset"),
        pytest.param(lambda: parts.BareConcat(parts.Plain()), {}, id="concat"),
        pytest.param(parts.Plain, {"batch_sampler": lambda _: parts.ShySampler()}, id="shy"),
        pytest.param(parts.Replaced, {"worker_init_fn": parts.replace_read}, id="replaced"),
    ],
)
def test_parts_of_an_unusual_make_are_the_same(tmp_path, dataset, options, workers):
    assert_same(tmp_path, sampled(dataset, num_workers=workers, **options), n_epochs=1)


METHODS = ("__getitem__", "read")
FAULTS = [
    *(pytest.param({"dataset": lambda fault=fault, where=where: parts.Faulty(fault, where)},
                   id=f"{fault} in {where}")
      for fault, where in itertools.product(("value", "key", "schema", "os"), METHODS)),
    pytest.param({"dataset": parts.FaultyStream}, id="stream"),
    pytest.param({"dataset": parts.Plain, "collate_fn": parts.failing_collate}, id="collate"),
    pytest.param({"dataset": parts.Plain, "worker_init_fn": parts.failing_start}, id="start"),
    pytest.param({"dataset": parts.Texts, "batch_sampler": lambda _: [3, 4]}, id="no batches"),
    pytest.param({"dataset": parts.Plain, "batch_sampler": lambda _: parts.FaultySampler()},
                 id="sampler"),
    pytest.param({"dataset": parts.Plain, "batch_size": 0}, id="size"),
    pytest.param({"dataset": parts.Plain, "num_workers": -1}, id="workers"),
    pytest.param({"dataset": parts.Stream, "shuffle": True}, id="shuffled stream"),
]  # fmt: skip


# One that a worker sends is the end for the loop, and torch keeps its workers until a collection.
STOPS = [
    pytest.param({"dataset": lambda where=where: parts.Faulty("stop", where), "num_workers": 0},
                 id=f"stop in {where}")
    for where in METHODS
]  # fmt: skip


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", FAULTS + STOPS)
def test_errors_have_the_same_type_and_text(tmp_path, options, workers):
    options = {"num_workers": workers, **options}
    dataset = options.pop("dataset")
    if "batch_sampler" not in options:
        options = {"batch_size": 2, **options}
    seen, *_ = assert_same(tmp_path, sampled(dataset, **options), n_epochs=1)
    assert seen[-1] == "end of epoch" or isinstance(seen[-1][0], type)
