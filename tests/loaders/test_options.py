"""``iobench.loader``: what options are, which cannot be, and what a loader says that it has."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from number_stores import nothing_left, write_numbers
from ring_sources import NumberSource

import iobench
from iobench.cli import main
from iobench.errors import IobenchError, OptionError
from iobench.loaders.ring.framework_loader import find_rank
from iobench.loaders.ring.loader_config import LoaderConfig
from iobench.loaders.ring.presenting import ArrayCast, ChannelStack
from iobench.samples import SampleSpec, Variable

xarray = pytest.importorskip("xarray", reason="it writes the file that is converted")
N = 48


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return a dataset of six-hourly fields, and the store that was made of it."""
    folder = tmp_path_factory.mktemp("fields")
    random = np.random.default_rng(0)
    made = xarray.Dataset(
        {
            "t": (("time", "level", "y", "x"), random.random((N, 2, 3, 4), "f4")),
            "sp": (("time", "y", "x"), random.random((N, 3, 4), "f4")),
        },
        {"time": np.datetime64("2020-01-31", "ns") + np.arange(N) * np.timedelta64(6, "h")},
    )
    made.to_netcdf(folder / "own.nc", engine="h5netcdf")
    words = ["convert", folder / "own.nc", folder / "store", "--to", "zarr", "--sample-dim", "time"]
    words += ["--split-by", "train:time=2020-01-31/2020-02-05", "--store-dir", folder]
    words += ["--split-by", "valid:time=2020-02-06/2020-02-11"]
    assert main([str(word) for word in words]) == 0
    return {
        "dataset": iobench.open_dataset(folder / "own.nc", sample_dim="time"),
        "store": iobench.open_store(folder / "store"),
    }


@pytest.fixture(autouse=True)
def leaves_nothing():
    with nothing_left():
        yield


@pytest.fixture
def no_ranks(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


# -- which samples, by what numbers ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dataset", "store"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"select": {"time": ("2020-02-01", "2020-02-02")}}, range(4, 12)),
        ({"select": {"time": "2020-01"}}, range(4)),
        ({"select": {"time": ("2020-02-05", None)}, "drop_last": True}, range(20, 48)),
    ],
)
def test_samples_are_selected(opened, kind, options, expected):
    loader = iobench.loader(opened[kind], 4, **options)
    places = [loader.coordinates(batch)["sample"].tolist() for batch in range(len(loader))]
    assert [number for each in places for number in each] == list(expected)
    assert np.array_equal(next(iter(loader))["t"][1], opened[kind][expected[1]]["t"])
    loader.close()


def test_a_split_a_selection_and_windows_are_all_kept(opened):
    options: dict[str, Any] = {"split": "train", "select": {"time": ("2020-02-01", "2020-02-20")}}
    loader = iobench.loader(opened["store"], 50, **options)
    assert loader.coordinates(0)["sample"].tolist() == list(range(4, 24))
    loader = iobench.loader(opened["store"], 50, window="-1,0:1", **options)
    assert loader.coordinates(0)["sample"].tolist() == [[n - 1, n, n + 1] for n in range(5, 23)]
    state = loader.state_dict()
    with pytest.raises(OptionError, match="state of another loader"):
        iobench.loader(opened["store"], 50, window="-1,0:1", split="train").load_state_dict(state)


def test_samples_by_number_are_those_of_batches(opened):
    loader = iobench.loader(opened["store"], 4, window="-1,0:1", shuffle=True)
    dataset: Any = pickle.loads(pickle.dumps(loader.dataset))
    for number, batch in enumerate(loader):
        for row, sample in enumerate(loader.order.samples(0, number).tolist()):
            one = dataset[sample]
            assert one.keys() == batch.keys()
            assert all(np.array_equal(one[name], batch[name][row]) for name in one)
    assert len(dataset) == N - 2
    with pytest.raises(IndexError, match="no sample 46, there are 46"):
        dataset[46]
    loader.close()
    assert iobench.loader(opened["store"], 4).dataset is opened["store"]
    of_source: Any = iobench.loader(NumberSource(), 4).dataset
    assert (len(of_source), of_source[-1]["number"]) == (50, 49)


@pytest.mark.parametrize("index", [slice(0, 4), [0, 1], np.array([0, 1]), "t", None])
def test_samples_are_asked_for_one_by_one(opened, index):
    for samples in opened.values():
        with pytest.raises(IobenchError, match="expected the number of one sample; take several"):
            samples[index]
        assert samples[np.int64(-1)]["t"].shape == samples[N - 1]["t"].shape == (2, 3, 4)


