"""Datasets that stop before preprocessing: ``--stage decoded``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError, SampleError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from iobench.datasets.contract import Arrays, Dataset, SampleIndex, Where
    from iobench.samples import Sample


class DecodedSamples:
    """A dataset, but a sample is the arrays it decodes, before preprocessing."""

    def __init__(self, inner: Dataset) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # while it is unpickled there is none
            raise AttributeError(name)
        return getattr(self.inner, name)

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the arrays as they are, little-endian."""
        return {
            name: np.asarray(array).astype(np.asarray(array).dtype.newbyteorder("<"), copy=False)
            for name, array in arrays.items()
        }


def decoded_samples(dataset: Dataset, index: SampleIndex) -> tuple[Dataset, SampleIndex]:
    """Return the dataset and its samples as they are decoded, told from the first."""
    if {"decode", "preprocess"} <= set(dataset.fused):
        raise OptionError(
            f"--stage decoded: {dataset.name} does {'+'.join(dataset.fused)} in one, so there is "
            "nothing between them to keep; leave out --stage"
        )
    where = index.where[0]
    raw = dataset.read(where)
    arrays = raw if "decode" in dataset.fused[1:] else dataset.decode(raw, where)
    spec = SampleSpec(
        tuple(_variable(name, np.asarray(array), index.spec) for name, array in arrays.items())
    )
    facts = {name: each for name, each in index.provenance.items() if name != "normalisation"}
    decoded: Any = DecodedSamples(dataset)
    return decoded, replace(index, spec=spec, provenance=facts)  # normalising comes later


def _variable(name: str, array: Any, spec: SampleSpec) -> Variable:
    """Return what an array is: as the finished sample has it, where it is the same in shape."""
    if name in spec.names and spec[name].shape == array.shape:
        return replace(spec[name], dtype=array.dtype.str)
    dims = tuple(f"{name}_{axis}" for axis in range(array.ndim))
    try:
        return Variable(name, array.shape, array.dtype.str, dims)
    except SampleError as error:
        raise SampleError(f"--stage decoded: {error}; leave out --stage") from error
