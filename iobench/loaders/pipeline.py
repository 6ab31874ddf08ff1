"""Datasets and stores seen alike: samples made by a chain of named steps, each timed apart.

Windows are samples, too: several items stacked into one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.datasets.contract import LazySequence, sample_steps
from iobench.errors import OptionError
from iobench.loaders.ring.order import MOST_PLANNED
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec
from iobench.stores.chunked_store import ChunkedStore, StoredSamples
from iobench.stores.sample_numbers import are_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import DecodedChunks
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.samples import Role, Sample, Variable, Window
    from iobench.stores.contract import Store

INPUT_DIM: Final = "step_in"
TARGET_DIM: Final = "step_out"
TARGET_SUFFIX: Final = "_target"
STEP_KINDS = {"read": Kind.READ, "decode": Kind.DECODE, "preprocess": Kind.PREPROCESS}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of making a sample, of what the step before returned and where the sample is."""

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

    def by_chunk(self, samples: list[int]) -> Iterable[int]:
        """Return the positions of the samples of a batch in an order in which chunks serve several.

        Each chunk is then decoded once a batch even where none is kept.
        """
        if self.chunk_cache is None:
            return range(len(samples))
        return self.chunk_cache.by_chunk([self.where[sample] for sample in samples])

    def expect(self, samples: Sequence[int], *, follows: bool) -> None:
        """Say, where that helps, which samples will be asked for, in order."""
        if self.chunk_cache is not None:
            where = self.where
            self.chunk_cache.expect([where[sample] for sample in samples], follows=follows)


def dataset_pipeline(
    dataset: Dataset, index: SampleIndex, samples: Sequence[int] | None = None
) -> Pipeline:
    """Return the steps ``read``, ``decode``, ``preprocess`` of a dataset, fused as it says."""
    taking = {}
    if getattr(dataset, "keeps_decoded", False):
        names = {"read": "read_to", "decode": "decode"}
        taking = {key: getattr(dataset, name, None) for key, name in names.items()}
    steps = tuple(
        Step(STEP_KINDS[name], "", taking.get(name) or run, taking.get(name) is not None)
        if name in STEP_KINDS
        else Step(Kind.FUSED, name, run)
        for name, run in sample_steps(dataset)
    )
    where = index.where
    if samples is not None and not are_all(samples, len(where)):
        numbers = samples if isinstance(samples, range) else np.asarray(samples, np.int64)
        where = LazySequence(len(samples), functools.partial(_at, where, numbers))
        if len(where) < MOST_PLANNED:  # few are sent to processes without all the others
            where = where[:]
    return Pipeline(index.spec, where, steps, getattr(dataset, "chunk_cache", None))


def store_pipeline(store: Store, *, verify: bool = False) -> Pipeline:
    """Return the steps ``read`` and ``decode`` of a store: its samples are preprocessed already."""
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


# -- windows ---


def stacking(spec: SampleSpec, window: Window) -> list[tuple[str, str, list[int]]]:
    """Return of each array of a window its name, the items' variable, and which items it takes."""
    return [
        (name, variable.name, [window.offsets.index(offset) for offset in offsets])
        for name, variable, _, offsets in _parts(spec, window)
    ]


def windowed_spec(spec: SampleSpec, window: Window) -> SampleSpec:
    """Return what a window of samples is.

    Inputs get a first dimension `INPUT_DIM`, targets `TARGET_DIM`. Where no variable is a target, a
    model is trained to continue what it reads: each is an input under its own name, and a target
    under its name with `TARGET_SUFFIX`.
    """
    if all(variable.role == "target" for variable in spec):
        raise OptionError(f"--window: none of {', '.join(spec.names)} is an input of the model")
    parts = _parts(spec, window)
    names = [name for name, *_ in parts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OptionError(
            f"--window: a variable is called {twice[0]}, as the targets of another one would be; "
            "leave one of them out, as with --variables"
        )
    stacked = []
    for name, variable, role, offsets in parts:
        dims = variable.dims
        if variable.channels and "channel" not in dims:
            dims = ("channel", *dims[1:])  # the names are along this axis, no longer the first
        steps = INPUT_DIM if role == "input" else TARGET_DIM
        shape = (len(offsets), *variable.shape)
        stacked.append(replace(variable, name=name, role=role, shape=shape, dims=(steps, *dims)))
    return SampleSpec(tuple(stacked))


def _parts(spec: SampleSpec, window: Window) -> list[tuple[str, Variable, Role, tuple[int, ...]]]:
    """Return name, variable, role and offsets of each array: as in the item, then targets."""
    parts: list[tuple[str, Variable, Role, tuple[int, ...]]] = [
        (v.name, v, v.role, window.inputs if v.role == "input" else window.targets) for v in spec
    ]
    if all(variable.role == "input" for variable in spec):
        parts += [(v.name + TARGET_SUFFIX, v, "target", window.targets) for v in spec]
    return [part for part in parts if part[-1]]
