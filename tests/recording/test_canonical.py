"""What a sample is to a digest: names, dtypes, shapes and values, and nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xxhash", reason="digests need the extra 'digest'")
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from iobench.recording.canonical import (
    ONE_CALL,
    UndigestibleError,
    batch_digests,
    sample_digest,
)

Pair = namedtuple("Pair", "x y")
SAMPLE = {"field": np.arange(12, dtype="<f4").reshape(3, 4), "level": 3, "name": "t2m"}
DTYPES = st.sampled_from(["<f4", ">f4", "<i8", "u1", "?", "<c16", "<M8[s]", "S3", "<f2"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(max_dims=3, max_side=4))
)


@dataclasses.dataclass
class Held:
    x: Any
    y: Any


@settings(max_examples=25, deadline=None)
@given(ARRAYS)
def test_how_an_array_is_held_makes_no_difference(array: np.ndarray) -> None:
    wider = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wider[..., ::2] = array
    other_order = np.asfortranarray(array)
    swapped = array.astype(array.dtype.newbyteorder())
    assert {sample_digest(each) for each in (array, wider[..., ::2], other_order, swapped)} == {
        sample_digest(array)
    }


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=3), st.integers(1, 4))
def test_a_row_of_a_batch_is_the_sample(sample: dict[str, np.ndarray], n_samples: int) -> None:
    batch = {
        name: np.stack([np.roll(array, row) for row in range(n_samples)])
        for name, array in sample.items()
    }
    alone = [
        sample_digest({name: np.roll(array, row) for name, array in reversed(sample.items())})
        for row in range(n_samples)
    ]
    assert batch_digests(batch, n_samples) == alone


def test_large_and_small_samples_of_one_batch_agree_with_samples_alone() -> None:
    for n_values in (ONE_CALL // 4 - 100, ONE_CALL // 4 + 100):
        batch = {"x": np.arange(2 * n_values, dtype="<f4").reshape(2, -1), "y": np.arange(2)}
        alone = [sample_digest({"x": batch["x"][row], "y": row}) for row in range(2)]
        assert batch_digests(batch, 2) == alone


def test_nested_samples_and_texts_are_found_in_their_batch() -> None:
    batch = {"a": [np.arange(4), {"b": np.arange(8).reshape(4, 2)}], "names": ["x", "", "yz", "x"]}
    pairs = np.arange(8).reshape(4, 2)
    alone = [
        sample_digest({"a": (row, {"b": pairs[row]}), "names": name})
        for row, name in enumerate(batch["names"])
    ]
    assert batch_digests(batch, 4) == alone


@pytest.mark.parametrize(
    "other",
    [
        SAMPLE | {"field": SAMPLE["field"].astype("<f8")},
        SAMPLE | {"field": SAMPLE["field"].reshape(4, 3)},
        SAMPLE | {"field": SAMPLE["field"] + np.float32(1e-6)},
        SAMPLE | {"level": 3.0},
        SAMPLE | {"level": np.int32(3)},
        SAMPLE | {"level": True},
        SAMPLE | {"name": b"t2m"},
        SAMPLE | {"name": None},
        {"field": SAMPLE["field"], "levels": 3, "name": "t2m"},
        {"field": SAMPLE["field"], "level": 3},
        [SAMPLE["field"], 3, "t2m"],
    ],
    ids=range(11),
)
def test_any_difference_shows(other: Any) -> None:
    assert sample_digest(other) != sample_digest(SAMPLE)


def test_order_of_names_and_kind_of_container_do_not_matter_but_order_of_items_does() -> None:
    assert sample_digest(OrderedDict(reversed(SAMPLE.items()))) == sample_digest(SAMPLE)
    assert sample_digest((1, 2)) == sample_digest([1, 2]) == sample_digest(Pair(1, 2))
    assert sample_digest([1, 2]) != sample_digest([2, 1]) != sample_digest([[2], 1])
    assert sample_digest(Held(1, 2)) == sample_digest({"x": 1, "y": 2})
    assert sample_digest(["ab", "c"]) != sample_digest(["a", "bc"])


def test_names_that_compare_equal_are_told_apart() -> None:
    digests = {sample_digest({name: 0}) for name in (1, 1.0, True, "1")}
    assert len(digests) == 4


@pytest.mark.parametrize("value", [3, -(2**63), 2.5, True, 1j])
def test_a_number_is_the_array_that_numpy_makes_of_it(value: Any) -> None:
    assert sample_digest(value) == sample_digest(np.asarray(value))


def test_integers_too_large_for_numpy_and_objects_have_digests() -> None:
    values = [2**64, 2**64 + 1, -(2**70), np.array(["a", 2**80], dtype=object), {}, [], None, ""]
    assert len({sample_digest(value) for value in values}) == len(values)


def test_the_digest_is_fixed() -> None:
    # Runs are compared across versions: whoever changes this raises the version of the files.
    assert sample_digest(SAMPLE).hex() == "782ed3aec2fb3196debed02f631fe0e5"


@pytest.mark.parametrize("value", [object(), {"x": {1, 2}}, [lambda: None]])
def test_what_cannot_be_told_is_refused(value: Any) -> None:
    with pytest.raises(UndigestibleError, match="whose value iobench cannot read"):
        sample_digest(value)


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros(()), np.array([None] * 2)])
def test_a_batch_needs_the_samples_as_first_axis(array: np.ndarray) -> None:
    with pytest.raises(UndigestibleError, match="first axis"):
        batch_digests({"x": array}, 2)


def test_a_mask_is_part_of_a_sample_and_what_lies_under_it_is_not() -> None:
    values, mask = np.arange(6.0).reshape(2, 3), np.array([[0, 1, 0], [0, 0, 1]], dtype=bool)
    other = np.where(mask, np.nan, values)
    digest = sample_digest(np.ma.masked_array(values, mask))
    assert digest == sample_digest(np.ma.masked_array(other, mask))
    assert digest != sample_digest(np.ma.masked_array(values, ~mask)) != sample_digest(values)
    rows = [sample_digest(np.ma.masked_array(values, mask)[row]) for row in range(2)]
    assert batch_digests(np.ma.masked_array(other, mask), 2) == rows


def test_how_wide_texts_are_held_makes_no_difference() -> None:
    texts = np.array(["a", "bcd"])
    assert batch_digests(texts, 2) == [sample_digest(np.str_(text)) for text in texts]
    assert sample_digest(texts) == sample_digest(texts.astype("U9"))
    assert sample_digest(texts) != sample_digest(texts.astype("S3"))


def test_objects_that_fail_to_be_arrays_are_refused_and_no_batch_is_too_small() -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise ValueError("closed file")

    endless: list[Any] = []
    endless.append(endless)
    for value in (Broken(), endless, np.zeros(2, [("x", "f4"), ("y", "O")])):
        with pytest.raises(UndigestibleError):
            sample_digest(value)
    assert sample_digest(10**5000) != sample_digest(10**5000 + 1)
    assert batch_digests({"x": np.zeros((0, 3))}, 0) == []


def test_tensors_are_the_arrays_they_hold() -> None:
    torch = pytest.importorskip("torch", reason="of its tensors")
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    tensor = torch.from_numpy(array.copy())
    same = [tensor, tensor.T.contiguous().T, tensor.clone().requires_grad_()]
    assert {sample_digest(each) for each in same} == {sample_digest(array)}
    assert batch_digests([tensor, torch.arange(2)], 2) == [
        sample_digest((array[row], row)) for row in range(2)
    ]
    conjugate = torch.tensor([1 + 2j]).conj()
    assert sample_digest(conjugate) == sample_digest(np.array([1 - 2j], dtype="<c8"))
    with pytest.raises(UndigestibleError, match="layout"):
        sample_digest(tensor.to_sparse())


def test_numbers_that_numpy_has_no_name_for_are_told_apart() -> None:
    torch = pytest.importorskip("torch", reason="of its numbers")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy's bfloat16")
    ones = torch.ones(3, dtype=torch.bfloat16)
    bits = ones.view(torch.int16)
    assert sample_digest(bits) != sample_digest(ones)
    assert sample_digest(ones) == sample_digest(np.ones(3, dtype=ml_dtypes.bfloat16))
    assert batch_digests(ones, 3) == [sample_digest(ones[0])] * 3


def test_a_first_digest_loads_nothing() -> None:
    """A module that takes longer than the sample would be charged to the wait for it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, numpy, iobench.recording.canonical as canonical; canonical.load_xxhash(); "
            "before = set(sys.modules); "
            "canonical.sample_digest({'x': [numpy.zeros(3), 1, 'a', None]}); "
            "print(sorted(set(sys.modules) - before))",
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
