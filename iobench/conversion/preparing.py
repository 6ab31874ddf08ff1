"""From a request to a dataset whose samples are what the store shall hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.datasets.python_objects import IterableObject
from iobench.datasets.selection import chosen_splits, select_split
from iobench.errors import OptionError, SampleError
from iobench.files.memory import shared_memory_nbytes
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable
from iobench.sources.opening import open_source
from iobench.stores.encoding import Encoding
from iobench.stores.plan import StoreRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.datasets.contract import Arrays, Dataset, SampleIndex, Where
    from iobench.samples import Sample
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen

LEAST_NBYTES: Final = 256 << 20
"""Taken without being asked for, whatever is free: more where samples need it."""


def prepare(request: ConvertRequest, screen: Screen) -> tuple[Source, StoreRequest]:
    """Return the source of a conversion, and what the converter is asked for."""
    source, dataset, index = open_samples(request, screen)
    samples: Sequence[int] = range(len(index))
    if splits := chosen_splits(request.split, request.splits_by):
        samples = select_split(index, *splits)
    memory_nbytes = request.memory_nbytes
    if memory_nbytes is None:  # on a cluster what is free is not known here
        free_nbytes = 0 if request.scheduler is not None else shared_memory_nbytes()
        memory_nbytes = max(LEAST_NBYTES, free_nbytes)
    fmt, options = find_format(request.to), request.format_options
    store = StoreRequest(
        dataset,
        replace(index, provenance={**index.provenance, "request": request.to_dict()}),
        fmt,
        request.out.absolute(),
        samples=samples,
        options=options,
        files=source.files,
        shard_nbytes=request.shard_nbytes,
        encoding=Encoding.parse(
            dtype=request.dtype, ranges=request.ranges, codec=options.get("codec")
        ),
        workers=request.n_workers,
        memory_nbytes=memory_nbytes,
        scratch=request.scratch,
        passes=request.passes,
        part=request.part_numbers,
        scheduler=request.scheduler,
    )
    store.check_container()
    renamed = getattr(fmt, "renamed", None)
    for name, other in renamed(index.spec).items() if renamed else ():
        screen.note(f"variable {name!r} is stored as {other!r}, for {fmt.name} has no such names")
    return source, store


def open_samples(request: ConvertRequest, screen: Screen) -> tuple[Source, Dataset, SampleIndex]:
    """Return the source, and the dataset and index of the stage that was asked for."""
    source = open_source(request, screen)
    dataset, index = source.dataset, source.index
    if isinstance(dataset, IterableObject):
        raise OptionError(
            f"{dataset.name}: hands out samples in its own order and cannot be asked for one by "
            "its number, so a conversion could not continue where it stopped; give a dataset with "
            "__getitem__"
        )
    if request.stage == "decoded":
        dataset, index = decoded_samples(dataset, index)
    return source, dataset, index


# ---- samples before preprocessing: ``--stage decoded``


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
    variables = []
    for name, values in arrays.items():
        array = np.asarray(values)
        if name in index.spec.names and index.spec[name].shape == array.shape:
            variables.append(replace(index.spec[name], dtype=array.dtype.str))
            continue
        dims = tuple(f"{name}_{axis}" for axis in range(array.ndim))
        try:
            variables.append(Variable(name, array.shape, array.dtype.str, dims))
        except SampleError as error:
            raise SampleError(f"--stage decoded: {error}; leave out --stage") from error
    # Normalising comes later.
    facts = {name: each for name, each in index.provenance.items() if name != "normalisation"}
    decoded: Any = DecodedSamples(dataset)
    return decoded, replace(index, spec=SampleSpec(tuple(variables)), provenance=facts)
