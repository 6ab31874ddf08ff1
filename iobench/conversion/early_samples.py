"""Datasets that stop before preprocessing: ``--stage decoded``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.datasets.contract import ChunkedDataset
from iobench.errors import OptionError, SampleError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.chunks.chunked_variable import Place
    from iobench.chunks.sampled_variable import SampledVariable
    from iobench.datasets.contract import (
        Arrays,
        Dataset,
        Locator,
        PublishedStep,
        Raw,
        SampleIndex,
        Where,
    )
    from iobench.samples import Sample


class DecodedSamples:
    """A sample is the arrays its dataset decodes, before preprocessing."""

    def __init__(self, inner: Dataset, spec: SampleSpec) -> None:
        self.inner = inner
        self.spec = spec
        self.name = inner.name
        self.source_name = getattr(inner, "source_name", inner.name)
        self.title = inner.title
        self.fused = tuple(inner.fused)
        self.published: PublishedStep | None = inner.published
        self.thread_safe = bool(getattr(inner, "thread_safe", False))

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of the dataset."""
        return self.inner.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of the dataset, as they are decoded."""
        return replace(self.inner.samples(files, locator), spec=self.spec)

    def chunks_of(self, address: Where) -> Sequence[tuple[SampledVariable, Place]]:
        """Return the chunks of the sample; none where the dataset does not say."""
        inner = self.inner
        return inner.chunks_of(address) if isinstance(inner, ChunkedDataset) else ()

    def read(self, where: Where) -> Raw:
        """Return the sample's bytes."""
        return self.inner.read(where)

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return the arrays these bytes hold."""
        return self.inner.decode(raw, where)

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the arrays as they are, little-endian."""
        return {name: _little_endian(array) for name, array in arrays.items()}


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
    return DecodedSamples(dataset, spec), replace(
        index, spec=spec, provenance=facts
    )  # that comes later


def _variable(name: str, array: Any, spec: SampleSpec) -> Variable:
    """Return what an array is: as the finished sample has it, where it is the same in shape."""
    known = spec[name] if name in spec.names else None
    if known is not None and known.shape == array.shape:
        return replace(known, dtype=array.dtype.str)
    try:
        return Variable(
            name,
            array.shape,
            array.dtype.str,
            tuple(f"{name}_{axis}" for axis in range(array.ndim)),
        )
    except SampleError as error:
        raise SampleError(f"--stage decoded: {error}; leave out --stage") from error


def _little_endian(array: Any) -> Any:
    return np.asarray(array).astype(np.asarray(array).dtype.newbyteorder("<"), copy=False)
