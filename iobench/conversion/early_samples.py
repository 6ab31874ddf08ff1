"""Datasets that stop early: what ``--stage raw`` and ``--stage decoded`` keep of a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.decoded_chunks import reading_alone
from iobench.datasets.contract import BandedDataset, GroupedDataset
from iobench.datasets.grouped_samples import GroupedSamples
from iobench.errors import OptionError, SampleError
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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

N_LOOKED_AT = 8
"""Samples whose bytes are looked at before a store of raw ones is begun."""


class _EarlySamples:
    """A dataset made of another one whose later steps are left out.

    Parameters
    ----------
    inner : Dataset
        Already indexed.
    spec : SampleSpec
        What is left of a sample.
    """

    def __init__(self, inner: Dataset, spec: SampleSpec) -> None:
        self.inner = inner
        self.spec = spec
        self.name = inner.name
        self.title = inner.title
        self.fused = tuple(inner.fused)
        self.published: PublishedStep | None = inner.published
        self.thread_safe = bool(getattr(inner, "thread_safe", False))

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of the dataset."""
        return self.inner.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of the dataset, as what is left of them."""
        return replace(self.inner.samples(files, locator), spec=self.spec)

    def read(self, where: Where) -> Raw:
        """Return the sample's bytes."""
        return self.inner.read(where)

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the arrays as they are, little-endian."""
        return {name: _little_endian(array) for name, array in arrays.items()}


class RawSamples(_EarlySamples):
    """A sample is the bytes its dataset reads for it, one after the other.

    Those of chunks that neighbours need as well are read for each of them.
    """

    def read(self, where: Where) -> Raw:
        """Return all bytes of the sample."""
        with reading_alone():
            return self.inner.read(where)

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return all buffers as one array of bytes."""
        return {"raw": np.concatenate([_as_bytes(piece) for piece in raw])}


class DecodedSamples(_EarlySamples):
    """A sample is the arrays its dataset decodes, before preprocessing."""

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return the arrays these bytes hold."""
        return self.inner.decode(raw, where)


class _DecodedGroups(DecodedSamples, GroupedSamples):
    """The same of a dataset that makes samples in groups."""

    @property
    def _groups(self) -> Any:
        return self.inner

    def band_nbytes(self) -> int | None:
        """Return the least memory for groups that are put aside; None where none can be."""
        return self.inner.band_nbytes() if isinstance(self.inner, BandedDataset) else None


def decoded_samples(dataset: Dataset, index: SampleIndex) -> tuple[Dataset, SampleIndex]:
    """Return the dataset and its samples as they are decoded, told from the first.

    Raises
    ------
    OptionError
        If the dataset decodes and preprocesses in one.
    SampleError
        If an array of the first sample is not of numbers.
    """
    if {"decode", "preprocess"} <= set(dataset.fused):
        raise OptionError(
            f"--stage decoded: {dataset.name} does {'+'.join(dataset.fused)} in one, so there is "
            "nothing between them to keep; leave --stage out"
        )
    where = index.where[0]
    raw = dataset.read(where)
    arrays = raw if "decode" in dataset.fused[1:] else dataset.decode(raw, where)
    spec = SampleSpec(
        tuple(_variable(name, np.asarray(array), index.spec) for name, array in arrays.items())
    )
    made = _DecodedGroups if isinstance(dataset, GroupedDataset) else DecodedSamples
    facts = {name: each for name, each in index.provenance.items() if name != "normalisation"}
    return made(dataset, spec), replace(index, spec=spec, provenance=facts)  # that comes later


def raw_samples(dataset: Dataset, index: SampleIndex) -> tuple[Dataset, SampleIndex]:
    """Return the dataset and its samples as the bytes that are read for them.

    The lengths of the buffers, in reading order, go into the provenance, so that they can be told
    apart again.

    Raises
    ------
    OptionError
        If reading and decoding are one, or samples have different numbers of bytes: an array has
        one shape in all samples. A few samples are looked at here; the rest as they are written.
    """
    if "read" in dataset.fused:
        raise OptionError(
            f"--stage raw: {dataset.name} does {'+'.join(dataset.fused)} in one, so iobench never "
            "holds the bytes; leave --stage out"
        )
    last = len(index) - 1
    looked_at = sorted({last * step // (N_LOOKED_AT - 1) for step in range(N_LOOKED_AT)})
    raw = RawSamples(dataset, index.spec)
    lengths = {
        number: [_as_bytes(piece).size for piece in raw.read(index.where[number])]
        for number in looked_at
    }
    first = lengths[looked_at[0]]
    for number, found in lengths.items():
        if found != first:
            raise OptionError(
                f"--stage raw: sample {number} of {dataset.name} is {sum(found)} bytes in "
                f"{len(found)} pieces, sample {looked_at[0]} {sum(first)} in {len(first)}; arrays "
                "of a store have one shape: choose --stage decoded"
            )
    spec = SampleSpec((Variable("raw", (sum(first),), "|u1", ("byte",)),))
    facts = {**index.provenance, "raw_nbytes": first}
    facts.pop("normalisation", None)  # of a later step
    known = replace(index.meteorology.within(()), variables={})  # of arrays that bytes are none of
    raw_index = replace(index, spec=spec, provenance=facts, meteorology=known)
    return RawSamples(dataset, spec), raw_index


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
        raise SampleError(f"--stage decoded: {error}; leave --stage out") from error


def _little_endian(array: Any) -> Any:
    return np.asarray(array).astype(np.asarray(array).dtype.newbyteorder("<"), copy=False)


def _as_bytes(piece: Any) -> Any:
    return np.frombuffer(memoryview(piece).cast("B"), dtype=np.uint8)
