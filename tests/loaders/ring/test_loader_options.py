"""``iobench.loader``: one function, NumPy arrays by default, errors in one line."""

from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest
from number_stores import nothing_left, write_numbers

import iobench
from iobench.errors import IobenchError, OptionError
from iobench.loaders.ring.framework_loader import find_rank
from iobench.loaders.ring.loader_config import LoaderConfig
from iobench.loaders.ring.presenting import ArrayCast


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers")


@pytest.fixture(autouse=True)
def leaves_nothing():
    with nothing_left():
        yield


@pytest.mark.parametrize("n", [1, 65_536, 65_537, 200_001])
@pytest.mark.parametrize(("wide", "narrow"), [("f8", "f4"), ("f8", "f2"), ("f4", "f2")])
def test_a_cast_over_its_own_memory_is_that_of_a_copy(n, wide, narrow):
    values = np.random.default_rng(n).normal(size=n).astype(wide)
    expected = values.astype(narrow)
    found = ArrayCast(np.dtype(narrow)).in_place(values)
    assert np.array_equal(found, expected)
    assert np.shares_memory(found, values)


def test_a_failing_transform_names_batch_and_samples(store):
    def transform(batch):
        raise KeyError("temperature")

    loader = iobench.loader(store, 20, transform=transform)
    with pytest.raises(KeyError, match="temperature") as caught:
        next(iter(loader))
    listed = ", ".join(map(str, range(16)))
    assert caught.value.__notes__ == [
        f"the transform was given samples [{listed}] and 4 more",
        "while batch 0 of epoch 0 was made",
    ]


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, (None, None), (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (None, None), (1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (2, 3), (2, 3)),
        ({"RANK": "1"}, (None, None), (0, 1)),
    ],
)
def test_ranks_are_found(monkeypatch, environment, given, expected):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_rank(*given) == expected


def test_ranks_that_came_later_are_noticed(monkeypatch, store):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    found, given = iobench.loader(store, 4), iobench.loader(store, 4, rank=0, world_size=1)
    next(iter(found))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    next(iter(given))
    with pytest.raises(OptionError, match="made for rank 0 of 1, this process is rank 1 of 2 now"):
        next(iter(found))


@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2"}, {"RANK": "a", "WORLD_SIZE": "2"}])
def test_an_environment_that_says_half_is_refused(monkeypatch, environment):
    monkeypatch.delenv("RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="set both, or pass rank= and world_size="):
        find_rank()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"framework": "jax"}, "framework='jax': expected one of numpy, torch, tensorflow"),
        ({"framework": "numpy", "device": "cuda"}, "device='cuda' goes with framework='torch'"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16': .*framework='torch' knows"),
        ({"dtype": "int32"}, "dtype='int32': expected a floating-point dtype"),
        ({"rank": 1}, "rank=1, world_size=None: give both, or none"),
        ({"rank": 2, "world_size": 2}, "rank=2, world_size=2"),
        ({"transform": "mean"}, "transform='mean': expected a function"),
        ({"transform": lambda batch: None}, r"returned None \(return the arrays\)"),
        ({"transform": lambda batch: batch["x"]}, "returned a ndarray, expected a dict"),
        ({"depth": 2}, "depth=2: expected 3 or more"),
        ({"depth": 3.0}, "depth=3.0: expected a whole number"),
        ({"batch_size": "4"}, "batch_size='4': expected a whole number"),
        ({"batch_size": 0}, "batch_size=0: expected 1 or more"),
        ({"split": ["train"]}, r"split=\['train'\]: expected the name of one split"),
        ({"window": 3}, "window=3: expected offsets"),
        ({"stack": 3}, "stack=3: expected .'inputs', 'targets'"),
        ({"processes": -1}, "processes=-1: expected True or False"),
        ({"store": 3}, "takes a store or the path of one, not a int"),
        ({"store": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(store, options, message):
    given = {"store": store, "batch_size": 4, **options}
    with pytest.raises(IobenchError, match=message) as caught:
        next(iter(iobench.loader(**given)))
    assert "\n" not in str(caught.value)


def test_all_options_reach_the_loaders():
    names = set(inspect.signature(iobench.loader).parameters)
    assert names - {"store", "batch_size"} == {field.name for field in fields(LoaderConfig)}


def test_a_weaker_shuffle_says_how_weak_it_is(store, caplog):
    iobench.loader(store, 4, shuffle="blocks:2").close()
    assert "shuffle='blocks:2': blocks of 2, 32 mixed: the 4 samples of a batch" in caplog.text
    caplog.clear()
    iobench.loader(store, 4, shuffle=True).close()
    assert not caplog.text
