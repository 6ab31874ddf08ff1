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
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return (type(value), value.dtype, value.tolist())
    if isinstance(value, dict):
        return (type(value), [(key, plain(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    return (type(value), value)


def outcome(kind, case):
    """Return all that a script can see of a loader: batches, errors, warnings, random states."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    seen = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            loader = kind(**case.options())
            for _ in range(case.n_epochs):
                for batch in itertools.islice(loader, case.stop):
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
    states = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
    return seen, notes, states


def leaks():
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # ends by itself once its queue is closed
            thread.join(10)
    return (
        len(multiprocessing.active_children()),
        sorted(thread.name for thread in threading.enumerate()),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
    )


class Case:
    """What a loader is made of; samplers and generators are made anew for each.

    By default batches are of 2 samples.
    """

    def __init__(self, dataset, n_epochs=2, stop=None, **options):
        self.dataset, self.n_epochs, self.stop = dataset, n_epochs, stop
        fixed = {"batch_size", "batch_sampler"} & options.keys()
        self.given = options if fixed else {"batch_size": 2, **options}

    def options(self):
        made = self.dataset()
        options = {"dataset": made, **self.given}
        for name in ("sampler", "batch_sampler"):
            if callable(options.get(name)):
                options[name] = options[name](made)
        if "generator" in options:
            options["generator"] = torch.Generator().manual_seed(options["generator"])
        return options


SAMPLERS = {
    "shuffled": {"shuffle": True},
    "batches": {"batch_sampler": lambda made: BatchSampler(SequentialSampler(made), 4, False)},
    "own generator": {"shuffle": True, "generator": 9},
    "dropping": {"drop_last": True, "batch_size": 3},
    "sampler": {"sampler": lambda _: SubsetRandomSampler(range(1, 9))},
    "odd batches": {"batch_sampler": lambda _: parts.OddSampler()},
    "single": {"batch_size": None},
}
MAPS = {"plain": parts.Plain, "values": parts.Values, "many": parts.ManyValues,
        "staged": parts.Staged}  # fmt: skip
STREAMS = ({"batch_size": 4, "drop_last": True}, {}, {"batch_size": None})
OPTIONS = (
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "persistent_workers": True, "shuffle": True},
    {"num_workers": 1, "in_order": False},
    {"num_workers": 2, "prefetch_factor": 1},
    {"num_workers": 1, "timeout": 20},
    {"num_workers": 2, "worker_init_fn": parts.offset_start},
    {"num_workers": 1, "pin_memory": True},
    {"num_workers": 0, "pin_memory": True},
    {"num_workers": 1, "multiprocessing_context": "fork"},
    {"num_workers": 1, "persistent_workers": True, "worker_init_fn": parts.offset_start},
)
FAULTS = {
    **{f"{fault} in {where}": {"dataset": lambda fault=fault, where=where:
                               parts.Faulty(fault, where)}
       for fault, where in itertools.product(("value", "key", "schema", "os"),
                                             ("__getitem__", "read"))},
    "stream": {"dataset": parts.FaultyStream},
    "collate": {"dataset": parts.Plain, "collate_fn": parts.failing_collate},
    "start": {"dataset": parts.Plain, "worker_init_fn": parts.failing_start},
    "no batches": {"dataset": parts.Texts, "batch_sampler": lambda _: [3, 4]},
    "sampler": {"dataset": parts.Plain, "batch_sampler": lambda _: parts.FaultySampler()},
    "size": {"dataset": parts.Plain, "batch_size": 0},
    "workers": {"dataset": parts.Plain, "num_workers": -1},
    "shuffled stream": {"dataset": parts.Stream, "shuffle": True},
}  # fmt: skip
UNUSUAL = {
    "subset": {"dataset": lambda: parts.BareSubset(parts.Plain(), [3, 1, 2])},
    "concat": {"dataset": lambda: parts.BareConcat(parts.Plain())},
    "shy": {"dataset": parts.Plain, "batch_sampler": lambda _: parts.ShySampler()},
    "replaced": {"dataset": parts.Replaced, "worker_init_fn": parts.replace_read},
}
CASES = {
    **{f"{name}-{sampler}-{workers}": Case(MAPS[name], num_workers=workers, **SAMPLERS[sampler])
       for workers, name, sampler in itertools.product((0, 1), MAPS, SAMPLERS)
       # __getitems__ gets what the sampler yields; those here take lists.
       if (name, sampler) != ("many", "odd batches")},
    **{f"stream-{number}-{workers}": Case(parts.Stream, num_workers=workers, **each)
       for workers, (number, each) in itertools.product((0, 2, 1), enumerate(STREAMS))},
    **{f"options {number}": Case(parts.Values, n_epochs=3, **each)
       for number, each in enumerate(OPTIONS)},
    **{f"left-{kind.__name__}-{kept}": Case(kind, 3, 2, num_workers=1, persistent_workers=kept)
       for kept, kind in itertools.product((False, True), (parts.Values, parts.Stream))},
    **{f"{name}-{workers}": Case(n_epochs=1, **{"num_workers": workers, **each})
       for workers, (name, each) in itertools.product((0, 1), {**UNUSUAL, **FAULTS}.items())},
    # One that a worker sends is the end for the loop; torch keeps its workers until a collection.
    **{f"stop in {where}": Case(lambda where=where: parts.Faulty("stop", where), n_epochs=1)
       for where in ("__getitem__", "read")},
}  # fmt: skip
QUICK = {
    "plain-batches-0", "plain-batches-1", "values-shuffled-0", "values-shuffled-1",
    "many-own generator-0", "staged-odd batches-0", "plain-single-0", "stream-0-0", "stream-0-2",
    "options 0", "left-Values-False", "subset-0", "replaced-1", "value in __getitem__-0",
    "key in read-0", "key in read-1", "stream-0", "collate-1", "start-1", "no batches-0",
    "sampler-0", "size-0", "stop in read",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CASES]
)
def test_what_a_script_sees_is_the_same(tmp_path, name):
    expected = outcome(torch.utils.data.DataLoader, CASES[name])
    children, threads, descriptors = leaks()
    with iobench.record(tmp_path / "run", detail="sample"):
        observed = outcome(DataLoader, CASES[name])
    for ours, theirs in zip(observed, expected, strict=True):
        assert ours == theirs
    after = leaks()
    assert after[0] == children
    # A thread that another test left may end meanwhile.
    assert not Counter(after[1]) - Counter(threads)
    assert after[2] <= descriptors
    assert expected[0][-1] == "end of epoch" or isinstance(expected[0][-1][0], type)


def test_every_quick_case_is_one():
    assert set(CASES) >= QUICK
