"""Map-style datasets, by name and handed over."""

import pickle

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.python_objects import object_dataset
from iobench.errors import OptionError, SampleError, WorkerError
from iobench.testing import DatasetTests


class TestSquares(DatasetTests):
    @pytest.fixture
    def dataset(self, own_module):
        return object_dataset("mydata:Squares", options={"n": "7"})

    @pytest.fixture
    def files(self, dataset, locator):
        return dataset.files(locator)


def test_samples_are_fused_and_strings_left_out(own_module, opened):
    dataset, index = opened("mydata:Squares", options={"scale": "0.5"})
    assert dataset.fused == ("read", "decode", "preprocess")
    assert index.spec.names == ("x", "y")
    assert index.provenance["skipped"] == {"name": "is no number: str"}
    sample = make_sample(dataset, index.where[3])
    assert sample["y"] == 9
    np.testing.assert_array_equal(sample["x"], np.full((2, 3), 1.5, "f4"))


def test_a_sample_that_differs_is_named(own_module, opened):
    dataset, index = opened("mydata:Growing")
    make_sample(dataset, index.where[2])
    with pytest.raises(SampleError, match=r"mydata:Growing\[3\]: array '0' is .* \(2,\), expected"):
        make_sample(dataset, index.where[3])


@pytest.mark.parametrize(
    "value", [np.arange(12.0).reshape(4, 3), [np.arange(3.0) + 3 * i for i in range(4)]]
)
def test_arrays_and_lists_handed_over(opened, value):
    dataset, index = opened(value)
    assert make_sample(dataset, index.where[2])["0"].tolist() == [6, 7, 8]
    copy = pickle.loads(pickle.dumps(dataset))
    assert make_sample(copy, index.where[2])["0"].tolist() == [6, 7, 8]


@pytest.mark.parametrize("value", [{"a": 1}, 3.5, b"bytes"])
def test_what_has_no_samples_is_refused(opened, value):
    with pytest.raises(OptionError, match="expected a dataset with __len__ and __getitem__"):
        opened(value)


def test_options_of_xarray_are_refused(opened):
    with pytest.raises(OptionError, match=r"--sample-dim and --variables need an xarray"):
        opened([1, 2], sample_dim="time")


def test_what_its_own_code_raises_keeps_its_name_in_a_worker(own_module, opened, load):
    dataset, index = opened("mydata:Failing")
    with pytest.raises(WorkerError, match="sample 2 could not be made: ZeroDivisionError: the th"):
        load(dataset, index, 2)
