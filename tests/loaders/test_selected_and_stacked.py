"""Samples selected by coordinates, variables stacked to channels, and what a loader says it has."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import IobenchError, OptionError
from iobench.loaders.ring.presenting import ChannelStack
from iobench.samples import SampleSpec, Variable

xarray = pytest.importorskip("xarray", reason="it writes the file that is converted")
N = 48


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return a dataset of six-hourly fields, and the store that was made of it."""
    folder = tmp_path_factory.mktemp("selected")
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


@pytest.mark.parametrize("kind", ["dataset", "store"])
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"select": {"time": ("2020-02-01", "2020-02-02")}}, range(4, 12)),
        ({"select": {"time": "2020-01"}}, range(4)),
        ({"select": {"time": ("2020-02-05", None)}, "drop_last": True}, range(20, 48)),
    ],
)
def test_samples_are_selected(opened, kind, options, numbers):
    loader = iobench.loader(opened[kind], 4, **options)
    places = [loader.coordinates(batch)["sample"].tolist() for batch in range(len(loader))]
    assert [number for each in places for number in each] == list(numbers)
    assert np.array_equal(next(iter(loader))["t"][1], opened[kind][numbers[1]]["t"])
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": "2020"}, "select='2020': expected values or"),
        ({"select": {"step": 1}}, "select={'step': 1}"),
        ({"select": {"time": ("2031", "2032")}}, "select="),
        ({"stack": "inputs"}, r"stack='inputs': expected \('inputs', 'targets'\)"),
        ({"stack": ("inputs", "x")}, "stack="),
        ({"stack": ("targets",)}, "stack='targets': no variable is one of the targets"),
    ],
)
def test_what_cannot_be_is_refused_by_its_parameter(opened, options, message):
    with pytest.raises(IobenchError, match=message) as caught:
        iobench.loader(opened["store"], 2, **options)
    assert "--" not in str(caught.value)


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
    if framework == "tensorflow":
        x, y = next(iter(loader.as_dataset()))
        assert (x.shape[1:], y.shape[1:]) == ((2, 3, 3, 4), (1, 3, 3, 4))


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
    batch = {v.name: np.random.default_rng(1).random((6, *v.shape), "f4") for v in spec}
    if shape is None:
        with pytest.raises(OptionError, match="expected one grid behind the channels"):
            ChannelStack(spec, ("inputs",))
        return
    (x,) = ChannelStack(spec, ("inputs",))(batch)
    assert x.shape == (6, *shape)
    assert np.array_equal(
        np.sort(x.reshape(6, -1)), np.sort(np.hstack([v.reshape(6, -1) for v in batch.values()]))
    )


def test_a_loader_says_what_a_batch_holds_and_travels(opened):
    loader = iobench.loader(
        opened["store"], 8, window="-1,0:1", normalise=True, dtype="float16", split="train",
        processes=True,
    )  # fmt: skip
    text = repr(loader)
    assert (
        text.splitlines()[0] == "<RingLoader: 3 batches of 8 of 22 samples, as stored: no shuffle"
    )
    assert "sp_target  target float16 (step_out=1, y=3, x=4) [1]" in text
    assert "split train, window -1,0:1" in text
    assert "normalised by the statistics of train: t, sp" in text
    again = pickle.loads(pickle.dumps(loader))
    for ours, theirs in zip(loader, again, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in loader.spec.names)
    loader.close()
    again.close()