# -- how batches are presented ---------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["numpy", "torch", "tensorflow"])
def test_variables_are_channels_of_inputs_and_targets(opened, framework):
    if framework != "numpy":
        pytest.importorskip(framework, reason="its tensors are what is tested")
    options: dict[str, Any] = {"window": "-1,0:1", "normalise": True, "framework": framework}
    plain = iobench.loader(opened["store"], 5, **options)
    loader = iobench.loader(opened["store"], 5, stack=("inputs", "targets"), **options)
    for batch, (x, y) in zip(plain, loader, strict=True):
        t, sp = (np.asarray(batch[name]) for name in ("t", "sp"))
        assert np.array_equal(np.asarray(x), np.concatenate([t, sp[:, :, None]], axis=2))
        assert tuple(y.shape) == (len(t), 1, 3, 3, 4)
    del batch, x, y, t, sp
    plain.close()
    if framework == "tensorflow":
        x, y = next(iter(loader.as_dataset()))
        assert (x.shape[1:], y.shape[1:]) == ((2, 3, 3, 4), (1, 3, 3, 4))
        del x, y
    loader.close()


@pytest.mark.parametrize(
    ("variables", "shape"),
    [
        ([("a", (4, 5, 3), "y x channel"), ("b", (4, 5), "y x")], (4, 4, 5)),
        ([("a", (2, 4, 5), "level y x"), ("b", (2, 4, 5), "level y x")], (2, 2, 4, 5)),
        ([("a", (7,), "channel"), ("b", (), "")], (8,)),
        ([("a", (4, 5), "y x"), ("b", (), "")], None),
    ],
)
def test_channels_lie_before_the_grid_that_all_have(variables, shape):
    spec = SampleSpec(
        tuple(
            Variable(name, lengths, "<f4", tuple(dims.split())) for name, lengths, dims in variables
        )
    )
    if shape is None:
        with pytest.raises(OptionError, match="expected one grid behind the channels"):
            ChannelStack(spec, ("inputs",))
        return
    batch = {v.name: np.random.default_rng(1).random((6, *v.shape), "f4") for v in spec}
    (x,) = ChannelStack(spec, ("inputs",))(batch)
    assert x.shape == (6, *shape)
    every = np.hstack([values.reshape(6, -1) for values in batch.values()])
    assert np.array_equal(np.sort(x.reshape(6, -1)), np.sort(every))


@pytest.mark.parametrize("n", [1, 65_536, 65_537, 200_001])
@pytest.mark.parametrize(("wide", "narrow"), [("f8", "f4"), ("f8", "f2"), ("f4", "f2")])
def test_a_cast_over_its_own_memory_is_that_of_a_copy(n, wide, narrow):
    values = np.random.default_rng(n).normal(size=n).astype(wide)
    expected = values.astype(narrow)
    found = ArrayCast(np.dtype(narrow)).in_place(values)
    assert np.array_equal(found, expected)
    assert np.shares_memory(found, values)


def test_a_failing_transform_names_batch_and_samples(numbers):
    def transform(batch):
        raise KeyError("temperature")

    loader = iobench.loader(numbers, 20, transform=transform)
    with pytest.raises(KeyError, match="temperature") as caught:
        next(iter(loader))
    listed = ", ".join(map(str, range(16)))
    assert caught.value.__notes__ == [
        f"the transform was given samples [{listed}] and 4 more",
        "while batch 0 of epoch 0 was made",
    ]


def test_a_loader_says_what_a_batch_holds(opened):
    options: dict[str, Any] = {"window": "-1,0:1", "normalise": True, "dtype": "float16"}
    text = repr(iobench.loader(opened["store"], 8, split="train", **options))
    for line in (
        "<RingLoader: 3 batches of 8 of 22 samples, as stored: no shuffle",
        "  sp_target  target float16 (step_out=1, y=3, x=4) [1]",
        "  split train, window -1,0:1",
        "  normalised by the statistics of train: t, sp, t_target, sp_target",
    ):
        assert any(each.startswith(line) for each in text.splitlines()), text


