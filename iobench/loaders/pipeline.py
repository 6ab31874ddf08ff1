"""Datasets and stores seen alike: samples made by a chain of named steps, each timed apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.loaders.ring.order import MOST_PLANNED
from iobench.recording.kinds import Kind
from iobench.stores.chunked_store import ChunkedStore, StoredSamples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import DecodedChunks
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.samples import Sample, SampleSpec
    from iobench.stores.contract import Store

STEP_KINDS = {"read": Kind.READ, "decode": Kind.DECODE, "preprocess": Kind.PREPROCESS}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of making a sample, of what the step before returned and where the sample is.

    One that ``takes_out`` can be given the sample's place as well.
    """

    kind: Kind
    label: str
    run: Callable[..., Any]
    takes_out: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything a worker needs to make samples. Picklable."""

    spec: SampleSpec
    where: Sequence[Any]
    steps: tuple[Step, ...]
    chunk_cache: DecodedChunks | None = None  # which is told the order of a pass
    is_windowed: bool = False  # whether an address is those of the items of a window

    def __len__(self) -> int:
        return len(self.where)

    def make(self, number: int, out: Sample | None = None) -> Sample:
        """Return a sample, through all steps; its arrays may be those of ``out``, filled."""
        where = self.where[number]
        given: tuple[Any, ...] = (where,)
        for step in self.steps:
            value = (
                step.run(*given, out) if step.takes_out and out is not None else step.run(*given)
            )
            given = (value, where)
        sample: Sample = given[0]
        return sample

    def expect(self, samples: Sequence[int], *, follows: bool) -> None:
        """Say, where that helps, which samples will be asked for, in order."""
        if self.chunk_cache is not None:
            where = self.where
            addresses = [where[sample] for sample in samples]
            if self.is_windowed:
                addresses = list(chain.from_iterable(addresses))
            self.chunk_cache.expect(addresses, follows=follows)


def dataset_pipeline(
    dataset: Dataset, index: SampleIndex, samples: Sequence[int] | None = None
) -> Pipeline:
    """Return the steps ``read``, ``decode``, ``preprocess`` of a dataset, fused as it says."""
    # all of them: a script's own loaders need none
    from iobench.datasets.contract import LazySequence, sample_steps

    in_place = getattr(dataset, "keeps_decoded", False)
    steps = tuple(
        Step(STEP_KINDS[name], "", run, name == "decode" and in_place)
        if name in STEP_KINDS
        else Step(Kind.FUSED, name, run)
        for name, run in sample_steps(dataset)
    )
    where = index.where
    if samples is not None and samples != range(len(where)):
        numbers = samples if isinstance(samples, range) else np.asarray(samples, np.int64)
        where = LazySequence(len(samples), functools.partial(_at, where, numbers))
        if len(where) < MOST_PLANNED:  # few are sent to processes without all the others
            where = where[:]
    return Pipeline(index.spec, where, steps, getattr(dataset, "chunk_cache", None))


def store_pipeline(store: Store, *, verify: bool = False) -> Pipeline:
    """Return the steps ``read`` and ``decode`` of a store: its samples are preprocessed already.

    ``verify`` is of stores whose samples share chunks; others are verified by their extents.
    """
    from iobench.datasets.contract import LazySequence

    if isinstance(store, ChunkedStore):
        samples = StoredSamples(store, verify=verify)
        read = Step(Kind.READ, "", samples.read)
        decode = Step(Kind.DECODE, "", samples.decode, takes_out=True)
        return Pipeline(store.spec, range(len(store)), (read, decode), samples.chunk_cache)
    return Pipeline(
        store.spec,
        LazySequence(len(store), store.extents),
        (
            Step(Kind.READ, "", store.read),
            Step(Kind.DECODE, "", functools.partial(_decode_stored, store)),
        ),
    )


def _at(where: Sequence[Any], numbers: Sequence[int] | NDArray[np.int64], sample: int) -> Any:
    return where[int(numbers[sample])]


def _decode_stored(store: Store, raw: Sequence[memoryview], where: Any) -> Sample:
    """Return a sample of a store, whose bytes say all."""
    return store.decode(raw)
