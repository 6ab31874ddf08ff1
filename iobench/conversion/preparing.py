"""From a request to a dataset whose samples are what the store shall hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.datasets.python_objects import IterableObject
from iobench.datasets.selection import chosen_splits, select_split
from iobench.errors import OptionError
from iobench.files.memory import shared_memory_nbytes
from iobench.registry import find_format
from iobench.sources.opening import open_source
from iobench.stores.encoding import Encoding
from iobench.stores.plan import StoreRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen

LEAST_NBYTES: Final = 256 << 20
"""Taken without being asked for, whatever is free: more where samples need it."""


def prepare(request: ConvertRequest, screen: Screen) -> tuple[Source, StoreRequest]:
    """Return the source of a conversion, and what the converter is asked for."""
    source = open_samples(request, screen)
    index = source.index
    samples: Sequence[int] = range(len(index))
    if splits := chosen_splits(request.split, request.splits_by):
        samples = select_split(index, *splits)
    memory_nbytes = request.memory_nbytes
    if memory_nbytes is None:  # on a cluster what is free is not known here
        free_nbytes = 0 if request.scheduler is not None else shared_memory_nbytes()
        memory_nbytes = max(LEAST_NBYTES, free_nbytes)
    fmt, options = find_format(request.to), request.format_options
    store = StoreRequest(
        source.dataset,
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


def open_samples(request: ConvertRequest, screen: Screen) -> Source:
    """Return the source, whose samples have numbers."""
    source = open_source(request, screen)
    if isinstance(source.dataset, IterableObject):
        raise OptionError(
            f"{source.dataset.name}: hands out samples in its own order and cannot be asked for "
            "one by its number, so a conversion could not continue where it stopped; give a "
            "dataset with __getitem__"
        )
    return source