def test_a_weaker_shuffle_says_how_weak_it_is(numbers, caplog):
    iobench.loader(numbers, 4, shuffle="blocks:2").close()
    assert "shuffle='blocks:2': blocks of 2, 32 mixed: the 4 samples of a batch" in caplog.text
    caplog.clear()
    iobench.loader(numbers, 4, shuffle=True).close()
    assert not caplog.text


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, (None, None), (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (None, None), (1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (2, 3), (2, 3)),
        ({"RANK": "1"}, (None, None), (0, 1)),
        ({"WORLD_SIZE": "2"}, (None, None), None),
        ({"RANK": "a", "WORLD_SIZE": "2"}, (None, None), None),
    ],
)
def test_ranks_are_found(monkeypatch, no_ranks, environment, given, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if expected is None:
        with pytest.raises(OptionError, match="set both, or pass rank= and world_size="):
            find_rank(*given)
    else:
        assert find_rank(*given) == expected


def test_ranks_that_came_later_are_noticed(monkeypatch, no_ranks, numbers):
    found, given = iobench.loader(numbers, 4), iobench.loader(numbers, 4, rank=0, world_size=1)
    next(iter(found))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    next(iter(given))
    with pytest.raises(OptionError, match="made for rank 0 of 1, this process is rank 1 of 2 now"):
        next(iter(found))


# -- what cannot be --------------------------------------------------------------------------------


def test_all_options_reach_the_loaders():
    names = set(inspect.signature(iobench.loader).parameters)
    assert names - {"store", "batch_size"} == {field.name for field in fields(LoaderConfig)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"framework": "jax"}, "framework='jax': expected one of"),
        ({"framework": "numpy", "device": "cuda"}, "device='cuda' goes with"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16': .*framework='torch'"),
        ({"dtype": "int32"}, "dtype='int32': expected"),
        ({"rank": 1}, "rank=1, world_size=None: give both"),
        ({"rank": 2, "world_size": 2}, "rank=2, world_size=2"),
        ({"transform": "mean"}, "transform='mean': expected"),
        ({"transform": lambda batch: None}, "returned None"),
        ({"transform": lambda batch: batch["t"]}, "returned a ndarray"),
        ({"depth": 2}, "depth=2: expected"),
        ({"depth": 3.0}, "depth=3.0: expected"),
        ({"batch_size": "4"}, "batch_size='4': expected"),
        ({"batch_size": 0}, "batch_size=0: expected"),
        ({"split": ["train"]}, r"split=\['train'\]: expected"),
        ({"split": "x"}, "split='x'"),
        ({"window": 3}, "window=3: expected"),
        ({"window": "0:99"}, "window='0:99': fits nowhere"),
        ({"window": "x"}, "window='x': expected"),
        ({"select": "2020"}, "select='2020': expected"),
        ({"select": {"step": 1}}, "select={'step': 1}"),
        ({"select": {"time": ("2031", "2032")}}, "select="),
        ({"select": {"time": "2020-02-01T06"}, "window": "0:1"}, "window and select: no sample"),
        ({"stack": 3}, "stack=3: expected"),
        ({"stack": "inputs"}, "stack='inputs': expected"),
        ({"stack": ("inputs", "x")}, "stack="),
        ({"stack": ("targets",)}, "stack='targets': no variable"),
        ({"processes": -1}, "processes=-1: expected"),
        ({"patch": {"lat": 2}}, r"no variable has the dimension lat; .*y \(3\), x \(4\)"),
        ({"patch": {"y": 10}}, "patch: y=10 is more than the 3"),
        ({"patch": {"y": 0}}, "patch: y=0, expected"),
        ({"patch": {"y": 2.5}}, r"patch: y=2\.5, expected"),
        ({"patch": 256}, "patch=256: expected"),
        ({"patch": {}}, "patch={}: expected"),
        ({"patch": {"y": 2}, "patch_at": "corner"}, "patch_at='corner': expected"),
        ({"patch_at": "tiles"}, "patch_at='tiles' goes with"),
        ({"store": 3}, "not a int"),
        ({"store": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_by_its_parameter(opened, options, message):
    kinds = ("store",) if {"store", "transform"} & {*options} else ("store", "dataset")
    for kind in kinds:
        given = {"store": opened[kind], "batch_size": 4, **options}
        with pytest.raises(IobenchError, match=message) as caught:
            next(iter(iobench.loader(**given)))
        assert "\n" not in str(caught.value)
        assert "--" not in str(caught.value)
    with pytest.raises(OptionError, match="coordinates: no batch was handed out"):
        iobench.loader(opened["store"], 1).coordinates()
