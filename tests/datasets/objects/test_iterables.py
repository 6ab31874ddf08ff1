"""Iterable datasets, gone through pass after pass; loaders of batches are refused."""

import itertools

import numpy as np
import pytest

import iobench
from iobench.errors import OptionError, SampleError


def passes(dataset, n_epochs):
    return [list(dataset.passes.items(epoch)) for epoch in range(n_epochs)]


def test_a_generator_is_called_anew_for_each_pass(own_module, opened):
    dataset, index = opened("mydata:generated", options={"n": "3"})
    assert len(index) == 0
    assert index.spec.names == ("v",)
    made = dataset.passes
    assert (made.n_samples_all, made.batched) == (0, False)
    values = [float(item["v"]) for item in itertools.islice(made.items(0), 7)]
    assert values == [0, 1, 2, 0, 1, 2, 0]


def test_an_iterable_of_known_length_has_passes(own_module, opened):
    dataset, _ = opened("mydata:Counted", options={"n": "4"})
    assert dataset.passes.n_samples_all == 4
    for items in passes(dataset, 2):
        assert [item["0"].tolist() for item in items] == [[i, i] for i in range(4)]
    with pytest.raises(OptionError, match="is iterable only"):
        dataset.read(0)


def test_what_is_used_up_after_a_pass_is_an_error(opened):
    class Once:
        left = 3

        def __iter__(self):
            while self.left:
                self.left -= 1
                yield np.zeros(2)

    dataset, _ = opened(Once())
    with pytest.raises(SampleError, match="pass 1 has no samples"):
        list(dataset.passes.items(0))


def test_what_is_gone_through_once_and_loaders_of_iobench_are_refused(own_module, opened):
    with pytest.raises(OptionError, match="can be gone through once; give what makes it"):
        opened(iter([1, 2]))
    loader = iobench.open_dataset("mydata:Squares", store_dir=own_module).loader(2)
    for each in (loader, torch_data.DataLoader([1, 2])):
        with pytest.raises(OptionError, match="is a loader of batches; name its store or dataset"):
            opened(each)
    loader.close()


torch_data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
import torch  # noqa: E402 - after the question whether it is there


def test_an_iterable_dataset_of_torch_with_a_length(opened):
    class Rows(torch_data.IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            yield from ({"x": torch.zeros(3)}, {"x": torch.ones(3)})

    dataset, _ = opened(Rows())
    assert dataset.passes.n_samples_all == 2
    assert [item["x"].tolist() for item in dataset.passes.items(0)] == [[0] * 3, [1] * 3]


def test_tf_data(opened):
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    dataset, index = opened(tensorflow.data.Dataset.range(3).map(lambda n: {"n": n}))
    assert index.spec["n"].dtype == "<i8"
    assert [int(item["n"]) for item in dataset.passes.items(0)] == [0, 1, 2]
    endless, _ = opened(tensorflow.data.Dataset.range(2).repeat())
    assert endless.passes.n_samples_all == 0
