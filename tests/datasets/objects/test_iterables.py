"""Iterable datasets and DataLoaders, gone through pass after pass."""

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
    assert (made.n_samples_all, made.batched, made.in_processes) == (0, False, False)
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
    with pytest.raises(OptionError, match="is a loader of iobench; name its store or dataset, or"):
        opened(loader)
    loader.close()


torch_data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
import torch  # noqa: E402 - after the question whether it is there


def numbered(n):
    return torch_data.TensorDataset(torch.arange(2.0 * n).reshape(n, 2), torch.arange(n))


@pytest.mark.parametrize(
    ("options", "n_samples", "sizes"),
    [
        ({"batch_size": 4}, 10, [4, 4, 2]),
        ({"batch_size": 4, "drop_last": True}, 8, [4, 4]),
        ({"batch_size": 5, "shuffle": True}, 10, [5, 5]),
        ({"batch_sampler": [[0, 1, 2], [3]]}, 0, [3, 1]),
    ],
)
def test_a_data_loader_hands_on_its_own_batches(opened, options, n_samples, sizes):
    dataset, index = opened(torch_data.DataLoader(numbered(10), **options))
    made = dataset.passes
    assert made.batched
    assert made.n_samples_all == n_samples
    assert dataset.batch_size == (options.get("batch_size") or 3)
    assert index.spec["0"].shape == (2,)
    batches = list(itertools.islice(made.items(0), len(sizes)))
    assert not made.in_processes
    assert all(batch["0"].shape == (size, 2) for batch, size in zip(batches, sizes, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_data_loader_can_be_asked_by_who_looks_into_it(opened):
    loader = torch_data.DataLoader(
        numbered(6), batch_size=3, num_workers=1, persistent_workers=True
    )
    dataset, _ = opened(loader)
    assert dataset.loader is loader
    # Workers that were started to see the first batch are not those that are looked into.
    assert loader._iterator is None
    begun = []
    batches = dataset.one_pass(0, lambda each: begun.append(each) or iter(each))
    assert [batch["1"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    assert begun == [loader]
    assert dataset.passes.in_processes  # for who does not


def test_an_iterable_dataset_of_torch_with_a_length(opened):
    class Rows(torch_data.IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            yield from ({"x": torch.zeros(3)}, {"x": torch.ones(3)})

    dataset, _ = opened(Rows())
    assert dataset.passes.n_samples_all == 2
    assert [item["x"].tolist() for item in dataset.passes.items(0)] == [[0] * 3, [1] * 3]
    # In a loader each worker may go through all of it, whatever it says.
    dataset, _ = opened(torch_data.DataLoader(Rows(), batch_size=2))
    assert dataset.passes.n_samples_all == 0


def test_a_sampler_is_told_the_epoch(opened):
    class Epochs(torch_data.SequentialSampler):
        seen = ()

        def set_epoch(self, epoch):
            self.seen = (*self.seen, epoch)

    values = numbered(4)
    sampler = Epochs(values)
    dataset, _ = opened(torch_data.DataLoader(values, batch_size=2, sampler=sampler))
    passes(dataset, 2)
    assert sampler.seen == (0, 1)


def test_tf_data(opened):
    tensorflow = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    dataset, index = opened(tensorflow.data.Dataset.range(3).map(lambda n: {"n": n}))
    assert index.spec["n"].dtype == "<i8"
    assert [int(item["n"]) for item in dataset.passes.items(0)] == [0, 1, 2]
    endless, _ = opened(tensorflow.data.Dataset.range(2).repeat())
    assert endless.passes.n_samples_all == 0
