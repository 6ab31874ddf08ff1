"""From a request to a dataset whose samples are what the store shall hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.conversion.early_samples import decoded_samples
from iobench.datasets.objects.source import IterableObject
from iobench.datasets.sample_windows import SampleProducer
from iobench.datasets.selection import chosen_splits, select_split
from iobench.errors import OptionError
from iobench.files.atomic import TEMPORARY_SUFFIX, is_local, storage_errors
from iobench.files.memory import shared_memory_nbytes
from iobench.files.urls import is_url
from iobench.registry import find_format
from iobench.sources.opening import open_source
from iobench.stores.encoding import Encoding
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import MARK_NAME
from iobench.stores.plan import StoreRequest, chunk_samples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.conversion.convert_request import ConvertRequest
    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Format


LEAST_NBYTES: Final = 256 << 20
"""Taken without being asked for, whatever is free: more where samples need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedConversion:
    """What is converted to what."""

    source: Source  # where it comes from
    dataset: Dataset
    index: SampleIndex  # of the stage that was asked for
    samples: Sequence[int]  # sample numbers, those of a split perhaps
    fmt: Format  # the container
    # what is stored with fewer bits; ranges of int16 may still be unknown
    encoding: Encoding | None

    def memory_nbytes(self, request: ConvertRequest) -> int:
        """Return what the conversion may hold of the data: as asked for, else some of what is free.

        On a cluster that is not known here.
        """
        if request.memory_nbytes is not None:
            return request.memory_nbytes
        if request.scheduler is not None:
            return LEAST_NBYTES
        return max(LEAST_NBYTES, shared_memory_nbytes())

    def producer(self, request: ConvertRequest, memory_nbytes: int) -> SampleProducer:
        """Return what makes the samples."""
        return SampleProducer(
            self.dataset,
            self.index,
            workers=request.n_workers,
            memory_nbytes=memory_nbytes,
            scratch=request.scratch,
            passes=request.passes,
            at_once=chunk_samples(self.fmt, request.format_options),
        )

    def store_request(self, request: ConvertRequest, memory_nbytes: int) -> StoreRequest:
        """Return what the converter is asked for."""
        return StoreRequest(
            self.dataset,
            self.index,
            self.fmt,
            request.out.absolute(),
            samples=self.samples,
            options=request.format_options,
            files=self.source.files,
            shard_nbytes=request.shard_nbytes,
            encoding=self.encoding,
            workers=request.n_workers,
            memory_nbytes=memory_nbytes,
            scratch=request.scratch,
            passes=request.passes,
            part=request.part_numbers,
            scheduler=request.scheduler,
        )


def existing_folder(out: Path) -> Path:
    """Return the folder the store will be in, or the nearest there is above it."""
    if not is_local(out):
        return out.parent
    return next(folder for folder in out.absolute().parents if folder.is_dir())


def prepare(request: ConvertRequest, screen: Screen) -> PreparedConversion:
    """Return what a request asks for, ready to be converted or planned."""
    check_target(request.out)
    codec = request.format_options.get("codec")
    encoding = Encoding.parse(dtype=request.dtype, ranges=request.ranges, codec=codec)
    fmt = find_format(request.to)
    source, dataset, index = open_samples(request, screen)
    samples: Sequence[int] = range(len(index))
    if splits := chosen_splits(request.split, request.splits_by):
        samples = select_split(index, *splits)
    StoreRequest(
        dataset, index, fmt, request.out, options=request.format_options, encoding=encoding
    ).check_container()
    renamed = getattr(fmt, "renamed", None)
    for name, other in renamed(index.spec).items() if renamed else ():
        screen.note(f"variable {name!r} is stored as {other!r}, for {fmt.name} has no such names")
    facts = {**index.provenance, "request": request.to_dict()}
    return PreparedConversion(
        source=source,
        dataset=dataset,
        index=replace(index, provenance=facts),
        samples=samples,
        fmt=fmt,
        encoding=encoding,
    )


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


def check_target(out: Path) -> None:
    """Check that a store may be written at ``out``, or is begun or finished there."""
    if is_local(out) and is_url(out.as_posix().replace(":/", "://", 1)):
        raise OptionError(f"{out}: a URL as a path; give it as text")
    with storage_errors(out):
        if not out.exists():
            return
        if not out.is_dir():
            raise OptionError(f"{out}: is a file; name a new folder for the store")
        # Another process may be writing the mark this very moment.
        names = sorted(entry.name for entry in out.iterdir())
        others = [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]
        if others and not (out / MARK_NAME).exists() and not (out / MANIFEST_NAME).exists():
            raise OptionError(
                f"{out}: holds {others[0]}, which iobench did not make; name a new folder"
            )
